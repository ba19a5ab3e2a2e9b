"""The plan: how a job's graph becomes a chain of levels, and where each block goes. Independent of Spark.

    read (sources) -> [keyed level -> forward]* -> write (sinks)

A level holds all steps whose inputs come from earlier levels. Everything else (blocks for later steps, for sinks, dead
letters, counts) passes a level unchanged. So one chain serves any graph, each record is computed once, and every level
sees the same cut.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.declarations import find_declarations
from penstock.engine.command_validation import AcceptedStep, Accepting
from penstock.engine.slot import Slot
from penstock.engine.step import StepCore, StepInput
from penstock.joins.join_step import JoinStep
from penstock.joins.lookup_source import LookupSource
from penstock.joins.table_lookup import TableLookup
from penstock.models.library_places import LibraryPlace
from penstock.models.model import Model
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.functions import ProcessFunction
from penstock.operators.handlers import declared_handlers
from penstock.operators.record_blocks import KEY, MESSAGE_KEY, OFFSET, ORIGIN, block_schema
from penstock.operators.watermarks import INGESTION_TIME, InputWatermarkRule
from penstock.operators.window_step import WindowStep
from penstock.runtime.initial_state import Seed
from penstock.runtime.slots import slots, slots_of_key_groups
from penstock.state.kept_slots import DEFAULT_STATE_MEMORY_BYTES
from penstock.state.shared import Setting, declared_shared
from penstock.state.transient import TransientField
from penstock.state.values import KeyedState
from penstock.streams.graph import (
    ChangelogNode,
    ExpressionNode,
    Graph,
    Port,
    ProcessNode,
    SinkNode,
    SourceNode,
    StatelessNode,
    TransformNode,
    UnionNode,
    inputs,
)

__all__ = ["JobPlan", "emission_destination", "expires_by_event", "has_timers", "wants_starts"]


def emission_destination(step: str, output: str) -> str:
    """Return the destination of the output of a step until it is forwarded."""
    return f"out/{step}/{output}"


def has_timers(node: ProcessNode) -> bool:
    """Return whether the function of a step may have processing-time timers."""
    if isinstance(node.function, WindowStep):
        return node.function.wants_clock
    if isinstance(node.function, JoinStep):
        return node.function.is_by_clock
    return type(node.function).on_timer is not ProcessFunction.on_timer


def expires_by_event(node: ProcessNode) -> bool:
    """Return whether values of a step expire by event time, which advances from record to record."""
    states = find_declarations(type(node.function), KeyedState).values()
    return any(state.ttl is not None and state.ttl.time == "event" for state in states)


def awaits_end(node: ProcessNode) -> bool:
    """Return whether a step has windows that may fire when time ends, or records that wait by the clock."""
    if isinstance(node.function, JoinStep):
        return node.function.is_by_clock
    return isinstance(node.function, WindowStep) and node.function.awaits_end


def wants_starts(graph: Graph) -> bool:
    """Return whether a job needs the start signal and the end of time: it has timers, windows or event time."""
    by_step = any(has_timers(node) or awaits_end(node) for node in graph.steps())
    return by_step or any(node.watermarks is not None for node in graph.sources())


@dataclass(frozen=True)
class JobPlan:
    """A job's graph with everything that workers need to run it. It is pickled for the workers.

    `raw_streams` are the streams whose source has bytes for each record; these stay with the record for dead letters.
    `keyed_sinks` are the sinks that take the key and the offset of each record. `parallelism` is the number of
    tasks of a keyed level, `state_memory_bytes` the limit of the state that a worker keeps in memory, and
    `waiting_bytes`, in real time, the limit of the records that a slot has not processed. `seed` is
    the initial state. `partitions` has the partitions of each Kafka stream at the start of the job. `origin_sinks`
    are the sinks that take, in real time, the names by which records are known again. `replayed` is the micro-
    batch, in Spark's numbering, that was planned before and is repeated, with the partitions known at that time.
    With `in_real_time` the records of a slot travel together, under its first key group. `library` has the
    models that the job has fetched; with `watches_models` a call of one that hangs ends its worker. `lookups`
    are the tables outside in which steps look records up, and `answers` is where their rows and the answers of groups
    of models are kept.
    """

    graph: Graph
    key_groups: int
    raw_streams: frozenset[str]
    keyed_sinks: frozenset[str]
    strict: bool
    parallelism: int = 1
    state_memory_bytes: int = DEFAULT_STATE_MEMORY_BYTES
    waiting_bytes: int = 32 << 20
    seed: Seed | None = None
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replayed: tuple[int, Mapping[str, tuple[str, ...]]] | None = None
    in_real_time: bool = False
    origin_sinks: frozenset[str] = frozenset()
    library: LibraryPlace | None = None
    watches_models: bool = False
    lookups: Mapping[str, LookupSource] = field(default_factory=dict)
    answers: LibraryPlace | None = None

    def of_batch(self, number: int) -> JobPlan:
        """Return the plan for a micro-batch, in Spark's numbering, with the partitions that it was planned with."""
        if self.replayed is None or number > self.replayed[0]:
            return self
        return dataclasses.replace(self, partitions={**self.partitions, **self.replayed[1]}, replayed=None)

    @functools.cached_property
    def slots(self) -> npt.NDArray[np.int32]:
        """The slot of each key group."""
        return slots_of_key_groups(self.key_groups, self.parallelism)

    @functools.cached_property
    def travelling_groups(self) -> npt.NDArray[np.uint16] | None:
        """The key group under which the records of each key group travel; None if each travels under its own."""
        if not self.in_real_time:
            return None
        found = np.empty(self.key_groups, np.uint16)
        for slot in self.slot_of.values():
            found[list(slot.key_groups)] = slot.key_groups[0]
        return found

    @functools.cached_property
    def slot_of(self) -> dict[int, Slot]:
        """The slots by Spark key."""
        return slots(self.key_groups, self.parallelism)

    @property
    def first_key_groups(self) -> list[int]:
        """The first key group of each slot, to which rows for every task go."""
        return sorted(slot.key_groups[0] for slot in self.slot_of.values())

    def levels(self) -> list[list[ProcessNode]]:
        """Return the keyed steps by depth. Steps of one level do not depend on each other."""
        depth: dict[str, int] = {}
        for node in self.graph.nodes.values():
            before = max((depth[port.node] for port in inputs(node)), default=0)
            depth[node.id] = before + isinstance(node, ProcessNode)
        steps = self.graph.steps()
        return [[s for s in steps if depth[s.id] == d] for d in range(1, max(depth.values(), default=0) + 1)]

    def wants_clock(self, node: ProcessNode) -> bool:
        """Return whether a step has work without input: it has timers, or an input that may become idle."""
        return has_timers(node) or any(
            rule.idle_ms is not None or rule.by_arrival for rule in self.watermark_rules(node)
        )

    @property
    def has_clock(self) -> bool:
        """Whether any step has work without input."""
        return any(map(self.wants_clock, self.graph.steps()))

    def watermark_rules(self, node: ProcessNode) -> list[InputWatermarkRule]:
        """Return the watermark rules of all data inputs of a step; empty for a step without event time."""
        return self._watermark_rules[node.id]

    @functools.cached_property
    def _watermark_rules(self) -> dict[str, list[InputWatermarkRule]]:
        found: dict[str, list[InputWatermarkRule]] = {}
        for node in self.graph.steps():
            origins = {o.id: o for edge in node.time_edges for o in self.graph.origins(edge.port)}
            found[node.id] = [
                rule for origin in origins.values() for rule in self._watermark_rules_of(origin, found)
            ]
        return found

    def _watermark_rules_of(
        self, origin: SourceNode | ProcessNode, known: Mapping[str, list[InputWatermarkRule]]
    ) -> list[InputWatermarkRule]:
        """Return the rules for input from a source or a step. `known` has the rules of earlier steps."""
        if isinstance(origin, ProcessNode):
            before = known[origin.id]
            if before and all(rule.by_arrival for rule in before):
                # Slots without input do not run, and would hold back event time.
                return [InputWatermarkRule(origin.id, (), by_arrival=True)]
            slots = tuple(f"{group:05d}" for group in self.first_key_groups)
            return [InputWatermarkRule(origin.id, slots)] if before else []
        if origin.watermarks is None:
            return []
        if origin.time == INGESTION_TIME:
            return [InputWatermarkRule(origin.id, (), by_arrival=True)]
        partitions = self.partitions.get(origin.name, ("",))
        return [
            InputWatermarkRule(
                origin.id, partitions, origin.watermarks.idle_ms, grows=origin.name in self.partitions
            )
        ]

    @property
    def awaits_end(self) -> bool:
        """Whether a step may have work when time ends: it has event time or windows."""
        return any(self.watermark_rules(node) or awaits_end(node) for node in self.graph.steps())

    def sends_watermarks(self, node: ProcessNode) -> bool:
        """Return whether other steps depend on the watermark of a step."""
        watermark_rules = [rule for found in self._watermark_rules.values() for rule in found]
        return any(rule.origin == node.id and not rule.by_arrival for rule in watermark_rules)

    def core(self, node: ProcessNode) -> StepCore:
        """Return the core of a step."""
        inputs = [StepInput(e.record_type, e.key, e.is_control, e.time, e.version) for e in node.edges]
        timed = [output for output in node.outputs if self.wants_times(Port(node.id, output))]
        caused = [output for output in node.outputs if self.wants_origins(Port(node.id, output))]
        function = node.function
        if isinstance(function, TableLookup):
            function = function.of(self.lookups.get(function.table))
        return StepCore(
            node.step,
            function,
            inputs,
            node.emitted,
            stamped=node.stamped,
            timed=timed,
            caused=caused,
            only_after=self._only_upserts(Port(node.id)),
            library=self.library,
            watches_models=self.watches_models,
        )

    @functools.cached_property
    def accepting(self) -> Accepting:
        """The commands that the steps take."""
        return Accepting(
            {node.step: _accepted(node, self.graph) for node in self.graph.steps()}, self.key_groups
        )

    def step_schema(self, node: ProcessNode, number: int) -> pa.Schema:
        """Return the columns of blocks for an input of a step."""
        edge = node.edges[number]
        key_type = edge.key.key_type if edge.key is not None and edge.key.computed else None
        raw, timed = self._has_raw(edge.port), edge.time == EVENT_TIME
        return block_schema(edge.record_type, key_type=key_type, raw=raw, timed=timed)

    def emission_schema(self, node: ProcessNode, output: str) -> pa.Schema:
        """Return the columns of a step's output: the records, and their keys, event times and origins if needed."""
        fields = list(node.outputs[output].schema)
        if self.wants_keys(Port(node.id, output)):
            fields.append(pa.field(KEY, node.key.key_type))
        if self.wants_times(Port(node.id, output)):
            fields.append(pa.field(EVENT_TIME, pa.int64()))
        if self.wants_origins(Port(node.id, output)):
            fields.append(pa.field(ORIGIN, pa.string()))
        return pa.schema(fields)

    def sink_schema(self, node: SinkNode) -> pa.Schema:
        """Return the columns of blocks for a sink."""
        fields = list(node.record_type.schema)
        if node.name in self.keyed_sinks:
            # The offset identifies a record that a broker rejects.
            fields += [pa.field(MESSAGE_KEY, pa.binary()), pa.field(OFFSET, pa.int64())]
        if node.name in self.origin_sinks:
            fields.append(pa.field(ORIGIN, pa.string()))
        return pa.schema(fields)

    def wants_keys(self, port: Port) -> bool:
        """Return whether a sink after the port takes the keys of its records."""
        return self._reaches(port, self.keyed_sinks)

    def wants_origins(self, port: Port) -> bool:
        """Return whether a sink after the port takes the origins of its records."""
        return self._reaches(port, self.origin_sinks)

    def _reaches(self, port: Port, sinks: frozenset[str]) -> bool:
        """Return whether one of some sinks is after the port, with no step between."""
        for node, _ in self.graph.consumers(port):
            if isinstance(node, SinkNode) and node.name in sinks:
                return True
            if isinstance(node, StatelessNode) and self._reaches(Port(node.id), sinks):
                return True
        return False

    def _only_upserts(self, port: Port) -> bool:
        """Return whether only sinks that take upserts read a port; they do not need the rows before updates."""
        nodes = [node for node, _ in self.graph.consumers(port)]
        return all(isinstance(node, SinkNode) and node.upsert_key is not None for node in nodes)

    def wants_times(self, port: Port) -> bool:
        """Return whether a step after the port uses event times that were set before it, next to the records."""
        for node, number in self.graph.consumers(port):
            if isinstance(node, ProcessNode) and node.edges[number].time == EVENT_TIME:
                return True
            # A transform with a time field sets new event times from it.
            passes = isinstance(node, UnionNode | ChangelogNode) or (
                isinstance(node, TransformNode | ExpressionNode) and node.time is None
            )
            if passes and self.wants_times(Port(node.id)):
                return True
        return False

    def wants_key_groups(self, port: Port) -> bool:
        """Return whether a step without a key is after the port. It uses the key groups of records as their places."""
        for node, number in self.graph.consumers(port):
            if isinstance(node, ProcessNode):
                key = node.edges[number].key
                if key is not None and key.by_place:
                    return True
            if isinstance(node, StatelessNode) and self.wants_key_groups(Port(node.id)):
                return True
        return False

    def _has_raw(self, port: Port) -> bool:
        node = self.graph.nodes[port.node]
        if isinstance(node, SourceNode):
            return node.name in self.raw_streams
        if isinstance(node, StatelessNode):
            return any(map(self._has_raw, inputs(node)))
        return False


def _accepted(node: ProcessNode, graph: Graph) -> AcceptedStep:
    function = type(node.function)
    shared = declared_shared(function)
    settings = {name: s for name, s in shared.items() if isinstance(s, Setting)}
    has_key = not node.key.by_place
    return AcceptedStep(
        step=node.step,
        key_type=node.key.key_type if has_key else pa.null(),
        handlers=declared_handlers(function),
        states=find_declarations(type(node.function), KeyedState) if has_key else {},
        settings=settings,
        timed=node.edges[-1].time is not None,
        has_cache=function.clear_cache is not ProcessFunction.clear_cache
        or bool(find_declarations(function, TransientField)),
        has_watermarks=graph.has_watermarks(Port(node.id)),
        models={one.model: one for one in shared.values() if isinstance(one, Model)},
    )
