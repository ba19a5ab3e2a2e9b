"""The demo as a user starts it, and its checker for Kafka topics."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from transaction_marks import await_marks

from penstock.demo.check import Checker
from penstock.demo.example import load_fold
from penstock.demo.feeds import COMMANDS, READINGS, SETTINGS
from penstock.demo.topics import Topics
from penstock.machine.kafka_broker import KafkaBroker
from penstock.runtime.cuts import write_stream_order

WISH = {"sensor_id": 1, "desired": 20.0, "up_delta": 1.0, "down_delta": 1.0}
COLD, WARM = {"sensor_id": 1, "temperature": 10.0}, {"sensor_id": 1, "temperature": 30.0}
ON, OFF = {"sensor_id": 1, "command": "ON"}, {"sensor_id": 1, "command": "OFF"}


@pytest.mark.parametrize(
    "where",
    [
        [],
        pytest.param(["--kafka"], marks=pytest.mark.chaos),
        pytest.param(["--mqtt"], marks=pytest.mark.chaos),
    ],
    ids=["folders", "kafka", "mqtt"],
)
def test_the_demo_ends_with_no_violations(where: list[str], tmp_path: Path) -> None:
    """Rooms, job and check all run for real; the last line is one JSON object whose last field is `violations`."""
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "demo",
        "--seconds",
        "5",
        "--sensors",
        "5",
        "-o",
        "json",
        *where,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert list(summary)[-1] == "violations"
    assert summary["violations"] == 0
    assert summary["dead_letters"] == 0
    assert summary["control_changes"] >= 1
    assert summary["records_in"]["settings"] == 5 + summary["control_changes"]
    assert summary["records_out"]["heaters"] > 0
    assert summary["state"] == {"thermostat": 5}
    assert summary["first_command_s"] > 0
    assert "violations=0" in done.stderr


def send(topics: Topics, command: dict[str, Any], *, commit: bool) -> None:
    """Write a command in a transaction, as the job's sink does."""
    servers = topics.place.removeprefix("Kafka at ")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "test"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(COMMANDS, json.dumps(command), str(command["sensor_id"]))
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    await_marks(servers, "test")


def test_the_check_reads_topics_by_the_cuts_and_commands_as_committed(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Aborted commands do not count; each batch has the records between its offsets; a missing command is
    found.
    """
    topics = Topics(kafka)
    topics.send(SETTINGS, [WISH])
    topics.send(READINGS, [COLD, WARM, WARM, COLD])
    write_stream_order(tmp_path, [SETTINGS, READINGS])
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    # All records have one key, so they are in one of the two partitions; a cut has the offsets of both.
    places = {stream: partition_of(topics, stream) for stream in (SETTINGS, READINGS)}
    for batch, ends in enumerate([(1, 1), (1, 2), (1, 4)]):
        lines = [
            json.dumps(
                {stream: {str(partition): end if partition == places[stream] else 0 for partition in (0, 1)}}
            )
            for stream, end in zip((SETTINGS, READINGS), ends, strict=True)
        ]
        (offsets / str(batch)).write_text("\n".join(["v1", "{}", *lines]))
    for command, commit in ((ON, True), (ON, False), (OFF, True)):
        send(topics, command, commit=commit)

    evidence = topics.evidence(str(tmp_path))
    checker = Checker(load_fold(), evidence)
    checker.follow(1)
    assert (checker.settings, checker.readings, checker.commands) == (1, 2, 2)
    assert checker.violations() == 0
    checker.follow(2)
    assert checker.readings == 4
    assert checker.violations() == 1, "the last ON is missing"
    send(topics, ON, commit=True)
    evidence.close()
    again = Checker(load_fold(), topics.evidence(str(tmp_path)))
    again.follow(2)
    assert again.violations() == 0


def partition_of(topics: Topics, topic: str) -> int:
    """Return the partition of the one key."""
    consumer = Consumer({"bootstrap.servers": topics.place.removeprefix("Kafka at "), "group.id": "look"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in (0, 1)]
    consumer.close()
    return ends.index(max(ends))
