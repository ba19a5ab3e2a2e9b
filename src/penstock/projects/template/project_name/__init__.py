"""The step of the job project-name, and the records of its streams."""
