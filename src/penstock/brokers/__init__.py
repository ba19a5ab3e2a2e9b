"""Brokers: Kafka topics, which both sources and sinks need.

In: a binding.
Out: a topic that exists, or an error that says what is missing.
Imports: base, bindings, errors.
"""
