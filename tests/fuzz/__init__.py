"""Campaigns of random cases, which ``python -m tests.fuzz`` runs; the README says how they work."""
