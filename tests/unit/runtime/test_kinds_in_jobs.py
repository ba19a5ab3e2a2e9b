"""Every kind of state in a whole job: commands, handlers, control records, columns, and unstorable values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from domains import Reading
from encoded_commands import command_to, commands

import penstock as ps
from penstock.errors import JobDefinitionError, SchemaError
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Seen:
    key: int
    text: str


@dataclass
class Mean:
    total: int
    count: int


class MeanOf(ps.AggregateFunction[int, Mean, float]):
    def create_accumulator(self) -> Mean:
        return Mean(0, 0)

    def add(self, value: int, accumulator: Mean) -> Mean:
        return Mean(accumulator.total + value, accumulator.count + 1)

    def get_result(self, accumulator: Mean) -> float:
        return accumulator.total / accumulator.count


class Keeping(ps.ProcessFunction):
    """Keeps all numbers in every kind of state. Numbers from 90 on cannot be stored."""

    items = ps.ListState(int)
    entries = ps.MapState(str, int)
    most = ps.ReducingState(int, max)
    mean = ps.AggregatingState(MeanOf())

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Seen]:
        number = 2**70 if reading.value == 90 else reading.value
        self.items.add(5)
        self.entries.put("five", 5)
        self.most.add(5)
        self.mean.add(5)
        if number == 91:
            self.entries.put("far", 2**70)
        if number == 92:
            self.most.add(2**70)
        if number == 93:
            self.mean.add(2**70)
        self.items.add(number)
        yield self._seen(ctx.key)

    def _seen(self, key: int) -> Seen:
        told = (self.items.get(), dict(self.entries.items()), self.most.get(), self.mean.get())
        return Seen(key, msgspec.json.encode(told).decode())

    @ps.on_command("tell")
    def tell(self, payload: None, ctx: ps.CommandContext) -> Iterator[Seen]:
        yield self._seen(ctx.key)

    @ps.on_command("forget")
    def forget(self, payload: bool, ctx: ps.CommandContext) -> None:
        self.items.clear()
        self.entries.remove("a")
        self.most.clear()
        if payload:
            raise ValueError("not really")

    @ps.on_command("all", scope="step")
    def all(self, payload: None, ctx: ps.CommandContext) -> None:
        for _ in ctx.keys():
            self.items.add(0)
        len(self.items)


def started() -> BatchRunner:
    job = ps.Job("keeping")
    job.data_stream("readings", schema=Reading).key_by("room").process("step", Keeping()).sink_to("seen")
    return BatchRunner(job, parallelism=2)


class Driver:
    """Runs micro-batches of commands."""

    def __init__(self) -> None:
        self.job = started()
        self._count = 0

    def send(self, kind: str, payload: Any, key: Any = None) -> Any:
        """Run a micro-batch of commands; return the last receipt, and the other reports."""
        self._count += 1
        result = self.job.run(commands(command_to("step", kind, payload, key=key, id=str(self._count))))
        return result.receipts[-1], [msgspec.json.decode(seen.text) for seen in result.output("seen")]

    def told(self, key: int) -> Any:
        return self.send("tell", None, key=key)[1][0]


SET = {"items": [1, 2], "entries": {"b": 1, "a": 2}, "most": 7, "mean": {"total": 9, "count": 2}}


def test_set_reaches_every_kind() -> None:
    """The value is a list, an object or pairs, a value, or an accumulator; null clears the state."""
    driver = Driver()
    assert driver.send("set", SET, key=[1, 2])[0].status == "APPLIED"
    assert driver.told(1) == driver.told(2) == [[1, 2], {"b": 1, "a": 2}, 7, 4.5]
    driver.send("set", {"entries": [["z", 1], ["y", 2]], "mean": None, "items": None}, key=1)
    assert driver.told(1) == [[], {"z": 1, "y": 2}, 7, None]
    assert driver.told(2) == [[1, 2], {"b": 1, "a": 2}, 7, 4.5]


def test_what_is_set_for_all_keys_is_no_object_that_they_share() -> None:
    """A number added for one key is not in the lists of others, nor of later keys."""
    driver = Driver()
    driver.send("set", {"items": [1]}, key=[1, 2])
    driver.send("set", SET, key="*")
    driver.job.run({"readings": [("r", [Reading(key, 6) for key in (1, 3, 1)])]})
    assert driver.told(1)[0] == [1, 2, 5, 6, 5, 6]
    assert driver.told(2)[0] == [1, 2]
    assert driver.told(3) == [[1, 2, 5, 6], {"b": 1, "a": 2, "five": 5}, 7, 14 / 3]
    driver.job.run({"readings": [("r", [Reading(4, 6)])]})
    assert driver.told(4)[0] == [1, 2, 5, 6]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"items": 5}, "Expected `array | null`"),
        ({"items": ["a"]}, "Expected `int`"),
        ({"entries": {"a": "b"}}, "Expected `int`"),
        ({"entries": 5}, "Expected `object | array | null`"),
        ({"most": "a"}, "Expected `int | null`"),
        ({"mean": 5}, "'mean' is aggregating, so it is set to an accumulator (Mean), not to a value"),
    ],
)
def test_what_does_not_fit_is_rejected(payload: Any, said: str) -> None:
    """With the reason."""
    receipt, _ = Driver().send("set", payload, key=1)
    assert receipt.status == "REJECTED"
    assert said in receipt.reason


def test_a_handler_that_raises_leaves_every_kind_as_it_was() -> None:
    """It is undone for the keys where it raises, and takes effect for others."""
    driver = Driver()
    driver.send("set", SET, key=[1, 2])
    assert driver.send("forget", True, key=1)[0].status == "DEGRADED"
    assert driver.told(1) == [[1, 2], {"b": 1, "a": 2}, 7, 4.5]
    assert driver.send("forget", False, key=1)[0].status == "APPLIED"
    assert driver.told(1) == [[], {"b": 1}, None, 4.5]


def test_code_for_the_whole_step_has_no_list() -> None:
    """It has states only inside the loop over all keys, which is undone entirely when it raises."""
    driver = Driver()
    driver.send("set", {"items": [1]}, key=[1, 2])
    receipt, _ = driver.send("all", None)
    assert receipt.status == "DEGRADED"
    assert "belongs to single keys" in receipt.reason
    assert driver.told(1)[0] == [1]


@pytest.mark.parametrize("number", [90, 91, 92, 93])
def test_a_record_that_adds_what_cannot_be_stored_leaves_no_trace(number: int) -> None:
    """It is a single dead letter, and the other records are processed."""
    driver = Driver()
    readings = [Reading(1, 1), Reading(1, number), Reading(1, 2), Reading(2, 3)]
    result = driver.job.run({"readings": [("r", readings)]})
    (letter,) = result.dead_letters
    assert letter.offset == 1
    assert "cannot hold" in letter.reason
    assert driver.told(1) == [[5, 1, 5, 2], {"five": 5}, 5, 5.0]
    assert driver.told(2) == [[5, 3], {"five": 5}, 5, 5.0]


def test_a_state_has_one_name_and_stands_in_the_class() -> None:
    """This holds for all kinds; an unstorable type is refused when the job is described."""
    shared = ps.ListState(int)

    class Twice(ps.ProcessFunction):
        one = shared
        two = shared

        def process_record(self, reading: Reading, ctx: ps.Context) -> None:
            pass

    class Late(ps.ProcessFunction):
        def __init__(self) -> None:
            self.entries = ps.MapState(str, int)

        def process_record(self, reading: Reading, ctx: ps.Context) -> None:
            pass

    class Unstorable(ps.ProcessFunction):
        entries = ps.MapState(str, object)

        def process_record(self, reading: Reading, ctx: ps.Context) -> None:
            pass

    def described(function: ps.ProcessFunction) -> None:
        ps.Job("job").data_stream("readings", schema=Reading).key_by("room").process("step", function)

    with pytest.raises(JobDefinitionError, match="uses one ListState under two names, 'one' and 'two'"):
        described(Twice())
    with pytest.raises(JobDefinitionError, match="'entries' on the instance"):
        described(Late())
    with pytest.raises(SchemaError, match="State 'entries' of step 'step'"):
        described(Unstorable())
