"""Python functions on integers as machine code: what native answers and native calls are written in."""
