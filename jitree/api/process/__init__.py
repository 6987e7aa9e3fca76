"""Sandboxes for native code: a session in a separate process (see the README)."""
