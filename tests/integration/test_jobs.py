"""Jobs of every shape run on Spark and equal plain Python."""

from __future__ import annotations

import base64
import csv
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from integration_support import kept_cuts, read_lines, write_lines

import penstock as ps
from penstock.errors import CheckpointError, StrictModeError
from penstock.spark import query
from penstock.spark.carried_bodies import remove_bodies


@dataclass
class Purchase:
    """A purchase of a customer in a shop."""

    customer: str
    shop: int
    amount: float
    note: str | None = None


@dataclass
class Limit:
    """The maximum that a customer may spend."""

    customer: str
    most: float


@dataclass
class Block:
    """Whether a customer is blocked."""

    customer: str
    blocked: bool


@dataclass
class Total:
    """A customer's total so far."""

    customer: str
    total: float


@dataclass
class Alarm:
    """A customer who is over the limit."""

    customer: str
    reason: str


@dataclass
class Count:
    """The number of alarms with a reason."""

    reason: str
    count: int


class Spending(ps.ConnectedProcessFunction):
    """Sums up, and emits alarms to a side output."""

    side_outputs = {"alarms": Alarm}
    total = ps.ValueState(float)
    limit = ps.ValueState(float)
    blocked = ps.ValueState(bool)

    def process_control(self, control: Limit | Block, ctx: ps.Context) -> None:
        if ctx.stream == "limits":
            self.limit.set(control.most)
        else:
            self.blocked.set(control.blocked)

    def process_record(self, purchase: Purchase, ctx: ps.Context) -> Iterator[Total]:
        if purchase.amount < 0:
            raise ValueError("negative amount")
        if self.blocked.get():
            ctx.side_output("alarms", Alarm(ctx.key, "blocked"))
            return
        total = (self.total.get() or 0.0) + purchase.amount
        self.total.set(total)
        limit = self.limit.get()
        if limit is not None and total > limit:
            ctx.side_output("alarms", Alarm(ctx.key, "over the limit"))
        yield Total(ctx.key, total)


class Counting(ps.ProcessFunction):
    """Counts the records of a key."""

    seen = ps.ValueState(int)

    def process_record(self, alarm: Alarm, ctx: ps.Context) -> list[Count]:
        self.seen.set((self.seen.get() or 0) + 1)
        return [Count(alarm.reason, self.seen.get() or 0)]


def spending_job() -> ps.Job:
    """Return a job with two control streams, a filter, a side output, and a second keyed step after it."""
    job = ps.Job("spending", key_groups=16)
    purchases = job.data_stream("purchases", schema=Purchase)
    limits = job.control_stream("limits", schema=Limit)
    blocks = job.control_stream("blocks", schema=Block)
    spent = (
        purchases.filter(lambda purchase: purchase.shop != 99)
        .key_by("customer")
        .connect(limits.key_by("customer"), blocks.key_by("customer"))
        .process("spending", Spending())
    )
    spent.sink_to("totals")
    alarms = spent.side_output("alarms")
    alarms.sink_to("alarms")
    alarms.key_by("reason").process("counting", Counting()).sink_to("counts")
    return job


def test_controls_side_outputs_and_chained_steps(run_job: Any, tmp_path: Path) -> None:
    """Several control streams control one step; its side output goes to a sink and through a second keyed
    step.

    A second run on the same checkpoint continues with the state, and does not read files again.
    """
    write_lines(
        tmp_path / "purchases",
        "a.jsonl",
        [
            {"customer": "ann", "shop": 1, "amount": 5.0},
            {"customer": "bob", "shop": 1, "amount": 50.0},
            {"customer": "ann", "shop": 99, "amount": 1000.0},
            {"customer": "ann", "shop": 2, "amount": 6.0, "note": "Grüße"},
            {"customer": "eve", "shop": 2, "amount": 1.0},
        ],
    )
    write_lines(tmp_path / "purchases", "b.jsonl", [{"customer": "ann", "shop": 1, "amount": 1.0}])
    write_lines(tmp_path / "limits", "a.jsonl", [{"customer": "ann", "most": 10.0}])
    write_lines(tmp_path / "blocks", "a.jsonl", [{"customer": "eve", "blocked": True}])
    bindings = {
        name: f"jsonl:{tmp_path}/{name}" for name in ("limits", "blocks", "totals", "alarms", "counts")
    }
    bindings["purchases"] = f"jsonl:{tmp_path}/purchases?max_files_per_batch=1"
    summary = run_job(spending_job(), bindings)
    totals = read_lines(tmp_path / "totals")
    assert [t["total"] for t in totals if t["customer"] == "ann"] == [5.0, 11.0, 12.0]
    assert [t["total"] for t in totals if t["customer"] == "bob"] == [50.0]
    alarms = sorted((a["customer"], a["reason"]) for a in read_lines(tmp_path / "alarms"))
    assert alarms == [("ann", "over the limit"), ("ann", "over the limit"), ("eve", "blocked")]
    counts = [(c["reason"], c["count"]) for c in read_lines(tmp_path / "counts")]
    assert sorted(counts) == [("blocked", 1), ("over the limit", 1), ("over the limit", 2)]
    assert summary.records_in == {"purchases": 6, "limits": 1, "blocks": 1}
    assert summary.records_out == {"totals": 4, "alarms": 3, "counts": 3}
    assert summary.state == {"spending": 3, "counting": 2}
    assert summary.batches == 2
    write_lines(tmp_path / "purchases", "c.jsonl", [{"customer": "bob", "shop": 1, "amount": 2.0}])
    summary = run_job(spending_job(), bindings)
    totals = read_lines(tmp_path / "totals")
    assert [t["total"] for t in totals if t["customer"] == "bob"] == [50.0, 52.0]
    assert summary.records_in["purchases"] == 1
    assert summary.state["spending"] == 3
    assert [cut.ends["purchases"] for cut in kept_cuts(tmp_path / "checkpoint")] == [1, 2, 3]


class Pairing(ps.ProcessFunction):
    """Pairs the amounts of a partition."""

    waiting = ps.OperatorListState(Purchase)
    shops = ps.UnionListState(int)

    def process_record(self, purchase: Purchase, ctx: ps.Context) -> Iterator[Total]:
        self.waiting.add(purchase)
        if purchase.shop not in self.shops:
            self.shops.add(purchase.shop)
        if len(self.waiting) == 2:
            first, second = self.waiting.get()
            self.waiting.clear()
            yield Total(f"{first.customer}{second.customer}{len(self.shops)}", first.amount + second.amount)


def test_operator_state_survives_a_restart(run_job: Any, tmp_path: Path) -> None:
    """A step without a key pairs records from before the restart with later ones."""
    job = ps.Job("pairing", key_groups=1)
    job.data_stream("purchases", schema=Purchase).process("pair", Pairing()).sink_to("pairs")
    bindings = {name: f"jsonl:{tmp_path}/{name}" for name in ("purchases", "pairs")}
    for number, customers in enumerate(["abc", "de"]):
        write_lines(
            tmp_path / "purchases",
            f"{number}.jsonl",
            [{"customer": c, "shop": number, "amount": 1.5} for c in customers],
        )
        run_job(job, bindings)
    pairs = read_lines(tmp_path / "pairs")
    assert [(pair["customer"], pair["total"]) for pair in pairs] == [("ab1", 3.0), ("cd2", 3.0)]


def test_bad_records_stop_a_strict_job_and_are_else_set_aside(run_job: Any, tmp_path: Path) -> None:
    """Records that fail to decode or that user code rejects are dead letters, with their place and bytes.

    With strict the job ends with a message that names the first, and writes nothing of that batch. Without it
    the job then continues from the same checkpoint, and nothing is missing.
    """
    lines = [
        '{"customer": "ann", "shop": 1, "amount": 5}',
        "{broken",
        '{"customer": "ann", "shop": "one", "amount": 5}',
        '{"customer": "ann", "shop": 1, "amount": NaN}',
        '{"customer": "ann", "shop": 1, "amount": -1}',
        '{"customer": "ann", "shop": 1}',
        '{"customer": "ann", "shop": 1, "amount": 2}',
    ]
    write_lines(tmp_path / "purchases", "a.jsonl", lines)
    (tmp_path / "purchases" / "b.jsonl").write_bytes(b"")
    for name in ("limits", "blocks"):
        (tmp_path / name).mkdir()
    bindings = {
        name: f"jsonl:{tmp_path}/{name}"
        for name in ("purchases", "limits", "blocks", "totals", "alarms", "counts")
    }
    with pytest.raises(StrictModeError, match=r"record 44 of 'a.jsonl' in stream 'purchases'"):
        run_job(spending_job(), bindings, strict=True)
    assert read_lines(tmp_path / "totals") == []
    summary = run_job(spending_job(), bindings)
    assert [t["total"] for t in read_lines(tmp_path / "totals")] == [5.0, 7.0]
    letters = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert summary.dead_letters == len(letters) == 5
    raw = {base64.b64decode(letter["raw"]).decode(): letter for letter in letters}
    assert set(raw) == {*lines[1:6]}
    offsets = np.cumsum([0, *(len(line) + 1 for line in lines)])
    for place, line in enumerate(lines[1:6], start=1):
        assert raw[line]["offset"] == offsets[place]
        assert raw[line]["stream"] == "purchases"
        assert raw[line]["partition"] == "a.jsonl"
    refused = raw[lines[4]]
    assert refused["step"] == "spending"
    assert "negative amount" in refused["reason"]
    assert summary.records_in["purchases"] == len(lines)


def test_a_checkpoint_of_another_job_is_refused(run_job: Any, tmp_path: Path) -> None:
    """The checkpoint records its job."""
    (tmp_path / "numbers").mkdir()
    bindings = {"numbers": f"jsonl:{tmp_path}/numbers", "squares": f"jsonl:{tmp_path}/squares"}
    run_job(squares_job(), bindings)
    (tmp_path / "purchases").mkdir()
    names = ("purchases", "limits", "blocks", "totals", "alarms", "counts")
    with pytest.raises(CheckpointError, match="belongs to the job 'squares', not 'spending'"):
        run_job(spending_job(), {name: f"jsonl:{tmp_path}/{name}" for name in names})


def squares_job() -> ps.Job:
    """A job without a keyed step."""
    job = ps.Job("squares")
    numbers = job.data_stream("numbers", schema="n BIGINT, day DATE, tags ARRAY<STRING>")
    numbers.flat_map(lambda r: [Square(r.n, r.n * r.n, r.day, r.tags)] * (r.n % 3), output=Square).sink_to(
        "squares"
    )
    return job


@dataclass
class Square:
    """A number and its square."""

    n: int
    square: int
    day: dt.date | None
    tags: list[str] | None


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_files_of_every_format_in_and_out(run_job: Any, tmp_path: Path, form: str) -> None:
    """A stateless job reads and writes JSON Lines, CSV and Parquet; dates, lists and nulls come through."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=i) if i % 2 else None for i in range(10)]
    if form == "parquet":
        table = pa.table(
            {"n": list(range(10)), "day": days, "tags": [["a", "b"] if i else None for i in range(10)]}
        )
        pq.write_table(table, folder / "a.parquet")
    elif form == "csv":
        with (folder / "a.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["n", "day"])
            writer.writerows([i, days[i] or ""] for i in range(10))
    else:
        write_lines(
            folder,
            "a.jsonl",
            [{"n": i, "day": days[i] and str(days[i]), "tags": ["a", "b"]} for i in range(10)],
        )
    job = squares_job()
    out = "jsonl" if form == "csv" else form
    summary = run_job(job, {"numbers": f"{form}:{folder}", "squares": f"{out}:{tmp_path}/squares"})
    assert summary.dead_letters == 0
    expected = [i * i for i in range(10) for _ in range(i % 3)]
    if form == "parquet":
        found = pq.read_table(tmp_path / "squares")
        assert found.column("square").to_pylist() == expected
        assert found.column("day").to_pylist() == [days[i] for i in range(10) for _ in range(i % 3)]
    else:
        assert [r["square"] for r in read_lines(tmp_path / "squares")] == expected


def test_a_replay_writes_the_same_bytes(
    run_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same input in the same batches gives byte-identical files in every run.

    One file is so large that it passes from task to task in files in one run, and through Spark in the other.
    """
    carried: list[int] = []

    def remove(folder: str) -> None:
        carried.append(sum(file.stat().st_size for file in Path(folder).iterdir()) if folder else 0)
        remove_bodies(folder)

    monkeypatch.setattr(query, "remove_bodies", remove)
    rng = np.random.default_rng(7)
    for number in range(3):
        write_lines(
            tmp_path / "purchases",
            f"{number}.jsonl",
            [
                {
                    "customer": f"c{rng.integers(40 // (1 + number))}",
                    "shop": 1,
                    "amount": float(rng.integers(1, 9)),
                }
                for _ in range(500 if number < 2 else 20_000)
            ],
        )
    write_lines(tmp_path / "limits", "a.jsonl", [{"customer": f"c{i}", "most": 100.0} for i in range(40)])
    (tmp_path / "blocks").mkdir()
    written = []
    for run in range(2):
        bindings = {
            name: f"jsonl:{tmp_path}/{name}?max_files_per_batch=1"
            for name in ("purchases", "limits", "blocks")
        }
        bindings |= {name: f"jsonl:{tmp_path}/{run}/{name}" for name in ("totals", "alarms", "counts")}
        run_job(spending_job(), bindings, checkpoint=str(tmp_path / f"checkpoint-{run}"), parallelism=3)
        files = sorted((tmp_path / str(run)).rglob("*.jsonl"))
        written.append([(str(f.relative_to(tmp_path / str(run))), f.read_bytes()) for f in files])
        assert (max(carried) > 1 << 20) == (run == 0)
        carried.clear()
        monkeypatch.setattr(query, "folder_for_bodies", lambda _: "")
    assert written[0] == written[1]
    assert len(written[0]) >= 6
