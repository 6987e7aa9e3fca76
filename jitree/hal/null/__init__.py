"""Drives a device that executes nothing: ``null``, to copy for a new driver."""
