"""Metrics: what each micro-batch did and cost, kept beside the job and shown to Prometheus.

In: the metrics of a micro-batch.
Out: rates, a page of metrics, and files within a bound.
Imports: base, errors, machine.
"""
