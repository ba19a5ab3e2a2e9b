"""Start-up: Spark's JVM starts early, and its Python processes as forks of one that has imported what tasks need."""
