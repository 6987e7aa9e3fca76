"""Loads VMVX executables: kernels that are bytecode modules inside a module."""
