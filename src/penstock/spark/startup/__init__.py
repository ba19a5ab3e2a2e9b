"""Start-up: run Spark's Python processes as forks of one that has already imported what tasks need."""
