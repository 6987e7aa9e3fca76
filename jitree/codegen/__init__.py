"""Machine code from Python functions: Numba is the front end. Nothing of this is imported at run time."""
