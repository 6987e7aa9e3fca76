"""Machine code from Python functions by Numba, and ``image/``, all that is there at run time."""
