"""The described graph: a checkpoint describes its job's streams, steps and sinks without the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_graph import (
    GRAPH_FILE,
    DescribedEdge,
    DescribedGraph,
    DescribedPlace,
    DescribedWatermarks,
    read_described_graph,
)
from penstock.errors import CheckpointError
from penstock.jobs.compile import compile_job
from penstock.jobs.settings import RunSettings


@dataclass
class Payment:
    card: int
    amount: float
    at: int


@dataclass
class Rule:
    name: str
    limit: float


class Judge(ps.ConnectedProcessFunction):
    """Keeps rules, and has timers."""

    side_outputs: ClassVar = {"alarms": Payment}
    rules = ps.BroadcastState(str, Rule)
    seen = ps.ValueState(int)

    def process_record(self, record: Payment, ctx: ps.Context) -> Iterator[Payment]:
        yield record

    def process_control(self, rule: Rule, ctx: ps.Context) -> None:
        self.rules.put(rule.name, rule)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Payment]:
        return iter(())


def job() -> ps.Job:
    made = ps.Job("cards", key_groups=8)
    payments = made.data_stream(
        "payments", schema=Payment, event_time="at", watermarks=ps.Watermarks.bounded("5s")
    ).filter(lambda payment: payment.amount > 0, name="real")
    rules = made.control_stream("rules", schema=Rule).broadcast()
    judged = payments.key_by("card").connect(rules).process("judge", Judge())
    judged.side_output("alarms").sink_to("alarms")
    sums = judged.key_by("card").window(ps.TumblingWindows("10s")).sum("sums", "amount")
    sums.sink_to("sums")
    return made


@pytest.fixture
def graph(tmp_path: Path) -> DescribedGraph:
    for name in ("payments", "rules"):
        (tmp_path / name).mkdir()
    bindings = {
        "payments": f"jsonl:{tmp_path / 'payments'}",
        "rules": f"jsonl:{tmp_path / 'rules'}",
        "alarms": f"parquet:{tmp_path / 'alarms'}",
        "sums": f"jsonl:{tmp_path / 'sums'}",
        "receipts": "kafka://127.0.0.1:9092/told?sasl.password=very-secret",
    }
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    bound = compile_job(job(), RunSettings(bindings=bindings, parallelism=2), checkpoint)
    checkpoint.save(GRAPH_FILE, bound.graph)
    return read_described_graph(checkpoint.folder)


def test_the_parts_are_told_in_order(graph: DescribedGraph, tmp_path: Path) -> None:
    """Each comes after its inputs, with what the job has declared about it."""
    nodes = {node.id: node for node in graph.nodes}
    assert [(node.kind, node.name) for node in graph.nodes] == [
        ("data stream", "payments"),
        ("filter", "real"),
        ("control stream", "rules"),
        ("step", "judge"),
        ("sink", "alarms"),
        ("step", "sums"),
        ("sink", "sums"),
    ]
    assert (graph.job, graph.key_groups, graph.parallelism) == ("cards", 8, 2)
    payments = nodes["source/payments"]
    limits = {"bytes": 256 << 20}
    assert payments.binding == DescribedPlace(f"jsonl:{tmp_path / 'payments'}", "jsonl", limits)
    assert nodes["sink/sums"].binding == DescribedPlace(f"jsonl:{tmp_path / 'sums'}", "jsonl")
    assert payments.records == {"": {"card": "int64", "amount": "double", "at": "int64"}}
    assert (payments.time, payments.watermarks) == ("at", DescribedWatermarks(bound_ms=5000))
    judge = nodes["step/judge"]
    assert (judge.level, judge.key, judge.key_type) == (1, ("card",), "int64")
    assert (judge.function, judge.has_timers, judge.by_event_time) == ("Judge", True, True)
    assert set(judge.records) == {"", "alarms"}
    sums = nodes["step/sums"]
    assert sums.level == 2
    assert sums.windows is not None
    assert (sums.windows.assigner, sums.windows.trigger) == ("TumblingWindows", "EventTimeTrigger")
    assert sums.windows.contents == "FieldAggregate"
    assert sums.windows.parameters == {"size": "10s", "aggregate": "sum", "allowed_lateness": "0s"}


def test_the_edges_tell_how_records_go(graph: DescribedGraph) -> None:
    """Records pass unchanged, by key, or to all; and each edge names its output."""
    assert graph.edges == (
        DescribedEdge(source="source/payments", target="transform/real"),
        DescribedEdge(source="source/rules", target="step/judge", kind="broadcast", is_control=True),
        DescribedEdge(source="transform/real", target="step/judge", kind="keyed", key=("card",)),
        DescribedEdge(source="step/judge", target="sink/alarms", output="alarms"),
        DescribedEdge(source="step/judge", target="step/sums", kind="keyed", key=("card",)),
        DescribedEdge(source="step/sums", target="sink/sums"),
    )


def test_secrets_are_masked(graph: DescribedGraph, tmp_path: Path) -> None:
    """The file can be read without the job, and has no password of a binding."""
    assert graph.receipts == DescribedPlace("kafka://127.0.0.1:9092/told?sasl.password=***", "json")
    assert b"very-secret" not in (tmp_path / "checkpoint" / GRAPH_FILE).read_bytes()
    assert graph.commands == DescribedPlace(f"jsonl:{tmp_path / 'checkpoint' / 'commands'}", "jsonl")
    assert graph.dead_letters.uri == f"jsonl:{tmp_path / 'checkpoint' / 'dead-letters'}"


def test_a_checkpoint_without_one_says_what_to_do(tmp_path: Path) -> None:
    """Covered are a job that was never started, and an unreadable file."""
    with pytest.raises(CheckpointError, match=r"graph\.json does not exist"):
        read_described_graph(tmp_path)
    (tmp_path / GRAPH_FILE).write_bytes(msgspec.json.encode({"job": 1}))
    with pytest.raises(CheckpointError, match="Start the job again"):
        read_described_graph(tmp_path)
