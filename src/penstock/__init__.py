"""penstock: dynamically controlled streams on Apache Spark.

A name is imported when it is first used: a command that describes no job needs none, and starts sooner.
"""

import importlib
from typing import TYPE_CHECKING, Final

from penstock.base.version import __version__ as __version__

if TYPE_CHECKING:
    from penstock.errors import PenstockError
    from penstock.expressions.called_functions import SqlFunction
    from penstock.expressions.columns import Column, call, col, lit, param
    from penstock.launch.job import Job
    from penstock.learning.learner import Learner
    from penstock.learning.quantile import Quantile
    from penstock.learning.regression import LinearRegression, LogisticRegression
    from penstock.learning.river_learner import River
    from penstock.learning.scikit_learner import ScikitLearn
    from penstock.learning.statistics import Covariance, ExponentialMean, Histogram, Moments
    from penstock.models.group import ModelGroup
    from penstock.models.model import Model
    from penstock.models.model_policy import ModelPolicy
    from penstock.models.scores import Score, Scores
    from penstock.objects.batch_manifests import committed_objects
    from penstock.operators.functions import (
        BatchContext,
        CommandContext,
        ConnectedProcessFunction,
        Context,
        ProcessFunction,
    )
    from penstock.operators.handlers import on_command
    from penstock.operators.watermarks import INGESTION_TIME
    from penstock.queries.snapshot_tables import query_snapshot
    from penstock.records.message_metadata import (
        MessagePart,
        kafka_header,
        kafka_key,
        kafka_offset,
        kafka_partition,
        kafka_timestamp,
        kafka_topic,
    )
    from penstock.state.folded_states import AggregateFunction, AggregatingState, ReducingState
    from penstock.state.history import TemporalState
    from penstock.state.learned_states import LearnedState
    from penstock.state.lists import ListState
    from penstock.state.maps import MapState
    from penstock.state.operator_lists import OperatorListState
    from penstock.state.shared import BroadcastState, Setting
    from penstock.state.state_columns import StateColumns
    from penstock.state.timer import Timer, Timers
    from penstock.state.transient import TransientField
    from penstock.state.ttl import Ttl
    from penstock.state.unions import UnionListState
    from penstock.state.values import ValueState
    from penstock.streams.changelogs import Upserts
    from penstock.streams.grouped_stream import GroupedStream
    from penstock.streams.stream import (
        BroadcastStream,
        ConnectedStream,
        DataStream,
        KeyedStream,
        ProcessedStream,
        WindowedStream,
    )
    from penstock.streams.watermark_strategies import WatermarkGenerator, Watermarks
    from penstock.tables.aggregate import Aggregate
    from penstock.tables.changes import Change
    from penstock.windows.assigners import (
        CountWindows,
        CumulativeWindows,
        GlobalWindows,
        SessionWindows,
        SlidingWindows,
        TumblingWindows,
        WindowAssigner,
    )
    from penstock.windows.contexts import EvictorContext, TriggerContext, WindowContext
    from penstock.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
    from penstock.windows.triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        CountTrigger,
        DeltaTrigger,
        EventTimeTrigger,
        NeverTrigger,
        ProcessingTimeTrigger,
        PurgingTrigger,
        Trigger,
        TriggerResult,
    )
    from penstock.windows.window import Window
    from penstock.windows.window_functions import WindowFunction
    from penstock.windows.window_parameters import Parameter

__all__ = [
    "INGESTION_TIME",
    "Aggregate",
    "AggregateFunction",
    "AggregatingState",
    "BatchContext",
    "BroadcastState",
    "BroadcastStream",
    "Change",
    "Column",
    "CommandContext",
    "ConnectedProcessFunction",
    "ConnectedStream",
    "Context",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "CountWindows",
    "Covariance",
    "CumulativeWindows",
    "DataStream",
    "DeltaEvictor",
    "DeltaTrigger",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
    "ExponentialMean",
    "GlobalWindows",
    "GroupedStream",
    "Histogram",
    "Job",
    "KeyedStream",
    "LearnedState",
    "Learner",
    "LinearRegression",
    "ListState",
    "LogisticRegression",
    "MapState",
    "MessagePart",
    "Model",
    "ModelGroup",
    "ModelPolicy",
    "Moments",
    "NeverTrigger",
    "OperatorListState",
    "Parameter",
    "PenstockError",
    "ProcessFunction",
    "ProcessedStream",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "Quantile",
    "ReducingState",
    "River",
    "ScikitLearn",
    "Score",
    "Scores",
    "SessionWindows",
    "Setting",
    "SlidingWindows",
    "SqlFunction",
    "StateColumns",
    "TemporalState",
    "TimeEvictor",
    "Timer",
    "Timers",
    "TransientField",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "Ttl",
    "TumblingWindows",
    "UnionListState",
    "Upserts",
    "ValueState",
    "WatermarkGenerator",
    "Watermarks",
    "Window",
    "WindowAssigner",
    "WindowContext",
    "WindowFunction",
    "WindowedStream",
    "call",
    "col",
    "committed_objects",
    "kafka_header",
    "kafka_key",
    "kafka_offset",
    "kafka_partition",
    "kafka_timestamp",
    "kafka_topic",
    "lit",
    "on_command",
    "param",
    "query_snapshot",
]

_MODULES: Final = {
    "penstock.errors": ("PenstockError",),
    "penstock.expressions.called_functions": ("SqlFunction",),
    "penstock.expressions.columns": (
        "Column",
        "call",
        "col",
        "lit",
        "param",
    ),
    "penstock.launch.job": ("Job",),
    "penstock.learning.learner": ("Learner",),
    "penstock.learning.quantile": ("Quantile",),
    "penstock.learning.regression": (
        "LinearRegression",
        "LogisticRegression",
    ),
    "penstock.learning.river_learner": ("River",),
    "penstock.learning.scikit_learner": ("ScikitLearn",),
    "penstock.learning.statistics": (
        "Covariance",
        "ExponentialMean",
        "Histogram",
        "Moments",
    ),
    "penstock.models.group": ("ModelGroup",),
    "penstock.models.model": ("Model",),
    "penstock.models.model_policy": ("ModelPolicy",),
    "penstock.models.scores": (
        "Score",
        "Scores",
    ),
    "penstock.objects.batch_manifests": ("committed_objects",),
    "penstock.operators.functions": (
        "BatchContext",
        "CommandContext",
        "ConnectedProcessFunction",
        "Context",
        "ProcessFunction",
    ),
    "penstock.operators.handlers": ("on_command",),
    "penstock.operators.watermarks": ("INGESTION_TIME",),
    "penstock.queries.snapshot_tables": ("query_snapshot",),
    "penstock.records.message_metadata": (
        "MessagePart",
        "kafka_header",
        "kafka_key",
        "kafka_offset",
        "kafka_partition",
        "kafka_timestamp",
        "kafka_topic",
    ),
    "penstock.state.folded_states": (
        "AggregateFunction",
        "AggregatingState",
        "ReducingState",
    ),
    "penstock.state.history": ("TemporalState",),
    "penstock.state.learned_states": ("LearnedState",),
    "penstock.state.lists": ("ListState",),
    "penstock.state.maps": ("MapState",),
    "penstock.state.operator_lists": ("OperatorListState",),
    "penstock.state.shared": (
        "BroadcastState",
        "Setting",
    ),
    "penstock.state.state_columns": ("StateColumns",),
    "penstock.state.timer": (
        "Timer",
        "Timers",
    ),
    "penstock.state.transient": ("TransientField",),
    "penstock.state.ttl": ("Ttl",),
    "penstock.state.unions": ("UnionListState",),
    "penstock.state.values": ("ValueState",),
    "penstock.streams.changelogs": ("Upserts",),
    "penstock.streams.grouped_stream": ("GroupedStream",),
    "penstock.streams.stream": (
        "BroadcastStream",
        "ConnectedStream",
        "DataStream",
        "KeyedStream",
        "ProcessedStream",
        "WindowedStream",
    ),
    "penstock.streams.watermark_strategies": (
        "WatermarkGenerator",
        "Watermarks",
    ),
    "penstock.tables.aggregate": ("Aggregate",),
    "penstock.tables.changes": ("Change",),
    "penstock.windows.assigners": (
        "CountWindows",
        "CumulativeWindows",
        "GlobalWindows",
        "SessionWindows",
        "SlidingWindows",
        "TumblingWindows",
        "WindowAssigner",
    ),
    "penstock.windows.contexts": (
        "EvictorContext",
        "TriggerContext",
        "WindowContext",
    ),
    "penstock.windows.evictors": (
        "CountEvictor",
        "DeltaEvictor",
        "Evictor",
        "TimeEvictor",
    ),
    "penstock.windows.triggers": (
        "ContinuousEventTimeTrigger",
        "ContinuousProcessingTimeTrigger",
        "CountTrigger",
        "DeltaTrigger",
        "EventTimeTrigger",
        "NeverTrigger",
        "ProcessingTimeTrigger",
        "PurgingTrigger",
        "Trigger",
        "TriggerResult",
    ),
    "penstock.windows.window": ("Window",),
    "penstock.windows.window_functions": ("WindowFunction",),
    "penstock.windows.window_parameters": ("Parameter",),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name (PEP 562)."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List public names as well, imported or not."""
    return sorted({*globals(), *__all__})
