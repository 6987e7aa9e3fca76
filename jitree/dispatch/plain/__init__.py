"""The plain tier: every instruction as a Python function."""
