"""Events: who did what to a job is recorded once, durably, and read together with the receipts of commands."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from control_checkpoint import AT, make_checkpoint, receipts, write_receipts

from penstock.commands.receipt_segments import receipts_backwards
from penstock.control.receipts import Receipt
from penstock.errors import BindingError, CheckpointError
from penstock.jobs import events
from penstock.jobs.events import (
    EVENTS_FILE,
    Event,
    EventKind,
    NewEvents,
    RunEvents,
    newest_events,
    read_events,
    record_event,
    settings_of,
    user_name,
)
from penstock.jobs.settings import RunSettings


def event(seconds: float, kind: EventKind = "stopped", **more: Any) -> Event:
    return Event(at=AT + dt.timedelta(seconds=seconds), event=kind, job="rooms", **more)


def kinds(found: list[Event]) -> list[str]:
    return [each.event for each in found]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with three micro-batches with commands, one second apart, and events in between."""
    made = make_checkpoint(tmp_path / "checkpoint")
    for batch in range(3):
        first = receipts(f"a{batch}", "APPLIED", batch)
        second = receipts(f"b{batch}", "REJECTED", batch, kind="pause", issued_by="ben")
        write_receipts(made, batch, [*first, *second])
    for found in (event(-1, "started"), event(0.5, "rescaled"), event(9, "finished")):
        record_event(made, found)
    return made


def test_the_log_is_bounded_and_nobody_who_reads_along_misses_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full file is rotated and replaces the previous one; concurrent writers lose only the oldest events."""
    monkeypatch.setattr(events, "_MAX_BYTES", 2_000)
    reader, slow = (NewEvents(tmp_path, with_commands=False) for _ in range(2))
    # This is fewer than a file holds.
    unread = threading.Semaphore(8)

    def record(name: str) -> None:
        for n in range(40):
            unread.acquire()
            record_event(tmp_path, event(n, job_id=f"{name}-{n}"))

    threads = [threading.Thread(target=record, args=(name,)) for name in "ab"]
    found: list[Event] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        new = reader.read()
        found += new
        if new:
            unread.release(len(new))
    found += reader.read()
    assert sorted(one.job_id for one in found) == sorted(f"{name}-{n}" for name in "ab" for n in range(40))
    sizes = [path.stat().st_size for path in tmp_path.glob("events*.jsonl")]
    assert len(sizes) == 2
    assert sum(sizes) < 4_400
    newest = [one.job_id for one in read_events(tmp_path)]
    assert newest == [one.job_id for one in found][-len(newest) :]
    assert [one.job_id for one in slow.read()] == newest
    (tmp_path / EVENTS_FILE).unlink()
    assert read_events(tmp_path), "the one before is there, whatever a crash has left"


def test_events_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    """Each event is one complete line; without a file there are no events."""
    assert read_events(tmp_path) == []
    first = event(0, "rescaled", job_id="rooms-1", by="ann", batch=7, details={"before": 2, "after": 4})
    record_event(tmp_path, first)
    record_event(tmp_path, event(1))
    assert read_events(tmp_path) == [first, event(1)]
    assert len((tmp_path / EVENTS_FILE).read_text().splitlines()) == 2


def test_several_processes_record_whole_lines(tmp_path: Path) -> None:
    """Each event is there once, though all processes write at the same time."""
    program = """
import datetime as dt, sys
from pathlib import Path
from penstock.jobs.events import Event, record_event
for number in range(20):
    details = {"who": sys.argv[2], "number": number, "text": "x" * 5000}
    record_event(Path(sys.argv[1]), Event(at=dt.datetime.now(dt.UTC), event="dump", job="j", details=details))
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name], env=dict(os.environ))
        for name in ("a", "b", "c")
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    found = [(each.details["who"], each.details["number"]) for each in read_events(tmp_path)]
    assert sorted(found) == [(name, number) for name in "abc" for number in range(20)]
    for name in "abc":
        assert [number for who, number in found if who == name] == list(range(20))


def test_half_an_event_is_not_seen_and_goes(tmp_path: Path) -> None:
    """A line that a crash has cut was never reported; the next event overwrites it."""
    record_event(tmp_path, event(0))
    new = NewEvents(tmp_path, with_commands=False)
    with (tmp_path / EVENTS_FILE).open("ab") as file:
        file.write(b'{"at":"2026')
    assert read_events(tmp_path) == [event(0)]
    assert new.read() == []
    record_event(tmp_path, event(1))
    assert new.read() == [event(1)]
    assert read_events(tmp_path) == [event(0), event(1)]


def test_a_full_disk_is_told_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that cannot be written raises an error, so that the log never has gaps."""
    record_event(tmp_path, event(0))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    with pytest.raises(CheckpointError, match=r"'dump' cannot be written to .*events\.jsonl \(No space left"):
        record_event(tmp_path, event(1, "dump"))
    monkeypatch.undo()
    assert (tmp_path / EVENTS_FILE).read_bytes().endswith(b"}\n")
    assert read_events(tmp_path) == [event(0)]


def test_a_damaged_log_is_told(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / EVENTS_FILE).write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"events in .*events\.jsonl cannot be read"):
        read_events(tmp_path)


def test_commands_come_from_their_receipts(checkpoint: Path) -> None:
    """They are merged by time with other events, counted by outcome, and stored nowhere else."""
    found = newest_events(checkpoint, 100)
    assert kinds(found) == ["started", "commands", "rescaled", "commands", "commands", "finished"]
    commands = found[3]
    assert (commands.batch, commands.by, commands.job) == (1, "ann, ben", "rooms")
    assert commands.details == {
        "applied": 1,
        "degraded": 0,
        "rejected": 1,
        "kinds": ["pause", "set"],
        "receipts": "receipts/0000000001.jsonl",
    }
    assert (checkpoint / str(commands.details["receipts"])).exists()
    assert kinds(newest_events(checkpoint, 100, with_commands=False)) == ["started", "rescaled", "finished"]
    assert b"commands" not in (checkpoint / EVENTS_FILE).read_bytes()


def test_no_more_receipts_are_decoded_than_needed(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have hundreds of thousands of receipts."""
    read: list[Receipt] = []

    def counted(folder: Path) -> Any:
        for name, receipt in receipts_backwards(folder):
            read.append(receipt)
            yield name, receipt

    monkeypatch.setattr(events, "receipts_backwards", counted)
    assert kinds(newest_events(checkpoint, 2)) == ["commands", "finished"]
    assert {receipt.batch for receipt in read[:-1]} == {2}


def test_new_events_are_told_as_they_come(checkpoint: Path) -> None:
    """Recorded events and receipts are each reported once; earlier ones only on request."""
    new = NewEvents(checkpoint)
    assert new.read() == []
    write_receipts(checkpoint, 20, receipts("c", "DEGRADED", 20))
    record_event(checkpoint, event(15))
    record_event(checkpoint, event(25, "failed"))
    assert kinds(new.read()) == ["stopped", "commands", "failed"]
    assert new.read() == []
    assert len(NewEvents(checkpoint, from_start=True).read()) == 9


def test_following_goes_on(checkpoint: Path) -> None:
    """It continues until the caller stops it."""
    told: list[Event] = []
    done = threading.Event()

    def tell(found: Event) -> None:
        told.append(found)
        if len(told) == 2:
            done.set()
            raise KeyboardInterrupt

    def follow() -> None:
        with pytest.raises(KeyboardInterrupt):
            NewEvents(checkpoint).follow(tell)

    thread = threading.Thread(target=follow)
    thread.start()
    while not done.is_set():
        record_event(checkpoint, event(30))
        done.wait(0.05)
    thread.join()
    assert kinds(told) == ["stopped", "stopped"]


def test_a_run_tells_how_it_began_and_what_was_before(tmp_path: Path) -> None:
    """A killed run leaves no end event, so the next run reports that."""
    first = RunEvents(tmp_path, "rooms", "rooms-1", "ann")
    first.record_start({"parallelism": 2})
    first.add("rescaled", {"after": 4}, by="ben", batch=3)
    RunEvents(tmp_path, "rooms", "rooms-2", "cid").record_start({})
    second = RunEvents(tmp_path, "rooms", "rooms-3", "ann")
    second.record_start({})
    second.add("finished", {}, by="", batch=9)
    RunEvents(tmp_path, "rooms", "rooms-4", "ann").record_start({})
    found = read_events(tmp_path)
    assert [(each.event, each.job_id, each.by) for each in found] == [
        ("started", "rooms-1", "ann"),
        ("rescaled", "rooms-1", "ben"),
        ("started", "rooms-2", "cid"),
        ("started", "rooms-3", "ann"),
        ("finished", "rooms-3", ""),
        ("started", "rooms-4", "ann"),
    ]
    interrupted = [each.details.get("interrupted") for each in found if each.event == "started"]
    assert interrupted == [None, "rooms-1", "rooms-2", None]
    assert found[0].details["parallelism"] == 2
    assert "version" in found[0].details


def test_a_failure_is_recorded_and_goes_on(tmp_path: Path) -> None:
    """The event has the error's class, fault and reason; passwords in URIs are masked."""
    run = RunEvents(tmp_path, "rooms", "rooms-1", "ann")
    with pytest.raises(BindingError), run.record_failure():
        raise BindingError("amqp://guest:canary-1@h:5672/%2F/rooms does not answer.")
    with pytest.raises(ZeroDivisionError), run.record_failure():
        raise ZeroDivisionError("division by zero")
    with run.record_failure():
        pass
    first, second = read_events(tmp_path)
    assert first.details == {
        "error": "BindingError",
        "fault": "user",
        "reason": "amqp://guest:***@h:5672/%2F/rooms does not answer.",
    }
    assert second.details == {"error": "ZeroDivisionError", "fault": "internal", "reason": "division by zero"}
    assert (first.event, first.by) == ("failed", "")


def test_a_failure_that_cannot_be_written_down_is_still_told(tmp_path: Path) -> None:
    """The job's own error is raised, not the log's."""
    run = RunEvents(tmp_path / "gone", "rooms", "rooms-1", "ann")
    with pytest.raises(BindingError, match="why"), run.record_failure():
        raise BindingError("why")


def test_settings_are_told_without_secrets() -> None:
    """Only non-default settings are listed; passwords in URIs and values of secret-looking Spark settings are
    masked.
    """
    settings = RunSettings(
        bindings={"a": "kafka://h:9092/t?sasl.password=canary-1"},
        checkpoint="/somewhere",
        strict=True,
        parallelism=3,
        from_dump="s3://key:canary-2@bucket/dump",
        spark_settings={
            "spark.hadoop.fs.s3a.secret.key": "canary-3",
            "spark.hadoop.fs.s3a.access.key": "canary-4",
            "spark.ssl.keyPassword": "canary-5",
            "spark.executor.memory": "4g",
        },
        started_by="ann",
    )
    found = settings_of(settings)
    assert "canary" not in str(found)
    assert found == {
        "strict": True,
        "parallelism": 3,
        "from_dump": "s3://key:***@bucket/dump",
        "spark_settings": {
            "spark.executor.memory": "4g",
            "spark.hadoop.fs.s3a.access.key": "***",
            "spark.hadoop.fs.s3a.secret.key": "***",
            "spark.ssl.keyPassword": "***",
        },
    }
    assert settings_of(RunSettings()) == {}


def test_who_it_is_says_nothing_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor is the user's name, or the numeric id where there is no name."""
    monkeypatch.setenv("LOGNAME", "ann")
    assert user_name() == "ann"

    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr(events.getpass, "getuser", nobody)
    assert user_name() == str(os.getuid())
