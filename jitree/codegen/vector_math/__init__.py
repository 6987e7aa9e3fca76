"""The functions of vector mathematics, for one value or many: in Python, and as LLVM IR."""
