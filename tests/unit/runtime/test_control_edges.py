"""Control at its edges: poison of every sort, what handlers may do where, and what keys, tasks and stamps agree on."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import pytest

import penstock as ps
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Reading:
    key: int
    value: int = 0


@dataclass
class Label:
    key: int
    v: int


@dataclass
class Seen:
    key: int
    limit: int | None
    label: int | None
    off: int | None


class Judge(ps.ConnectedProcessFunction):
    side_outputs: ClassVar = {"alarms": Reading}
    limit = ps.ValueState(int)
    label = ps.ValueState(int)
    off = ps.Setting(int, 0)
    temp = ps.TemporalState(int)

    @ps.on_command("warn")
    def warn(self, x: int, ctx):
        self.limit.set(x)
        ctx.side_output("alarms", Reading(ctx.key, x))

    @ps.on_command("answer", scope="step")
    def answer(self, x: int, ctx):
        ctx.reply(x)

    @ps.on_command("tell")
    def tell(self, x: int, ctx) -> Iterator[Seen]:
        yield Seen(ctx.key, x, None, None)

    @ps.on_command("go", scope="step")
    def go(self, x: int, ctx):
        self.off.set(x)
        for key in ctx.keys():
            if key == 3:
                raise ValueError("three")

    def process_control(self, c: Label, ctx):
        self.label.set(c.v)
        yield Seen(c.key, c.v, None, None)

    def process_record(self, r: Reading, ctx) -> Iterator[Seen]:
        if self.limit.get() is None:
            self.limit.set(0)
        yield Seen(r.key, self.limit.get(), self.label.get(), self.off.get())


class Copy(ps.ProcessFunction):
    def process_record(self, r: Seen, ctx) -> Iterator[Seen]:
        yield r


@dataclass
class Timed:
    key: int
    at: dt.datetime


class Offset(ps.ProcessFunction):
    off = ps.Setting(int, 0)

    def process_record(self, record: Timed, ctx) -> Iterator[Reading]:
        yield Reading(record.key)


def made(partitions=2, stamp=False):
    j = ps.Job("j", key_groups=8)
    d = j.data_stream("d", schema=Reading)
    c = j.control_stream("c", schema=Label, version="v")
    a = d.key_by("key").connect(c.key_by("key")).process("a", Judge())
    a.side_output("alarms").sink_to("alarms")
    if stamp:
        a = a.stamp_control_version()
    a.sink_to("out")
    if not stamp:
        a.key_by("key").process("b", Copy()).sink_to("b-out")
    return BatchRunner(j, parallelism=partitions)


def cmd(**k):
    return msgspec.json.encode({"id": "x", **k})


def run(j, *commands, d=(), c=()):
    return j.run({n: [("p", list(v))] for n, v in (("commands", commands), ("d", d), ("c", c)) if v})


ALL, ONE, STEP = {"step": "a", "all": True}, {"step": "a", "key": 1}, {"step": "a"}


def test_a_refused_job_command_has_one_story_not_one_for_each_step():
    r = run(made(), cmd(kind="trace", expires_at="2020-01-01T00:00:00Z"))
    assert [x.status for x in r.receipts] == ["ACCEPTED", "REJECTED"]


DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id":"x","kind":"pause","payload":' + DEEP + b"}",
        b'{"id":"x","kind":"set","target":{"step":"a","key":' + DEEP + b'},"payload":{"limit":1}}',
        b'{"id":"\xff","kind":"pause"}',
        b'{"id":"x","kind":"set","target":{"step":"a","key":1},"payload":{"\xff":1}}',
        b'{"id":"x","kind":"pause","version":18446744073709551616}',
        b'{"id":"x","kind":"set","target":{"step":"a"},"payload":{"off":18446744073709551616}}',
        b'{"id":"x","kind":"answer","target":{"step":"a"},"payload":18446744073709551616}',
    ],
    ids=[
        "deep payload",
        "deep key",
        "utf-8 id",
        "utf-8 payload",
        "version 2**64",
        "setting 2**64",
        "reply 2**64",
    ],
)
def test_poison_never_stops_the_job(raw):
    """Whatever it would raise, it is refused, or its handler is to blame."""
    assert run(made(), raw).receipts[-1].status in ("REJECTED", "DEGRADED")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a\0b", None),
        ("~nouser/x", None),
        ("x.json", b'{"off": "\xff"}'),
        ("y.yaml", b'"off": &a [*a]\n'),
        ("z.yaml", b'"off": "\\ud800"\n'),
    ],
)
def test_a_file_that_cannot_be_used_is_rejected(name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
        name = str(tmp_path / name)
    elif not name.startswith("~"):
        name = "/" + name
    j = made()
    j.fetched_folder = str(tmp_path / "kept")
    j.allow_read = ["/"]
    assert (
        run(j, cmd(kind="reload-config", target=STEP, payload={"from": name})).receipts[-1].status
        == "REJECTED"
    )


def test_an_effective_time_beyond_utc_is_rejected():
    """It could not be compared with any other."""

    job = ps.Job("timed", key_groups=8)
    timed = job.data_stream("d", schema=Timed, event_time="at")
    timed.key_by("key").process("a", Offset()).sink_to("out")
    at = "0001-01-01T00:00:00+14:00"
    result = run(BatchRunner(job), cmd(kind="set", target=STEP, payload={"off": 1}, effective_at=at))
    assert result.receipts[-1].status == "REJECTED"


def test_a_standing_command_may_use_a_side_output():
    j = made()
    run(j, cmd(kind="warn", target=ALL, payload=7))
    r = run(j, d=[Reading(1)])
    assert (r.output("out")[0].limit, r.dead_letters) == (7, [])


def test_a_key_that_a_command_names_first_gets_what_all_got():
    j = made()
    run(
        j,
        cmd(kind="set", target=ALL, payload={"limit": 7}),
        cmd(id="y", kind="set", target=ONE, payload={"label": 3}),
    )
    assert [o.limit for o in run(j, d=[Reading(1)]).output("out")] == [7]


def test_settings_are_the_same_in_all_tasks_after_a_step_handler_raised_for_one_key():
    j = made(3)
    run(j, d=[Reading(k) for k in range(6)])
    run(j, cmd(kind="go", target=STEP, payload=9))
    assert len({o.off for o in run(j, d=[Reading(k) for k in range(6)]).output("out")}) == 1


def test_data_that_was_held_sees_the_keyed_controls_of_the_resuming_batch():
    """All controls of a micro-batch come before any data, whenever that came."""
    j = made()
    run(j, cmd(kind="pause", target=STEP), d=[Reading(1)])
    assert [
        o.label
        for o in run(j, cmd(id="r", kind="resume", target=STEP), c=[Label(1, 6)]).output("out")
        if o.off is not None
    ] == [6]


def test_a_control_record_is_stamped_with_its_own_version_like_a_command():
    """What a control makes is made under its own version."""
    j = made(stamp=True)
    r = run(j, c=[Label(1, 6), Label(1, 7)])
    s = run(j, cmd(kind="tell", target=ONE, payload=8, version=8))
    assert [o.control_version for o in (*r.output("out"), *s.output("out"))] == [6, 7, 8]


def test_a_trace_of_a_stamped_step_shows_users_settings_only():
    r = run(made(stamp=True), cmd(kind="trace"))
    assert msgspec.json.decode(r.receipts[-1].details)[0]["settings"] == {"off": 0}


def test_many_keys_in_one_command_take_linear_time():
    """A command of a megabyte names some 150,000: eight times as many take no more than some eight times as long."""

    def seconds(count: int) -> float:
        j = made()
        j.max_command_bytes = 1 << 20
        begin = time.process_time()
        run(j, cmd(kind="set", target={"step": "a", "keys": list(range(count))}, payload={"limit": 1}))
        return time.process_time() - begin

    seconds(10)
    assert min(seconds(40_000) for _ in range(3)) < 16 * min(seconds(5_000) for _ in range(3))


class Breaker(ps.ProcessFunction):
    seen = ps.ValueState(int)
    off = ps.Setting(int, 0)

    @ps.on_command("after", scope="step")
    def after(self, x: int, ctx):
        for key in ctx.keys():
            if key == 3:
                raise ValueError("three")
        self.off.set(x)

    @ps.on_command("broken", scope="step")
    def broken(self, x: int, ctx):
        self.off.set(x)
        for _ in ctx.keys():
            break
        raise ValueError("for the whole step, in every task")

    def process_record(self, r: Reading, ctx) -> Iterator[Reading]:
        self.seen.set(1)
        yield Reading(r.key, self.off.get())


@pytest.mark.parametrize(("kind", "keys"), [("after", range(6)), ("broken", [1])])
def test_settings_are_the_same_in_all_tasks(kind, keys):
    """Behind a loop over keys, which may end otherwise in each task, they cannot be changed."""
    j = ps.Job("d", key_groups=8)
    j.data_stream("d", schema=Reading).key_by("key").process("a", Breaker()).sink_to("out")
    j = BatchRunner(j, parallelism=3)
    run(j, d=[Reading(k) for k in keys])
    run(j, cmd(kind=kind, target=STEP, payload=9))
    assert len({o.value for o in run(j, d=[Reading(k) for k in range(12)]).output("out")}) == 1
