"""Calls of functions in machine code, from the caller's arguments to the arrays that he gets."""
