"""What goes into a job harness: streams and their partitions, commands, time; and what is refused."""

from __future__ import annotations

import datetime as dt

import pytest
from warm_rooms_job import NOON, Alarm, Limit, Reading, described, reading

import penstock as ps
from penstock.errors import (
    CommandRefusedError,
    JobDefinitionError,
    SchemaError,
    StateError,
    StrictModeError,
    UnknownIdError,
)
from penstock.testing import JobHarness


@pytest.fixture
def run() -> JobHarness:
    """The job at noon, with two tasks."""
    return JobHarness(described(), parallelism=2, now=NOON)


def test_a_whole_job_runs_step_by_step(run: JobHarness) -> None:
    """A control record, data, and a timer that is due when the clock says so."""
    run.send("limits", Limit("hall", 25.0), Limit("attic", 40.0))
    run.send("readings", [reading("hall", 26.0), reading("attic", 30.0)])
    outcome = run.run_batch()
    assert sorted(limit.room for limit in outcome.output("heard")) == ["attic", "hall"]
    assert outcome.output("alarms") == []
    run.advance_clock("9s")
    assert run.run_batch().outputs == {}
    run.advance_clock(dt.timedelta(seconds=1))
    assert run.run_batch().outputs == {"alarms": [Alarm("hall", "warm")]}
    assert run.output("alarms") == [Alarm("hall", "warm")]
    assert run.state("watch") == {
        "attic": {"limit": 40.0, "readings": 1},
        "hall": {"limit": 25.0, "readings": 1},
    }
    assert run.state("watch", key="cellar") is None


def test_windows_fire_by_the_watermark_and_at_the_end(run: JobHarness) -> None:
    """Which records tell, or the test; what is open then fires when the input ends."""
    run.send("readings", reading("hall", 20.0), reading("hall", 22.0, second=30))
    run.run_batch()
    assert run.output("means") == []
    run.advance_watermark("readings", NOON + dt.timedelta(minutes=1))
    run.run_batch()
    assert [(mean.window_start, mean.value) for mean in run.output("means")] == [(NOON, 21.0)]
    run.send("readings", reading("hall", 30.0, second=61))
    run.finish()
    assert [mean.value for mean in run.output("means")] == [21.0, 30.0]


def test_the_slowest_partition_holds_the_watermark() -> None:
    """Of a stream that goes by partitions, as a topic does; of others all is one."""
    by_partition = JobHarness(described(), partitions={"readings": 2})
    as_one = JobHarness(described())
    for run in (by_partition, as_one):
        run.send("readings", reading("hall", 20.0), partition=0)
        run.send("readings", reading("hall", 22.0, second=90), partition=1)
        run.run_batch()
    assert [len(run.output("means")) for run in (by_partition, as_one)] == [0, 1]
    by_partition.advance_watermark("readings", NOON + dt.timedelta(minutes=2), partition=0)
    by_partition.run_batch()
    assert [mean.value for mean in by_partition.output("means")] == [20.0]


def test_a_stream_of_lines_takes_text() -> None:
    """A record of a single field of text is the text."""
    job = ps.Job("lines")
    job.data_stream("lines", schema="line STRING").filter(lambda record: record.line != "").sink_to("kept")
    run = JobHarness(job)
    run.send("lines", "one", "", b"two", {"line": "three"})
    run.run_batch()
    assert [record.line for record in run.output("kept")] == ["one", "two", "three"]


def test_a_handler_that_raises_gives_a_dead_letter_or_ends_a_strict_run(run: JobHarness) -> None:
    """As in a job that runs with or without --strict."""
    run.send("limits", Limit("hall", -1.0))
    (letter,) = run.run_batch().dead_letters
    assert (letter.stream, letter.step) == ("limits", "watch")
    assert "a limit below zero" in letter.reason
    strict = JobHarness(described(), strict=True)
    strict.send("limits", Limit("hall", -1.0))
    with pytest.raises(StrictModeError, match="a limit below zero"):
        strict.run_batch()


def test_commands_have_receipts_and_settings_are_in_force(run: JobHarness) -> None:
    """To a step, to keys, and to all of them, with what handlers reply."""
    run.send("limits", Limit("hall", 25.0))
    run.run_batch()
    patience = run.send_command("set", "watch", {"patience": 3}, issued_by="ann")
    mute = run.send_command("mute", "watch/hall,attic", "at night", version=2)
    run.run_batch()
    assert [receipt.status for receipt in run.receipts(patience)] == ["ACCEPTED", "VALIDATED", "APPLIED"]
    assert {receipt.issued_by for receipt in run.receipts(patience)} == {"ann"}
    assert "at night" in run.receipts(mute)[-1].details
    assert run.settings("watch") == {"patience": 3}
    assert run.state("watch", key="hall")["limit"] == 1000.0
    assert (patience, mute) == ("command-1", "command-2")


def test_an_older_version_is_refused_and_an_id_counts_once(run: JobHarness) -> None:
    """Over micro-batches, as a job that runs does."""
    newer = run.send_command("mute", "watch/hall", "new", version=2)
    run.run_batch()
    older = run.send_command("mute", "watch/hall", "old", version=1)
    again = run.send_command("mute", "watch/hall", "new", version=2, id=newer)
    run.run_batch()
    assert run.receipts(older)[-1].status == "REJECTED"
    assert again == newer
    assert [receipt.status for receipt in run.receipts(newer)].count("APPLIED") == 1


def test_commands_can_be_sent_as_they_travel(run: JobHarness) -> None:
    """Also what is no command."""
    envelope = {"id": "own", "kind": "set", "target": {"step": "watch"}, "payload": {"patience": 1}}
    run.send("commands", envelope, b"no command")
    outcome = run.run_batch()
    assert {(one.id, one.status) for one in outcome.receipts} >= {
        ("own", "APPLIED"),
        ("commands/00000/1", "REJECTED"),
    }


def test_commands_to_keys_of_several_fields() -> None:
    """Such keys are given beside the target, and looked up as tuples."""

    class Keep(ps.ProcessFunction):
        kept = ps.ValueState(int)

        def process_record(self, record: object, ctx: ps.Context) -> None:
            self.kept.set(1)

    job = ps.Job("pairs", key_groups=4)
    pairs = job.data_stream("pairs", schema="left INT, right STRING")
    pairs.key_by("left", "right").process("pair", Keep())
    run = JobHarness(job, parallelism=2)
    run.send("pairs", {"left": 1, "right": "a"}, {"left": 2, "right": "b"})
    run.send_command("set", "pair", {"kept": 7}, keys=[(3, "c")])
    run.run_batch()
    assert run.state("pair") == {(1, "a"): {"kept": 1}, (2, "b"): {"kept": 1}, (3, "c"): {"kept": 7}}
    assert run.state("pair", key=(3, "c")) == {"kept": 7}


def test_the_same_calls_give_the_same_bytes() -> None:
    """And records may arrive in any order."""
    outcomes = []
    for seed in (0, 0, 1):
        run = JobHarness(described(), parallelism=3, now=NOON, arrival_seed=seed)
        run.send("limits", Limit("hall", 25.0))
        run.send("readings", [reading(f"room {number}", 20.0 + number, number) for number in range(50)])
        run.finish()
        outcomes.append(run.outcomes[-1].data)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_harnesses_of_one_job_share_nothing() -> None:
    """Neither states nor what functions keep in themselves."""

    class Counting(ps.ProcessFunction):
        def __init__(self) -> None:
            self.count = 0

        def process_record(self, record: Reading, ctx: ps.Context) -> None:
            self.count += 1
            ctx.side_output("counts", Alarm(record.room, str(self.count)))

        side_outputs = {"counts": Alarm}

    job = ps.Job("counts")
    counted = job.data_stream("readings", schema=Reading).key_by("room").process("count", Counting())
    counted.side_output("counts").sink_to("counts")
    for _ in range(2):
        run = JobHarness(job)
        run.send("readings", reading("hall", 1.0))
        run.run_batch()
        assert [told.text for told in run.output("counts")] == ["1"]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            lambda run: run.send("reading", 1),
            UnknownIdError,
            "no stream 'reading'; it has readings, limits, commands",
        ),
        (
            lambda run: run.send("readings", Limit("a", 1)),
            SchemaError,
            "is not a record of the stream 'readings'",
        ),
        (lambda run: run.output("alarm"), UnknownIdError, "no sink 'alarm'; it has alarms, heard, means"),
        (lambda run: run.run_batch().output("alarm"), UnknownIdError, "no sink 'alarm'; it has"),
        (lambda run: run.state("wach"), UnknownIdError, "no step 'wach'; its steps are watch, means"),
        (
            lambda run: run.state("watch", key=5),
            StateError,
            "5 is not a key of the step 'watch', whose keys are string",
        ),
        (lambda run: run.settings("wach"), UnknownIdError, "no step 'wach'; it has watch, means"),
        (lambda run: run.send_command("mute", "wach/a"), CommandRefusedError, "names no step of the job"),
        (lambda run: run.send_command("mut", "watch/a"), CommandRefusedError, "takes no command 'mut'"),
        (
            lambda run: run.advance_watermark("limits", 0),
            JobDefinitionError,
            "has no watermarks; readings has",
        ),
        (
            lambda run: run.advance_clock("10"),
            JobDefinitionError,
            "The time by which the clock moves is '10'",
        ),
        (lambda run: run.rescale(9), JobDefinitionError, "must be from 1 to 8, the number of key groups"),
        (lambda run: JobHarness(described(), parallelism=0), JobDefinitionError, "must be from 1 to 8"),
        (lambda run: JobHarness(described(), partitions={"limit": 2}), UnknownIdError, "no stream 'limit'"),
    ],
)
def test_errors_tell_what_there_is(run: JobHarness, wrong: object, error: type, message: str) -> None:
    """So that the next attempt is right."""
    with pytest.raises(error, match=message):
        wrong(run)  # type: ignore[operator]


def test_a_job_without_a_step_takes_no_commands() -> None:
    """Nor is there anything to replay or to save but what its sinks got."""
    job = ps.Job("copy")
    job.data_stream("words", schema="word STRING").sink_to("copies")
    run = JobHarness(job, parallelism=2)
    run.send("words", "a")
    run.run_batch()
    run.crash()
    assert [copy.word for copy in run.output("copies")] == ["a"]
    with pytest.raises(UnknownIdError, match="has no keyed step, so it takes no commands"):
        run.send_command("pause")
