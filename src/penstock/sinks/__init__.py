"""Sinks: where records leave."""
