"""Debugs programs: breakpoints, steps and registers of bytecode."""
