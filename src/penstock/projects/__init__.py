"""Projects: a folder with a job, sample input and tests, for people to begin with."""
