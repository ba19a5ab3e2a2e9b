"""Logs of a run: one JSON object per line, or sentences for people; neither contains passwords."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from rich.console import Console

from penstock.jobs.commit import Progress, RunSummary
from penstock.jobs.display import RunDisplay
from penstock.jobs.job_log import job_log
from penstock.jobs.log_display import LogDisplay

SOURCES = logging.getLogger("penstock.sources")


def entries(target: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in target.getvalue().splitlines()]


def test_each_line_says_of_which_run_it_is() -> None:
    """Each line has time, level, micro-batch and, for a receiver, the stream; unknown fields are left out."""
    target = io.StringIO()
    with LogDisplay(target) as log:
        log.note("Before the job is known.")
        log.of("rooms", "rooms-1")
        log.update(Progress(batch_id=12))
        log.note("The job goes on.")
        SOURCES.warning("Stream %r: %s", "visits", "gone", extra={"stream": "visits"})
        job_log.warning("slow", extra={"step": "count"})
        log.error("It failed.")
    first, second, third, fourth, fifth = entries(target)
    assert first.keys() == {"time", "level", "logger", "message"}
    assert first["time"].endswith("Z")
    assert {name: value for name, value in second.items() if name != "time"} == {
        "level": "INFO",
        "logger": "penstock.jobs",
        "job": "rooms",
        "job_id": "rooms-1",
        "batch": 12,
        "message": "The job goes on.",
    }
    assert (third["level"], third["stream"], third["message"]) == (
        "WARNING",
        "visits",
        "Stream 'visits': gone",
    )
    assert fourth["step"] == "count"
    assert (fifth["level"], fifth["message"]) == ("ERROR", "It failed.")


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress lines have counts as fields; the summary comes at the end."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    target = io.StringIO()
    with LogDisplay(target) as log:
        log.update(Progress(batch_id=1, batch_ms=5.0))
        clock[0] += 6
        log.update(Progress(batch_id=2, records_in={"visits": 7}, rows_per_s=1.25, batch_ms=5.0))
        log.update(Progress(batch_id=3, batch_ms=5.0))
        clock[0] += 6
        log.update(Progress(batch_id=3, batch_ms=5.0))
        clock[0] += 6
        log.update(Progress(batch_id=3, batch_ms=5.0))
        log.print_summary(RunSummary("rooms-1", "stopped", 3, {"visits": 7}, {"out": 2}, 1, 0, {}, "there"))
    found = entries(target)
    assert [(each["batch"], each["message"]) for each in found] == [
        (2, "The job has done micro-batch 2."),
        (3, "The job has done micro-batch 3."),
        (3, "The job has stopped after 3 micro-batches."),
    ]
    assert found[0]["details"]["records_in"] == {"visits": 7}
    assert found[2]["details"] == {
        "records_in": {"visits": 7},
        "records_out": {"out": 2},
        "dead_letters": 1,
        "commands": 0,
    }


def test_other_libraries_are_heard_when_they_warn() -> None:
    """The stack trace of an exception is on the same line."""
    target = io.StringIO()
    other = logging.getLogger("some.client")
    with LogDisplay(target):
        other.info("chatter")
        logging.getLogger("penstock.kafka").error("connection refused, for the hundredth time")
        logging.getLogger("pika.adapters").error("connection refused, for the hundredth time")
        try:
            raise ValueError("amqp://guest:canary-1@h/%2F/q")
        except ValueError:
            other.exception("lost")
    (entry,) = entries(target)
    assert (entry["logger"], entry["level"], entry["message"]) == ("some.client", "ERROR", "lost")
    assert entry["error"].endswith("ValueError: amqp://guest:***@h/%2F/q")
    job_log.info("after the end")
    assert len(entries(target)) == 1


def test_no_line_has_a_password() -> None:
    """Passwords are masked in both forms."""
    target, plain = io.StringIO(), io.StringIO()
    text = "reads 'amqp://guest:canary-1@h:5672/%2F/q' and kafka://h/t?sasl.password=canary-2&x=1."
    with LogDisplay(target) as log, RunDisplay(Console(file=plain, width=300), "rooms"):
        log.note(text)
        SOURCES.warning("%s", text)
    assert "canary" not in target.getvalue() + plain.getvalue()
    for entry in entries(target):
        assert entry["message"] == (
            "reads 'amqp://guest:***@h:5672/%2F/q' and kafka://h/t?sasl.password=***&x=1."
        )


def test_people_see_warnings_too() -> None:
    """Warnings of the job and its receivers are shown until the job ends."""
    plain = io.StringIO()
    with RunDisplay(Console(file=plain, width=200), "rooms"):
        SOURCES.warning("Stream %r: %s", "visits", "the broker [is] gone")
        job_log.info("not for people")
        logging.getLogger("penstock.kafka").warning("chatter")
    SOURCES.warning("later")
    assert plain.getvalue() == "Warning: Stream 'visits': the broker [is] gone\n"
