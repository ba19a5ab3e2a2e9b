"""Commands and data under interleaving, repetition, reordering and crashes equal a model in plain Python."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from domains import TimedReading
from encoded_commands import command_to
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.control.receipts import FINAL
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import NOW, BatchRunner

KEYS = range(5)
KINDS = ("limit", "label", "offset", "raise")


@dataclass
class Seen:
    key: int
    number: int
    limit: int | None
    label: int | None
    offset: int


class Step(ps.ProcessFunction):
    """Emits the present state for each reading."""

    limit = ps.ValueState(int)
    label = ps.TemporalState(int)
    last = ps.ValueState(int)
    offset = ps.Setting(int, 0)

    @ps.on_command("limit")
    def set_limit(self, value: int, ctx: ps.CommandContext) -> None:
        self.limit.set(value)

    @ps.on_command("label")
    def set_label(self, value: int, ctx: ps.CommandContext) -> None:
        self.label.set(value)

    @ps.on_command("raise", new_keys=False)
    def fail(self, value: int, ctx: ps.CommandContext) -> None:
        self.limit.set(value)
        if ctx.key % 2 == 0:
            raise ValueError("even")

    def process_record(self, reading: TimedReading, ctx: ps.Context) -> Iterator[Seen]:
        self.last.set(reading.value)
        yield Seen(reading.room, reading.value, self.limit.get(), self.label.get(), self.offset.get())


def job() -> ps.Job:
    made = ps.Job("model", key_groups=4)
    readings = made.data_stream("readings", schema=TimedReading, event_time="at")
    readings.key_by("room").process("step", Step()).sink_to("seen")
    return made


@dataclass
class Sent:
    """A command in the model. `keys` None is all keys, () the step."""

    id: str
    kind: str
    keys: tuple[int, ...] | None
    value: int
    version: int | None
    effective: int | None

    def encoded(self) -> bytes:
        key: Any = "*"
        if self.keys is not None:
            key = None if not self.keys else self.keys[0] if len(self.keys) == 1 else list(self.keys)
        kind, payload = ("set", {"offset": self.value}) if self.kind == "offset" else (self.kind, self.value)
        more = {} if self.effective is None else {"effective_at": hour(self.effective).isoformat()}
        return command_to("step", kind, payload, key=key, id=self.id, version=self.version, **more)


def hour(number: int) -> dt.datetime:
    return NOW + dt.timedelta(hours=number)


Timeline = dict[int, int | None]


@dataclass
class Model:
    """The model: each key's own values, every id once, versions only forward."""

    ids: set[str] = field(default_factory=set)
    versions: dict[tuple[str, Any], int] = field(default_factory=dict)
    keys: set[int] = field(default_factory=set)
    limits: dict[int, int] = field(default_factory=dict)
    labels: dict[int, Timeline] = field(default_factory=dict)
    offsets: Timeline = field(default_factory=dict)
    to_all: list[Sent] = field(default_factory=list)

    def command(self, sent: Sent) -> str | None:
        """Return the final status; None for a duplicate."""
        if sent.id in self.ids:
            return None
        self.ids.add(sent.id)
        kind = "set" if sent.kind == "offset" else sent.kind
        scope = "all" if sent.keys is None else "step" if not sent.keys else "keys"
        if scope != "keys" and not self._is_new((kind, scope), sent.version):
            return "REJECTED"
        if scope == "step":
            self.offsets[-99 if sent.effective is None else sent.effective] = sent.value
            return "APPLIED"
        found = sorted(self.keys) if sent.keys is None else sent.keys
        done = [self._for_key(sent, kind, key) for key in found]
        if sent.keys is None and sent.kind != "raise":
            self.to_all.append(sent)
        if "raised" in done:
            return "DEGRADED"
        return "REJECTED" if sent.keys is not None and set(done) == {"stale"} else "APPLIED"

    def _is_new(self, what: tuple[str, Any], version: int | None) -> bool:
        if version is None:
            return True
        if version < self.versions.get(what, -1):
            return False
        self.versions[what] = version
        return True

    def _for_key(self, sent: Sent, kind: str, key: int) -> str:
        if sent.version is not None:
            newest = max(self.versions.get((kind, key), -1), self.versions.get((kind, "all"), -1))
            if sent.version < newest:
                return "stale"
        if sent.keys is not None:
            self._apply_standing(key)
        if sent.kind == "raise" and key % 2 == 0:
            return "raised"
        if sent.version is not None and sent.keys is not None:
            self.versions[kind, key] = sent.version
        self._apply(sent, key)
        return "applied"

    def _apply_standing(self, key: int) -> None:
        """Give a new key what all keys got."""
        if key not in self.keys:
            for sent in self.to_all:
                self._apply(sent, key)

    def _apply(self, sent: Sent, key: int) -> None:
        self.keys.add(key)
        if sent.kind == "label":
            self.labels.setdefault(key, {})[-99 if sent.effective is None else sent.effective] = sent.value
        else:
            self.limits[key] = sent.value

    def reading(self, reading: TimedReading) -> Seen:
        self._apply_standing(reading.room)
        self.keys.add(reading.room)
        at = (reading.at - NOW) // dt.timedelta(hours=1)
        return Seen(
            reading.room,
            reading.value,
            self.limits.get(reading.room),
            as_of(self.labels.get(reading.room, {}), at),
            as_of(self.offsets, at) or 0,
        )


def as_of(timeline: Timeline, at: int) -> int | None:
    """Return the temporal join, in its simplest form."""
    found = [time for time in timeline if time <= at]
    return timeline[max(found)] if found else None


@st.composite
def commands(draw: st.DrawFn) -> Sent:
    kind = draw(st.sampled_from(KINDS))
    keys: Any = ()
    if kind != "offset":
        keys = draw(
            st.none() | st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True).map(tuple)
        )
    effective = draw(st.none() | st.integers(-2, 2)) if kind in ("label", "offset") else None
    return Sent(
        f"{kind}-{draw(st.integers(0, 12))}",
        kind,
        keys,
        draw(st.integers(0, 99)),
        draw(st.none() | st.integers(0, 4)),
        effective,
    )


batches = st.lists(
    st.tuples(
        st.lists(commands(), max_size=5),
        st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-3, 3)), max_size=6),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def inputs_of(sent: list[Sent], made: list[TimedReading], chance: random.Random) -> Any:
    """Return the input of a micro-batch or round. Commands may come over several partitions; their positions
    order them.
    """
    half = chance.randint(0, len(sent))
    commands = [
        (name, [s.encoded() for s in part]) for name, part in (("a", sent[:half]), ("b", sent[half:])) if part
    ]
    return {"commands": commands, "readings": [("r", made)] if made else []}


def check_with_model(outcome: BatchOutcome, sent: list[Sent], made: list[TimedReading], model: Model) -> None:
    """Check that commands end as in the model, and each reading sees the model's values."""
    expected = [(s.id, status) for s in sent if (status := model.command(s)) is not None]
    finals = [(r.id, r.status) for r in outcome.receipts if r.status in FINAL]
    assert finals == expected
    assert sorted(outcome.output("seen"), key=lambda seen: seen.number) == [model.reading(r) for r in made]


def numbered(plan: Any) -> Iterator[tuple[list[Sent], list[TimedReading], bool]]:
    """Return the batches of a plan with their readings."""
    numbers = itertools.count()
    for sent, readings, crashes in plan:
        yield sent, [TimedReading(key, next(numbers), hour(at)) for key, at in readings], crashes


@given(batches, st.integers(1, 4), st.integers(0, 1000))
@examples(60)
def test_commands_and_data_in_any_order_equal_the_model(plan: Any, partitions: int, seed: int) -> None:
    """This holds over any number of tasks; a crashed micro-batch is replayed in another order, with the same
    bytes.
    """
    running, model, chance = BatchRunner(job(), parallelism=partitions), Model(), random.Random(seed)
    for sent, made, crashes in numbered(plan):
        inputs = inputs_of(sent, made, chance)
        crashed = running.copy()
        if crashes:
            lost = crashed.run(inputs, seed=chance.randint(0, 99))
        result = running.run(inputs, seed=chance.randint(0, 99))
        if crashes:
            assert (lost.data, lost.receipts) == (result.data, result.receipts)
        check_with_model(result, sent, made, model)


@given(batches, st.integers(1, 4), st.integers(0, 1000), st.integers(1, 3))
@examples(40)
def test_rounds_of_real_time_equal_the_model(plan: Any, partitions: int, seed: int, rounds: int) -> None:
    """Each batch is a round; a crashed interval of several rounds is replayed, with the same bytes."""
    running, chance = BatchRunner(job(), parallelism=partitions, in_real_time=True), random.Random(seed)
    model, all_rounds = Model(), list(numbered(plan))
    for start in range(0, len(all_rounds), rounds):
        interval = all_rounds[start : start + rounds]
        inputs = [inputs_of(sent, made, chance) for sent, made, _ in interval]

        def run(runner: BatchRunner, inputs: list[Any] = inputs) -> list[BatchOutcome]:
            last = len(inputs) - 1
            return [
                runner.run(one, seed=chance.randint(0, 99), stores=n == last) for n, one in enumerate(inputs)
            ]

        crashed = running.copy()
        lost = run(crashed) if any(crashes for _, _, crashes in interval) else None
        results = run(running)
        if lost is not None:
            assert [(r.data, r.receipts) for r in lost] == [(r.data, r.receipts) for r in results]
            assert crashed.states == running.states
            # New workers continue from stored state.
            running = crashed.copy()
        for result, (sent, made, _) in zip(results, interval, strict=True):
            check_with_model(result, sent, made, model)
