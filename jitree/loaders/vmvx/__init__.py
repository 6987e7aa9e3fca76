"""The loader of VMVX executables: kernels that are bytecode modules inside a module."""
