"""The fast tier: a dispatch loop in machine code, generated from the instruction table."""
