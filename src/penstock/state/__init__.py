"""State: what a step remembers, by key group."""
