"""penstock: dynamically controlled streams on Apache Spark."""

from penstock.errors import PenstockError
from penstock.jobs.definition import Job
from penstock.operators.functions import BatchContext, ConnectedProcessFunction, Context, ProcessFunction
from penstock.state.values import StateColumns, ValueState
from penstock.streams.stream import ConnectedStream, DataStream, KeyedStream

__all__ = [
    "BatchContext",
    "ConnectedProcessFunction",
    "ConnectedStream",
    "Context",
    "DataStream",
    "Job",
    "KeyedStream",
    "PenstockError",
    "ProcessFunction",
    "StateColumns",
    "ValueState",
]

__version__ = "0.1.0"
