"""Gives the functions of vector mathematics, for one value or many. They are Python, and LLVM IR."""
