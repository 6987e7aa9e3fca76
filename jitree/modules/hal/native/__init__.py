"""Machine code for imports of ``hal``; see the README."""
