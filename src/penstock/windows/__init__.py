"""Windows: which one a record belongs to, when it fires, and what comes of it; plain Python, for one key at a time."""
