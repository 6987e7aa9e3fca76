"""Checks machine code as it runs. Each access is looked up in a map of what may be accessed. For tests
only."""
