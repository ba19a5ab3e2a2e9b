"""Benchmarks: how fast penstock is, measured beside what it is compared with, with every output checked."""
