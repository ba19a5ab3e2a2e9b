"""Start-up: Spark's Python processes as forks of one that has imported what tasks need."""
