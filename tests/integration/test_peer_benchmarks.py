"""Benchmarks against Flink and of loads: what they send, check and print, without running a job.

With their jobs they take minutes: `make bench-peers ARGS="--small"` and `make bench-loads ARGS="--small"`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import control_latency, wire
from benchmarks.loads import __main__ as loads
from benchmarks.loads.heavy import check_notes, note
from benchmarks.loads.setting import LoadError
from benchmarks.peers import __main__ as peers
from benchmarks.peers import contestants
from benchmarks.peers.contestants import MissingToolError
from benchmarks.probe import Probe, probe_rooms
from benchmarks.processes import ContestantError, MemoryWatch, Program, proportional_bytes
from benchmarks.topics import Topics, create_topic, load_values
from benchmarks.workload import OFF, ON
from waiting import await_true

from penstock.machine.kafka_broker import KafkaBroker

SENSORS = [0, 1, 127, 128, 300, 16_384, 2**31 - 1, 5, 0]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example's messages, encoded by protobuf itself."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "temperature_control"))
    import messages_pb2

    return messages_pb2


def test_messages_in_bulk_are_those_of_protobuf(messages: Any) -> None:
    """Readings and settings have protobuf's bytes."""
    expected = [messages.SensorData(sensorID=one, temperature=1.5).SerializeToString() for one in SENSORS]
    assert wire.reading_messages(SENSORS, np.full(len(SENSORS), 1.5)) == expected
    setting = messages.TemperatureControl(sensorID=300, desired=20.0, upDelta=1.0, downDelta=1.0)
    assert wire.setting_message(300, 20.0, 1.0) == setting.SerializeToString()


def test_commands_are_decoded_in_bulk(messages: Any) -> None:
    """Sensor and command are decoded, also where protobuf omits a default value; other bytes are refused."""
    orders = [messages.On, messages.Off] * 4 + [messages.Off]
    values = [
        messages.HeaterControl(sensorID=sensor, command=order).SerializeToString()
        for sensor, order in zip(SENSORS, orders, strict=True)
    ]
    sensors, codes = wire.decode_commands(values)
    assert sensors.tolist() == SENSORS
    assert codes.tolist() == [ON if order == messages.On else OFF for order in orders]
    assert [len(one) for one in wire.decode_commands([])] == [0, 0]
    for wrong in (b"\x08", b"\x08\x01\x10", b"xx", b"\x08\x01\x10\x01\x18\x01"):
        with pytest.raises(ValueError, match="no HeaterControl"):
            wire.decode_commands([values[3], wrong])


def test_a_probe_matches_each_reading_with_its_command(
    tmp_path: Path, kafka: KafkaBroker, messages: Any
) -> None:
    """Commands are matched with their sensors' readings in turn; missing, repeated and wrong ones are counted."""
    readings, heaters = f"{tmp_path.name}-in", f"{tmp_path.name}-out"
    create_topic(kafka, readings, 2)
    create_topic(kafka, heaters, 2)
    with Probe(kafka, readings, heaters, probe_rooms(3), 2) as probe:
        probe.send(7, 1_000, lambda: None)
        # Sensors 0, 1, 2, 0, 1, 2, 0 were too warm, too cold, too warm: 2 gets one command, 0 the same one
        # twice.
        told = [(0, messages.Off), (1, messages.Off), (2, messages.Off), (0, messages.On), (1, messages.On)]
        told += [(0, messages.On), (0, messages.Off), (1, messages.Off)]
        values = [messages.HeaterControl(sensorID=s, command=c).SerializeToString() for s, c in told]
        load_values(kafka, heaters, 2, [sensor for sensor, _ in told], values)
        await_true(lambda: probe._count == len(told), "the commands do not come")
        probe.await_answers(1.0)
        trips = probe.trips(0, 7)
    assert (trips.readings, trips.unanswered, trips.repeated) == (7, 1, 1)
    # Sensor 1 was read twice and got three commands.
    assert trips.wrong == 1
    assert (trips.latency_ms > 0).all()
    assert len(trips.latency_ms) == 6


def test_a_program_that_ends_is_told_with_what_it_wrote(tmp_path: Path) -> None:
    """A contestant that ends raises an error with its last lines; a running one is stopped with the block."""
    with (
        Program([sys.executable, "-c", "print('no broker')"], tmp_path / "log") as program,
        pytest.raises(ContestantError, match=r"ended with 0:\nno broker"),
    ):
        _check_for_ever(program)
    with Program(["sleep", "60"], tmp_path / "log") as program:
        program.check()
    with pytest.raises(ContestantError, match="ended with -15"):
        program.check()


def test_pages_that_processes_share_count_once(tmp_path: Path) -> None:
    """Four processes that share 100 MB have 100 MB proportionally, and 400 MB resident."""
    # Not of random bytes, which would be there twice for a moment.
    code = "import os, time; kept = bytearray(b'x') * (100 << 20); os.fork(); os.fork(); time.sleep(60)"
    with (
        Program([sys.executable, "-c", code], tmp_path / "log") as program,
        MemoryWatch(program.pid) as memory,
    ):
        deadline_s = time.monotonic() + 30
        while memory.peak_resident_mb < 400 or memory.peak_mb < 100:
            assert time.monotonic() < deadline_s, "the processes do not start"
            program.check()
            time.sleep(0.1)
        now = proportional_bytes(program.pid)
    assert 400 <= memory.peak_resident_mb < 500
    assert 100 <= memory.peak_mb < 200
    assert sum(memory.peak_parts_mb.values()) == pytest.approx(memory.peak_mb, abs=2)
    assert now["jvm"] == 0
    # The process itself is one of the four.
    assert now["driver"] < now["others"]


def _check_for_ever(program: Program) -> None:
    while True:
        program.check()


def test_without_maven_flink_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install, and how to run without Flink."""
    monkeypatch.setattr(contestants, "_TARGET", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingToolError, match=r"no mvn on PATH.*Install Maven.*leave Flink out"):
        contestants.build_flink()


def test_contestants_are_commands() -> None:
    """Flink and penstock get the same topics; another checkout is run with its own command and job."""
    topics = Topics("broker:9092", "in", "set", "out")
    flink = contestants.contestant("flink_tuned", "5s").command(topics, Path("/work"), 2)
    assert {"readings=in", "settings=set", "heaters=out", "buffer-timeout=1 ms", "linger-ms=0"} <= set(flink)
    ours = contestants.contestant("real_time", "7s").command(topics, Path("/work"), 2)
    assert "readings=kafka://broker:9092/in?format=protobuf&start=earliest" in ours
    assert ours[-2:] == ["--checkpoint-interval", "7s"]
    assert "--checkpoint-interval" not in contestants.contestant("per_record", "7s").command(
        topics, Path("/w"), 2
    )
    before = contestants.contestant("before", "7s", Path("/before")).command(topics, Path("/work"), 2)
    assert before[0] == "/before/.venv/bin/penstock"
    assert before[2] == "/before/examples/temperature_control/job.py"
    assert "--checkpoint-interval" not in before
    vectorised = contestants.contestant("vectorised_real_time_before", "7s", Path("/before"))
    command = vectorised.command(topics, Path("/work"), 2)
    assert command[2] == "/before/examples/temperature_control/vectorised.py"
    assert command[-2:] == ["--checkpoint-interval", "7s"]


def test_peers_are_shown_beside_flink(capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios are medians relative to Flink's run of the same round; a failed run has none."""
    flink = {
        "contestant": "flink",
        "steady_per_s": 100,
        "first_output_s": 5.0,
        "memory_mb": 512,
        "resident_mb": 768,
        "cpu_s": 9.0,
    }
    flink |= {"commands": 99, "missing": 1, "extra": 0, "wrong": 0}
    ours = {**flink, "contestant": "vectorised", "commands": 100, "missing": 0}
    runs = [
        {**flink, "round": 0},
        {**ours, "round": 0, "steady_per_s": 150},
        {**flink, "round": 1, "steady_per_s": 200},
        {**ours, "round": 1, "steady_per_s": 400},
        {**ours, "round": 2, "steady_per_s": 170},
        {"contestant": "flink", "round": 2, "failed": "it ended"},
    ]
    trip = {"round": 0, "rate_per_s": 200, "p99_ms": 9.0, "max_ms": 10.0, "cores_used": 0.5, "memory_mb": 512}
    latency = [
        {**trip, "contestant": "flink_tuned", "p50_ms": 4.0, "p95_ms": 8.0},
        {**trip, "contestant": "real_time", "p50_ms": 6.0, "p95_ms": 8.0},
    ]
    sizes = {"readings": 1_000, "cores": 2, "rounds": 3, "latency_rates": [200, 400], "seconds": 60.0}
    peers.show({**sizes, "throughput": runs, "latency": latency})
    shown = capsys.readouterr().out
    used = "5.0 s | 1.00x | 0.50 GB | 1.00x | 0.75 GB | 9 s"
    assert f"| Flink, state on the heap | 150 | 1.00x | {used} | 1.00% |" in shown
    assert f"| penstock, vectorised | 170 | 1.75x | {used} | none |" in shown
    assert (
        "| penstock in real time | 6.0 ms | 1.50x | 8.0 ms | 1.00x | 9.0 ms | 10.0 ms | 0.50 | 0.50 GB |"
        in shown
    )
    assert "400 readings a second" not in shown


def test_notes_are_checked_by_key_and_number() -> None:
    """A gap, a repetition, a changed text and a missing end are found."""
    sent = [json.loads(note(number % 100, number, 50)) for number in range(250)]
    found = [json.dumps({**one, "count": one["number"] // 100 + 1}).encode() for one in sent]
    check_notes(found, 50, 250)
    check_notes(found[:120], 50)
    for wrong, message in [
        (found[:3] + found[4:], "note 103 where note 3 must be"),
        (found[:120] + found[119:], "where note"),
        (found[:-1], "There are 249 notes instead of 250"),
        ([found[0].replace(b"aaa", b"bbb"), *found[1:]], "The text of note 0 has changed"),
    ]:
        with pytest.raises(LoadError, match=message):
            check_notes(wrong, 50, 250)


def test_loads_and_control_latencies_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Each load has a row with its figures, or with the reason of its failure."""
    found = {
        "idle": {"cpu_percent": 2.5, "memory_mb": 1_500},
        "many_keys": {"failed": "penstock ended\nOutOfMemory"},
    }
    loads.show({"checkpoint_interval": "5s", "loads": found})
    times = {"p50_ms": 6.0, "p95_ms": 20.0, "p99_ms": 30.0, "max_ms": 40.0}
    control_latency.show({"settings": 300, "checkpoint_interval": "5s", "in_force": times, "answer": times})
    shown = capsys.readouterr().out
    assert "| idle | cpu_percent 2.5, memory_mb 1,500 |" in shown
    assert "| many keys | failed OutOfMemory |" in shown
    assert "| readings sent are judged by it | 6.0 ms | 20.0 ms | 30.0 ms | 40.0 ms |" in shown
