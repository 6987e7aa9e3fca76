"""Makes machine code from Python functions by Numba, with ``image/``. The latter holds all that is there at
run time."""
