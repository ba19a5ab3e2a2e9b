"""Streams: what users chain to describe a job. Describing never runs anything."""
