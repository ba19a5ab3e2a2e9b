"""The step of the job project-name, and what its streams carry."""
