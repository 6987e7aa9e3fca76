"""Sandboxes for native code: a session in a process of its own (see the README)."""
