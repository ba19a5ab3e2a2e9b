"""Benchmarks: the speed of penstock, measured next to its peers, with every output checked."""
