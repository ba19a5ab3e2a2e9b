"""Server: the manager of jobs. What users want, what is, and what to do about it."""
