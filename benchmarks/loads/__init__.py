"""Loads: a job in real time under small, uneven and difficult loads, with the figures of each."""
