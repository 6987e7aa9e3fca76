"""C modules, loaded from shared libraries by their published binary interface."""
