"""The native tier: whole functions of a module compiled by LLVM."""
