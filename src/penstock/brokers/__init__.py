"""Brokers: topics of Kafka, which sources and sinks both need.

In: a binding.
Out: a topic that exists, or an error that says what is missing.
Imports: bindings, errors.
"""
