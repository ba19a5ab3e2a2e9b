"""Peers: the temperature-control job on penstock and on Flink, in turns, on the same topics."""
