"""Makes a module of another tool's model. ``jitree.compile`` and ``jitree compile`` do so."""
