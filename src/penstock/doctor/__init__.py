"""Doctor: whether jobs can run here, on this checkpoint and with these bindings; what is wrong, and what to do."""
