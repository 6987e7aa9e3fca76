"""Seeing inside programs while they run: what each dispatch reads and makes."""
