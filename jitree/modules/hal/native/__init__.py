"""Machine code that answers imports of ``hal``; see the README."""
