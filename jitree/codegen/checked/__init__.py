"""Checked machine code: each access is looked up in a map of what may be accessed. For tests only."""
