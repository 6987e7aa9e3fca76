"""Programs in other people's engines; nothing here is imported by the rest of jitree."""
