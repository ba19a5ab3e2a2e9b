"""Runtime: compiles a described job into one Spark query. The only place that knows Spark."""
