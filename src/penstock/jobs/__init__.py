"""Jobs: what is deployed. Definition, loading, running."""
