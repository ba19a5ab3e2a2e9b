"""penstock: dynamically controlled streams on Apache Spark."""

from penstock.errors import PenstockError
from penstock.jobs.definition import Job
from penstock.operators.functions import (
    BatchContext,
    CommandContext,
    ConnectedProcessFunction,
    Context,
    ProcessFunction,
)
from penstock.operators.handlers import on_command
from penstock.operators.watermarks import INGESTION_TIME
from penstock.state.folding import AggregateFunction, AggregatingState, ReducingState
from penstock.state.history import TemporalState
from penstock.state.lists import ListState
from penstock.state.maps import MapState
from penstock.state.operator_lists import OperatorListState
from penstock.state.shared import BroadcastState, Setting
from penstock.state.timers import Timer, Timers
from penstock.state.transient import TransientField
from penstock.state.ttl import Ttl
from penstock.state.unions import UnionListState
from penstock.state.values import StateColumns, ValueState
from penstock.streams.stream import BroadcastStream, ConnectedStream, DataStream, KeyedStream
from penstock.streams.watermarks import WatermarkGenerator, Watermarks

__all__ = [
    "INGESTION_TIME",
    "AggregateFunction",
    "AggregatingState",
    "BatchContext",
    "BroadcastState",
    "BroadcastStream",
    "CommandContext",
    "ConnectedProcessFunction",
    "ConnectedStream",
    "Context",
    "DataStream",
    "Job",
    "KeyedStream",
    "ListState",
    "MapState",
    "OperatorListState",
    "PenstockError",
    "ProcessFunction",
    "ReducingState",
    "Setting",
    "StateColumns",
    "TemporalState",
    "Timer",
    "Timers",
    "TransientField",
    "Ttl",
    "UnionListState",
    "ValueState",
    "WatermarkGenerator",
    "Watermarks",
    "on_command",
]

__version__ = "0.1.0"
