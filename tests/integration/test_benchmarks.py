"""Benchmarks: each one runs in its small form, its outputs agree, and its JSON has what is documented."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import control, kafka, keyed_state, latency, open_windows, state_dump, state_growth, windows
from benchmarks.workload import OFF, ON, Commands, Mismatch, Readings, Rooms, expected_commands, mismatch


def commands(*pairs: tuple[int, int]) -> Commands:
    return Commands.in_order([sensor for sensor, _ in pairs], np.array([code for _, code in pairs], np.int8))


def test_the_expected_commands_are_those_of_the_examples_own_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two folds, written apart from each other, agree."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "temperature_control"))
    import reference

    rooms = Rooms(50, 0.45)
    parts = [rooms.readings(2_000, 0), rooms.readings(1_000, 1)]
    delta = rooms.delta
    settings = [
        {"sensor_id": sensor, "desired": desired, "up_delta": delta, "down_delta": delta}
        for sensor, desired in enumerate(rooms.desired.tolist())
    ]
    readings = [
        {"sensor_id": sensor, "temperature": temperature}
        for part in parts
        for sensor, temperature in zip(part.sensor_id.tolist(), part.temperature.tolist(), strict=True)
    ]
    folded = list(reference.commands([(settings, readings)]))
    codes = np.array([ON if command["command"] == "ON" else OFF for command in folded], np.int8)
    found = Commands.in_order([command["sensor_id"] for command in folded], codes)
    assert not mismatch(found, expected_commands(rooms, parts))
    assert 0.4 < len(found) / 3_000 < 0.55


def test_differences_are_counted_sensor_by_sensor() -> None:
    """A missing, an extra and a wrong command are told apart."""
    expected = commands((1, ON), (1, OFF), (2, ON), (3, ON))
    assert mismatch(expected, expected) == Mismatch(0, 0, 0)
    assert mismatch(commands((1, ON), (2, OFF), (3, ON), (3, OFF)), expected) == Mismatch(1, 1, 1)
    assert mismatch(commands(), expected) == Mismatch(4, 0, 0)


def test_alternating_readings_all_cause_a_command() -> None:
    """What the latency benchmark sends has one answer each."""
    rooms = Rooms(10, 0.45)
    readings: Readings = rooms.alternating(4)
    assert len(expected_commands(rooms, [readings])) == len(readings) == 40


def test_keyed_state_in_its_small_form(tmp_path: Path) -> None:
    """The contestants emit the fold's commands (`measure` raises otherwise) and the JSON has its keys."""
    sizes = keyed_state.Sizes(
        rows=20_000,
        keys=300,
        file_rows=10_000,
        pyspark_rows=5_000,
        rounds=1,
        peer_modes=("row",),
        forms=("per_record",),
    )
    result = json.loads(json.dumps(keyed_state.measure(sizes, tmp_path)))
    assert set(result["rows_per_s"]) == {"pyspark", "per_record"}
    assert set(result["rss_mb"]) == {"pyspark", "per_record"}
    assert result["ratio_per_record"] > 0
    assert (result["rows"], result["keys"], result["pyspark_rows"]) == (20_000, 300, 5_000)
    keyed_state.show([result])


def test_kafka_in_its_small_form(tmp_path: Path) -> None:
    """Every command is there exactly once, and the report says where the time went."""
    sizes = kafka.Sizes(
        readings=20_000,
        sensors=300,
        batch_records=10_000,
        forms=("vectorised",),
        deliveries=("exactly-once",),
    )
    result = json.loads(json.dumps(kafka.measure(sizes, tmp_path)))
    (run,) = result["runs"]
    assert (run["missing"], run["extra"], run["wrong"], run["dead_letters"]) == (0, 0, 0, 0)
    assert run["commands"] > 0
    assert run["readings_per_s"] > 0
    assert run["batches"][0]["ms"]["addBatch"] > 0
    kafka.show(result)


def test_latency_in_its_small_form(tmp_path: Path) -> None:
    """Each reading has exactly one command, and the percentiles are there by both clocks."""
    result = json.loads(json.dumps(latency.measure(latency.Sizes(records=200, warm_up=100), tmp_path)))
    assert (result["records"], result["unanswered"], result["answered_twice"]) == (200, 0, 0)
    for prefix in ("", "broker_"):
        assert 0 < result[f"{prefix}p50_ms"] <= result[f"{prefix}p95_ms"] <= result[f"{prefix}p99_ms"]
    latency.show(result)


def test_control_in_its_small_form(tmp_path: Path) -> None:
    """Every command is applied (`measure` raises otherwise), and the JSON has its keys."""
    sizes = control.Sizes(
        keys=300, to_all=2, commands_per_s=200, seconds=3, rounds=1, file_rows=2_000, files_per_batch=1
    )
    result = control.measure(sizes, tmp_path, calm=False)
    assert result["all_keys_s"] > 0
    assert result["rows_per_s_with"] > 0
    assert result["lost"] == 0


def test_state_growth_in_its_small_form(tmp_path: Path) -> None:
    """The job emits the fold's commands (`measure` raises otherwise), with settings that come in two micro-batches."""
    sizes = state_growth.Sizes(keys=(600,), batch_rows=200, batches=7, counted=2, settings_rows=300)
    result = json.loads(json.dumps(state_growth.measure(sizes, tmp_path, peer=False)))
    (run,) = result["runs"]
    assert (run["contestant"], run["keys"], run["growth"]) == ("penstock", 600, 1.0)
    assert 0 < run["batch_ms"] <= run["p95_ms"]
    state_growth.show(result)


def test_state_dump_in_its_small_form(tmp_path: Path) -> None:
    """The dump is sound and has every room (`measure` raises otherwise), and micro-batches ran beside it."""
    sizes = state_dump.Sizes(
        keys=600, batch_rows=200, interval_ms=500, warm_up=3, before=5, dumps=1, settings_rows=300
    )
    result = json.loads(json.dumps(state_dump.measure(sizes, tmp_path)))
    assert 600 < result["rows"] <= 1_200
    assert result["ratio"] > 0
    assert result["batches_before"] >= 4
    assert result["batches_during"] > 0
    assert 0 < result["seconds"] < result["process_s"]
    state_dump.show(result)


def test_windows_in_their_small_form(tmp_path: Path) -> None:
    """The contestants emit the fold's windows (`measure` raises otherwise), and the JSON has its keys."""
    sizes = windows.Sizes(
        keys=100,
        files=3,
        file_rows=2_000,
        span_ms=30_000,
        rounds=1,
        contestants=("spark", "columns", "distinct"),
    )
    result = json.loads(json.dumps(windows.measure(sizes, tmp_path)))
    assert set(result["rows_per_s"]) == {"spark", "columns", "distinct"}
    assert result["by_spark"] > 0
    windows.show(result)


def test_open_windows_in_their_small_form(tmp_path: Path) -> None:
    """The windows, opened in two micro-batches, emit the fold's means (`measure` raises otherwise) when they end."""
    sizes = open_windows.Sizes(
        windows=(600,),
        per_key=(20,),
        roads=("columns",),
        batch_rows=200,
        batches=4,
        counted=2,
        fill_rows=300,
        rounds=1,
    )
    result = json.loads(json.dumps(open_windows.measure(sizes, tmp_path)))
    (run,) = result["runs"]
    assert (run["road"], run["per_key"], run["windows"]) == ("columns", 20, 600)
    assert (run["growth"], run["end_growth_by_window"]) == (1, 1)
    assert run["batch_ms"] > 0
    assert run["end_us_by_window"] == pytest.approx(run["end_ms"] / 0.6, rel=0.01)
    open_windows.show(result)
