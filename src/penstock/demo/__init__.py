"""The demo: simulated rooms, the job that keeps them warm, a live view, and an independent check."""
