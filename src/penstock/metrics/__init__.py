"""Metrics: the work and the cost of each micro-batch, stored in the checkpoint and exposed to Prometheus.

In: the metrics of a micro-batch; the times of records and outputs.
Out: rates, latencies, a page of metrics, and files of limited size.
Imports: base, errors, machine.
"""
