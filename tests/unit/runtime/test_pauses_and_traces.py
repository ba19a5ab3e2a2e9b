"""Commands to steps and running jobs: pause and resume, trace, and clear caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from domains import TimedReading
from encoded_commands import commands, final_statuses
from limits_step import LimitsRun, Rule, Seen, command, limits_stream

import penstock as ps
from penstock.testing.batch_runner import BatchRunner


def test_a_paused_step_holds_its_data_in_order() -> None:
    """Nothing is lost; controls still apply; after resuming, data is processed as if it had just arrived."""
    run = LimitsRun()
    assert not run.run(command("pause"), readings=[TimedReading(1, 1)]).output("seen")
    assert not run.run(readings=[TimedReading(1, 2), TimedReading(2, 3)]).output("seen")
    run.run(command("set", {"offset": 4}), rules=[Rule("a", 2)])
    (trace,) = msgspec.json.decode(run.run(command("trace", to=None)).receipts[-1].details)
    assert trace["paused"]
    result = run.run(command("resume"), readings=[TimedReading(3, 5)])
    found = [(seen.room, seen.limit, seen.offset, seen.total) for seen in result.output("seen")]
    assert sorted(found) == [(1, 1, 4, 2), (1, 1, 4, 2), (2, 3, 4, 2), (3, 5, 4, 2)]
    assert not run.run().output("seen")


def test_a_trace_tells_what_a_step_is_and_did() -> None:
    """The trace follows the data of its micro-batch."""
    run = LimitsRun()
    run.run(command("set", {"offset": 3}), rules=[Rule("a", 2)])
    result = run.run(command("trace", to=None), readings=[TimedReading(room, 1) for room in range(7)])
    (trace,) = msgspec.json.decode(result.receipts[-1].details)
    assert (trace["step"], trace["keys"], trace["records"], trace["paused"]) == ("limits", 7, 7, False)
    assert trace["settings"] == {"offset": 3, "rules": 1}


@dataclass
class Count:
    limit: int
    times: int


class Counter(ps.ProcessFunction):
    """Counts the output of an earlier step, under another key."""

    times = ps.ValueState(int)
    step = ps.Setting(int, 1)

    def process_record(self, seen: Seen, ctx: ps.Context) -> Iterator[Count]:
        self.times.set((self.times.get() or 0) + self.step.get())
        yield Count(ctx.key, self.times.get() or 0)


def test_a_trace_goes_through_all_steps_behind_the_data() -> None:
    """Steps after other keyed steps are included: each reports, in order, what it has processed in this
    micro-batch.
    """
    job = ps.Job("chain", key_groups=8)
    limits_stream(job).key_by("total").process("counter", Counter()).sink_to("counts")
    runner = BatchRunner(job, parallelism=3)
    sent = commands(
        command("set", {"step": 5}, to="counter"),
        command("trace", to=None),
        command("pause", to=None),
        command("resume", to="limits"),
    )
    readings = [TimedReading(room, 1) for room in range(9)]
    result = runner.run({**sent, "readings": [("a", readings)], "rules": [("r", [Rule("x", 4)])]})
    traced = next(receipt for receipt in result.receipts if receipt.details)
    first, second = msgspec.json.decode(traced.details)
    assert (first["step"], first["level"]) == ("limits", 0)
    assert (first["keys"], first["records"], first["paused"]) == (9, 9, False)
    assert (second["step"], second["level"], second["keys"], second["paused"]) == ("counter", 1, 0, True)
    assert (first["settings"], second["settings"]) == ({"offset": 0, "rules": 1}, {"step": 5})
    result = runner.run(commands(command("resume", to=None), command("trace", id="2", to=None)))
    assert [count.times for count in result.output("counts")] == [5 * n for n in range(1, 10)]
    traced = next(receipt for receipt in result.receipts if receipt.details)
    _, second = msgspec.json.decode(traced.details)
    assert (second["keys"], second["records"], second["paused"]) == (1, 9, False)


def test_the_cache_is_cleared_in_every_worker() -> None:
    """The next worker to serve the slot notices it by itself."""
    run = LimitsRun()
    function = run.runner.plan.graph.steps()[0].function
    function.cached = 5
    run.run(command("clear-cache"))
    run.run(readings=[TimedReading(1, 1)])
    assert final_statuses(run.run(command("clear-cache", id="again"))) == {"again": "APPLIED"}
    assert function.cached == 0


def test_a_cache_that_cannot_be_cleared_degrades_the_command_alone() -> None:
    """The error concerns only this worker."""
    run = LimitsRun()
    run.runner.plan.graph.steps()[0].function.cached = 13
    cleared = run.runner.run(commands(command("clear-cache")))
    assert final_statuses(cleared) == {"clear-cache-None-None": "DEGRADED"}
    result = run.runner.run(commands(command("set-limit", 5, key=1)))
    assert final_statuses(result) == {"set-limit-1-5": "APPLIED"}
    assert all("thirteen" in letter.reason for letter in result.dead_letters)
