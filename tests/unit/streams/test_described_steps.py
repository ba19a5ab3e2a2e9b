"""Steps: which functions and states they take, and the errors for misfits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from described_streams import Measured, Plain, Steered, Streams, UnstorableState, gives_none, refused

import penstock as ps


class Unannotated(ps.ProcessFunction):
    def process_record(self, record, ctx):  # type: ignore[no-untyped-def]
        yield record


class Empty(ps.ProcessFunction):
    pass


class NoControl(ps.ConnectedProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Measured]:
        yield record


class UnstorableItems(Plain):
    waiting = ps.OperatorListState(complex)


class SharedState(Plain):
    first = second = ps.ValueState(int)


class InstanceState(Plain):
    def __init__(self) -> None:
        self.memory = ps.ValueState(int)


class Counting(Plain):
    count = ps.ValueState(int)


class Gathering(Plain):
    waiting = ps.OperatorListState(int)


class ToKeys(Gathering):
    @ps.on_command("flush")
    def flush(self, payload: None, ctx: ps.CommandContext) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "function", "parts"),
    [
        ("s", Plain, ("'s'", "class Plain", "Plain()")),
        ("s", gives_none, ("'s' needs a ProcessFunction, not function",)),
        (Plain(), "s", ("needs a ProcessFunction, not str",)),
        ("s", Steered(), ("'s' has a Steered", "connect one first")),
        ("s", Empty(), ("Empty of step 's'", "process_record nor process_batch")),
        ("s", Unannotated(), ("Step 's' does not say what it emits", "output=MyRecord")),
    ],
    ids=["a class", "a plain function", "swapped", "a connected function", "nothing overridden", "no output"],
)
def test_a_step_takes_a_process_function(
    streams: Streams, name: Any, function: Any, parts: tuple[str, ...]
) -> None:
    """It must be an instance that overrides a callback, and declares its output."""
    with refused(*parts):
        streams.keyed.process(name, function)


def test_a_step_emits_records(streams: Streams) -> None:
    """Their schema must be valid."""
    with refused("Step 's'", "int is not a schema"):
        streams.keyed.process("s", Plain(), output=int)


def test_a_connected_step_takes_a_connected_function(streams: Streams) -> None:
    """The message names both classes."""
    with refused("'s' needs a ConnectedProcessFunction, not Plain"):
        streams.connected.process("s", Plain())  # type: ignore[arg-type]


def test_a_connected_function_processes_control_records(streams: Streams) -> None:
    """Otherwise it need not be connected."""
    with refused("NoControl of step 's'", "process_control"):
        streams.connected.process("s", NoControl())


def test_a_step_without_a_key_takes_a_connected_function_only_when_connected(streams: Streams) -> None:
    """This is the same as for a step with a key."""
    with refused("'s' has a Steered", "connect one first"):
        streams.data.process("s", Steered())


@pytest.mark.parametrize(
    ("stream", "function", "parts"),
    [
        ("keyed", UnstorableState, ("State 'memory' of step 's'", "complex")),
        ("data", UnstorableItems, ("State 'waiting' of step 's'", "complex")),
        ("keyed", SharedState, ("Step 's'", "'first' and 'second'", "declare one for each")),
        ("keyed", InstanceState, ("Step 's'", "'memory' on the instance", "class InstanceState")),
    ],
)
def test_a_state_is_declared_once_in_the_class(
    streams: Streams, stream: str, function: type[Plain], parts: tuple[str, ...]
) -> None:
    """Its type must be storable, with a key or without one."""
    with refused(*parts):
        getattr(streams, stream).process("s", function())


@pytest.mark.parametrize(
    ("stream", "function", "parts"),
    [
        ("data", Counting, ("ValueState 'count'", "readings.key_by(...)", "ps.OperatorListState")),
        ("keyed", Gathering, ("OperatorListState 'waiting'", "ps.ListState", "readings.process(...)")),
        ("data", ToKeys, ("ToKeys.flush", """on_command('flush', scope="step")""")),
    ],
)
def test_states_and_handlers_of_keys_need_a_key_and_others_none(
    streams: Streams, stream: str, function: type[Plain], parts: tuple[str, ...]
) -> None:
    """The message says what the step has, and the alternative."""
    with refused(f"Step 's' has {'no' if stream == 'data' else 'a'} key", *parts):
        getattr(streams, stream).process("s", function())
