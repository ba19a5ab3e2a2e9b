"""MQTT: messages of sensors, acknowledged when they are in the journal.

In: messages of a topic filter, by a session that the broker keeps.
Out: records in the journal of a stream; records and commands as messages.
Imports: base, bindings, errors, records, sinks, sources.
"""
