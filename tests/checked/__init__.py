"""Runs tests and campaigns with checked machine code (:mod:`jitree.codegen.checked`).

    python -m tests.checked -m pytest tests/dispatch tests/regs
    python -m tests.checked -m tests.fuzz nests --minutes 10
    python -m tests.checked --go-on -m pytest tests/api

An access of what must not be accessed ends its process, unless it is to go on; all are listed at the end.
"""
