"""From a model of another tool to a module: what ``jitree.compile`` and ``jitree compile`` do."""
