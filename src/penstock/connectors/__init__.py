"""Custom connectors: classes of a user that are sources and sinks of a job.

A binding names one: `python:module:Class?option=value`. A source derives from `RecordLog` if it can be read again, else
from `RecordReceiver`; a sink derives from `RecordSink`. Options are the arguments of the class.

In: a class of the user's, named in a binding.
Out: a log, a receiver or a sink that works like penstock's own: positions, replay, commits, dead letters.
Imports: base, bindings, errors, records, sinks, sources.
"""

from penstock.connectors.record_block import Block
from penstock.connectors.record_log import RecordLog
from penstock.connectors.record_receiver import Received, RecordReceiver
from penstock.connectors.record_sink import RecordSink
from penstock.sinks.base import TaskContext

__all__ = ["Block", "Received", "RecordLog", "RecordReceiver", "RecordSink", "TaskContext"]
