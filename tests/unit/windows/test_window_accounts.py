"""Window accounting: the fate of each record is counted in each micro-batch, whatever user code does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from encoded_commands import command_to
from hypothesis import example, given
from hypothesis import strategies as st

import penstock as ps
from penstock.base.instants import MILLISECOND
from penstock.engine.slot import SlotHeader
from penstock.state.slot_tables import SlotTables
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.memory_entries import MemoryEntries
from penstock.testing.saved_states import rescale_runner

TOPIC = ("0", "1")
STEP, STREAM = "windows", "clicks"


@dataclass
class Click:
    """A click; `whim` selects what user code does with it."""

    user: str | None
    at: int | None
    number: int
    whim: int


@dataclass
class Pane:
    numbers: list[int]


# The numbers of the records that functions have seen in windows; noted before the functions raise.
SEEN: set[int] = set()


class Whimsical(ps.WindowFunction):
    """Raises for some windows, emits values that do not fit for others."""

    window_state = int
    side_outputs = {"aside": Pane}

    def process(self, user: str, clicks: Sequence[Click], ctx: ps.WindowContext) -> Iterable[Pane]:
        numbers = [click.number for click in clicks]
        SEEN.update(numbers)
        whims = {click.whim for click in clicks}
        if 6 in whims:
            raise ValueError("a window with a six")
        ctx.side_output("aside", Pane(numbers) if 7 not in whims else Pane("seven"))  # type: ignore[arg-type]
        yield Pane(numbers)
        if 8 in whims:
            ctx.state = "eight"  # type: ignore[assignment]


class Merging(Whimsical):
    """The same function without per-window state, so that setting it raises."""

    window_state = None


class Counted(ps.AggregateFunction[Click, list[int], int]):
    """Collects numbers; raises for some clicks, and makes unstorable values of others."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, click: Click, accumulator: list[int]) -> list[int]:
        if click.whim == 6:
            raise ValueError("a six")
        if click.whim == 7:
            return [*accumulator, f"{click.number}"]  # type: ignore[list-item]
        return [*accumulator, click.number]

    def get_result(self, accumulator: list[int]) -> int:
        # A window with an unstorable text may fire before it is stored. Whether the click counts or is a dead
        # letter then depends on whether the window stays.
        SEEN.update(map(int, accumulator))
        return len(accumulator)

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [*a, *b]


class AtWill(ps.WindowAssigner):
    """Assigns a click to one window, two or none, or raises."""

    def assign(self, click: Click, time_ms: int) -> list[ps.Window]:
        if click.whim == 9:
            raise ValueError("a nine")
        start = time_ms - time_ms % 10
        return [ps.Window(start, start + 10 * (one + 1)) for one in range(click.whim % 3)]


class Grudging(ps.Trigger):
    """Fires at the end of a window, and at once for some clicks; raises for others, after setting timers."""

    state_type = int
    can_merge = True

    def on_record(
        self, click: Click, time_ms: int, window: ps.Window, ctx: ps.TriggerContext
    ) -> ps.TriggerResult:
        ctx.register_event_timer(window.max_timestamp)
        ctx.state = (ctx.state or 0) + 1
        if click.whim == 5:
            raise ValueError("a five")
        return ps.TriggerResult.FIRE if click.whim == 4 else ps.TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: ps.Window, ctx: ps.TriggerContext) -> ps.TriggerResult:
        return ps.TriggerResult.FIRE

    def on_processing_time(self, time_ms: int, window: ps.Window, ctx: ps.TriggerContext) -> ps.TriggerResult:
        return ps.TriggerResult.FIRE

    def on_merge(self, window: ps.Window, ctx: ps.TriggerContext) -> None:
        ctx.state = sum(state or 0 for state in ctx.merged_states)
        ctx.register_event_timer(window.max_timestamp)


def keyed_at_will(click: Click) -> str:
    if click.whim == 10:
        raise ValueError("a ten")
    assert click.user is not None
    return click.user


ASSIGNERS: dict[str, Any] = {
    "tumbling": lambda: ps.TumblingWindows("10ms"),
    "sliding": lambda: ps.SlidingWindows("10ms", "4ms"),
    "gaps": lambda: ps.SlidingWindows("3ms", "7ms"),
    "session": lambda: ps.SessionWindows("6ms"),
    "count": lambda: ps.CountWindows(3),
    "clock": lambda: ps.TumblingWindows("10ms", time="processing"),
    "at will": AtWill,
}
WAYS: dict[str, Any] = {
    "all": lambda windows, function: windows.process(STEP, function, output=Pane),
    "folded": lambda windows, function: windows.aggregate(STEP, Counted()),
    "grudging": lambda windows, function: windows.trigger(Grudging()).process(STEP, function, output=Pane),
    "columns": lambda windows, function: windows.sum(STEP, "number"),
}


def described(assigner: str, way: str, key: Any) -> ps.Job:
    job = ps.Job("j", key_groups=3)
    strategy = ps.Watermarks.bounded("3ms").with_idleness("20ms").with_max_ahead("1d")
    clicks = job.data_stream(STREAM, schema=Click, event_time="at", watermarks=strategy)
    windows = clicks.key_by(key).window(ASSIGNERS[assigner]()).allowed_lateness("4ms")
    found = WAYS[way](windows, Merging() if assigner == "session" else Whimsical())
    found.sink_to("found")
    found.side_output("late").sink_to("late")
    return job


CLICKS = st.builds(
    Click,
    user=st.sampled_from(["a", "b", "c", None]),
    at=st.one_of(st.integers(0, 14), st.sampled_from([None, 10**14])),
    number=st.just(0),
    whim=st.integers(0, 10),
)
STAGES = st.lists(
    st.tuples(
        st.lists(st.tuples(CLICKS, st.sampled_from(TOPIC)), max_size=7),
        st.integers(0, 12),
        st.sampled_from(["go on", "size", "pause", "resume", "rescale"]),
    ),
    min_size=2,
    max_size=6,
)


def command(number: int, what: str) -> bytes:
    kind, payload = ("set", {"size": f"{5 + number}ms"}) if what == "size" else (what, None)
    return command_to(STEP, kind, payload, id=f"{number}")


def numbers_of(result: BatchOutcome, stream: str) -> list[int]:
    """Return the numbers of the clicks that became dead letters."""
    return [
        msgspec.json.decode(letter.raw)["number"] for letter in result.dead_letters if letter.stream == stream
    ]


@example(
    stages=[
        ([], 0, "go on"),
        ([(Click("a", 0, 0, 7), "0"), (Click("a", 5, 0, 0), "0"), (Click("a", 5, 0, 0), "1")], 0, "go on"),
    ],
    assigner="at will",
    way="folded",
    key="user",
)
@given(
    stages=STAGES,
    assigner=st.sampled_from(sorted(ASSIGNERS)),
    way=st.sampled_from(sorted(WAYS)),
    key=st.sampled_from(["user", keyed_at_will]),
)
def test_the_accounts_of_windows_balance_in_each_micro_batch(
    stages: Any, assigner: str, way: str, key: Any
) -> None:
    """Each record is in windows, late, without a window, or a dead letter, and never two of these.

    The job counts the first three. The test verifies the counts from the records: those that functions have
    seen when time has ended, those that left as late, and those that became dead letters.
    """
    if assigner == "count" and way == "columns":
        way = "all"
    job = described(assigner, way, key)
    at_work = BatchRunner(job, parallelism=2, partitions={STREAM: TOPIC})
    SEEN.clear()
    accounts = {"in_windows": 0, "late": 0, "without_window": 0}
    dead: list[int] = []
    late: list[int] = []
    count = waiting = 0
    for stage, (drawn, passed, what) in enumerate([*stages, ([], 30, "resume"), ([], 0, "end")]):
        clicks: dict[str, list[Click]] = {name: [] for name in TOPIC}
        for click, partition in drawn:
            at = None if click.at is None else 8 * stage + click.at
            clicks[partition].append(Click(click.user, at, count, click.whim))
            count += 1
        inputs: dict[str, Any] = {STREAM: [(name, found) for name, found in clicks.items() if found]}
        if what == "rescale" and not waiting:
            at_work = rescale_runner(at_work, 1 + stage % 3)
        elif what in ("pause", "resume") or (what == "size" and assigner in ("tumbling", "gaps")):
            inputs["commands"] = [("c", [command(stage, what)])]
        at_work.now += passed * MILLISECOND
        result = at_work.run(inputs, ends=what == "end")
        assert all(receipt.status != "REJECTED" for receipt in result.receipts)
        found = {kind: result.counts(kind).get(STEP, 0) for kind in accounts}
        letters = numbers_of(result, STREAM)
        waits = is_paused(at_work)
        if waits:
            # Held records are processed when the step is resumed.
            before, waiting = waiting, waiting + len(drawn) - len(letters)
            assert waiting >= before
            assert not any(found.values())
        else:
            assert result.counts("in").get(STREAM, 0) == len(drawn)
            assert sum(found.values()) + len(letters) == len(drawn) + waiting
            waiting = 0
        for kind, number in found.items():
            accounts[kind] += number
        dead += letters
        late += [click.number for click in result.output("late")]
    assert waiting == 0
    assert len(dead) == len(set(dead))
    assert len(late) == len(set(late)) == accounts["late"]
    assert sum(accounts.values()) + len(dead) == count
    assert not {*dead} & {*late}
    if way == "columns":
        return
    # A record whose window fires and raises was seen, and is a dead letter.
    seen = SEEN - {*dead}
    assert not seen & {*late}
    # An incomplete count is never emitted.
    assert len(seen) == accounts["in_windows"] or (assigner == "count" and len(seen) < accounts["in_windows"])


def is_paused(job: BatchRunner) -> bool:
    (node,) = job.plan.graph.steps()
    schema = job.plan.core(node).state_schema
    return any(
        SlotHeader.of(SlotTables(schema, MemoryEntries(stored)).header).paused
        for stored in job.states.values()
    )
