"""Windows: which window a record belongs to, when it fires, and what comes of it; plain Python, for one key at a time."""
