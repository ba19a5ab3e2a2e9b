"""Benchmarks: each runs at small scale, its outputs agree, and its JSON has the documented fields.

Together the small runs start each kind of contestant once: state growth runs penstock with keyed state, open
windows runs it with windows. The soak starts a process, as benchmarks do; contestants of the others run in
the session that tests share.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks import (
    control,
    expressions,
    keyed_state,
    latency,
    learned_state,
    open_windows,
    power_loss,
    running,
    soak,
    state_dump,
    state_growth,
    state_query,
    table_jobs,
    tables,
    window_jobs,
    windows,
)
from benchmarks import kafka as kafka_to_kafka
from benchmarks.processes import ContestantError, run_module
from benchmarks.workload import OFF, ON, Commands, Mismatch, Readings, Rooms, expected_commands, mismatch
from contestants import contestants_here
from pyspark.sql import SparkSession

import penstock as ps
from penstock.machine.kafka_broker import KafkaBroker
from penstock.testing.batch_runner import BatchRunner


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run contestants in the shared session."""
    contestants_here(
        spark,
        monkeypatch,
        keyed_state,
        kafka_to_kafka,
        latency,
        learned_state,
        running,
        state_dump,
        state_query,
        windows,
    )


def commands(*pairs: tuple[int, int]) -> Commands:
    return Commands.in_order([sensor for sensor, _ in pairs], np.array([code for _, code in pairs], np.int8))


def test_the_expected_commands_are_those_of_the_examples_own_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two independently written models agree."""
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
    """A missing, an extra and a wrong command are distinguished."""
    expected = commands((1, ON), (1, OFF), (2, ON), (3, ON))
    assert mismatch(expected, expected) == Mismatch(0, 0, 0)
    assert mismatch(commands((1, ON), (2, OFF), (3, ON), (3, OFF)), expected) == Mismatch(1, 1, 1)
    assert mismatch(commands(), expected) == Mismatch(4, 0, 0)


def test_alternating_readings_all_cause_a_command() -> None:
    """Each reading that the latency benchmark sends has exactly one answer."""
    rooms = Rooms(10, 0.45)
    readings: Readings = rooms.alternating(4)
    assert len(expected_commands(rooms, [readings])) == len(readings) == 40


def test_a_contestant_is_a_process_that_ends_with_json(tmp_path: Path) -> None:
    """Its last line is its result; if it fails, the error has its output."""
    (tmp_path / "said.json").write_text('{"rows": 3}')
    said, memory_mb = run_module("json.tool", ["--compact", str(tmp_path / "said.json")], tmp_path / "log")
    assert (said, memory_mb >= 0) == ({"rows": 3}, True)
    with pytest.raises(ContestantError, match=r"ended with 1:\n[\s\S]*Expecting"):
        run_module("json.tool", [str(tmp_path / "log")], tmp_path / "log")


def test_keyed_state_in_its_small_form(tmp_path: Path, here: None) -> None:
    """PySpark emits the expected commands (`measure` raises otherwise), and the JSON has its keys."""
    sizes = keyed_state.Sizes(
        rows=500,
        keys=80,
        file_rows=500,
        pyspark_rows=500,
        rounds=1,
        peer_modes=("row",),
        forms=(),
    )
    result = json.loads(json.dumps(keyed_state.measure(sizes, tmp_path)))
    assert set(result["rows_per_s"]) == set(result["rss_mb"]) == {"pyspark"}
    assert result["rows_per_s"]["pyspark"] > 0
    assert (result["rows"], result["keys"], result["pyspark_rows"]) == (500, 80, 500)
    keyed_state.show([result])


def test_keyed_state_reports_how_much_faster_penstock_is(tmp_path: Path) -> None:
    """The rows per second of each form are beside those of the peer."""
    sizes = keyed_state.Sizes(rows=900, pyspark_rows=100)
    speeds = {"pyspark": 1_000, "pyspark_row": 1_000, "per_record": 12_340, "vectorised": 50_000}
    summaries = {name: {"rows_per_s": speed, "rss_mb": 700} for name, speed in speeds.items()}
    given = keyed_state.Input(tmp_path, 900, commands(*[(1, ON), (1, OFF)] * 225))
    result = json.loads(json.dumps(keyed_state.report(sizes, summaries, "row", given)))
    assert result["rows_per_s"] == {"pyspark": 1_000, "per_record": 12_340, "vectorised": 50_000}
    assert (result["ratio_per_record"], result["ratio_vectorised"]) == (12.3, 50.0)
    assert result["emit_share"] == 0.45
    keyed_state.show([result])


def test_kafka_in_its_small_form(tmp_path: Path, kafka: KafkaBroker, here: None) -> None:
    """Every command is there exactly once, and the report breaks the time down."""
    sizes = kafka_to_kafka.Sizes(
        readings=4_000,
        sensors=300,
        partitions=2,
        batch_records=2_500,
        forms=("vectorised",),
        deliveries=("exactly-once",),
    )
    result = json.loads(json.dumps(kafka_to_kafka.measure(sizes, tmp_path, broker=kafka)))
    (run,) = result["runs"]
    assert (run["missing"], run["extra"], run["wrong"], run["dead_letters"]) == (0, 0, 0, 0)
    assert run["commands"] > 0
    assert run["readings_per_s"] > 0
    assert run["batches"][0]["ms"]["addBatch"] > 0
    kafka_to_kafka.show(result)


def test_latency_in_its_small_form(tmp_path: Path, kafka: KafkaBroker, here: None) -> None:
    """Each reading has its command, and the percentiles are reported."""
    # Time is not tested here: readings count from the first command on, however late that is.
    sizes = latency.Sizes(records=20, warm_up=10, rate_per_s=50, settled_s=6, partitions=2)
    result = json.loads(json.dumps(latency.measure(sizes, tmp_path, broker=kafka)))
    assert (result["records"], result["unanswered"], result["wrong"]) == (20, 0, 0)
    assert 0 < result["p50_ms"] <= result["p95_ms"] <= result["p99_ms"] <= result["max_ms"]
    latency.show(result)


def test_power_loss_in_its_small_form(tmp_path: Path, spark: SparkSession) -> None:  # the session it runs in
    """Pairs of micro-batches with and without sync have equal counts."""
    result = power_loss.measure(power_loss.Sizes(batches=8, warm_up=2, records=5), tmp_path)
    assert result["pairs"] == 3
    assert result["sync_ms"] > 0
    assert result["without_ms"] > 0
    power_loss.show(result)


def test_control_in_its_small_form(tmp_path: Path, kafka: KafkaBroker, here: None) -> None:
    """Every command is applied (`measure` raises otherwise), and the JSON has its keys."""
    sizes = control.Sizes(
        keys=300,
        to_all=2,
        rest_s=0,
        commands_per_s=200,
        seconds=1,
        rounds=1,
        file_rows=10_000,
        files_per_batch=1,
    )
    result = control.measure(sizes, tmp_path, calm=False, broker=kafka)
    assert result["all_keys_s"] > 0
    assert result["rows_per_s_with"] > 0
    assert result["lost"] == 0


def test_state_growth_in_its_small_form(tmp_path: Path, here: None) -> None:
    """The job emits the expected commands (`measure` raises otherwise), with settings in two micro-batches."""
    sizes = state_growth.Sizes(
        keys=(600,), batch_rows=200, batches=3, counted=2, warm_up=1, settings_rows=300
    )
    result = json.loads(json.dumps(state_growth.measure(sizes, tmp_path, peer=False)))
    (run,) = result["runs"]
    assert (run["contestant"], run["keys"], run["growth"]) == ("penstock", 600, 1.0)
    assert 0 < run["batch_ms"] <= run["p95_ms"]
    state_growth.show(result)


def test_the_contestants_of_expressions_have_the_same_results(tmp_path: Path) -> None:
    """penstock's expressions give the results of the Python functions; `measure`, which starts its own Spark,
    compares Spark's number of results.
    """
    expressions.write_readings(tmp_path / "readings", 2000)
    (batch,) = expressions.read(tmp_path / "readings", 1500, 5000)
    for what in ("where", "select"):
        found, expected = (expressions.APPLIED[what, who](batch)[0] for who in ("penstock", "python"))
        assert 0 < len(found) <= 1500
        assert found.batch.to_pylist() == expected.batch.to_pylist()


def test_learned_state_in_its_small_form(tmp_path: Path, here: None) -> None:
    """All records are processed (`measure` raises otherwise)."""
    sizes = learned_state.Sizes(
        contestants=("scored",), keys=200, first_rows=200, batch_rows=50, batches=2, warm_up=0, rounds=1
    )
    result = json.loads(json.dumps(learned_state.measure(sizes, tmp_path)))
    (run,) = result["runs"]
    assert (run["state"], run["ratio"]) == ("model that scores and learns", 1.0)
    assert run["batch_ms"] > 0
    learned_state.show(result)


def test_state_dump_in_its_small_form(tmp_path: Path, here: None) -> None:
    """The dump is valid and has every room (`measure` raises otherwise), and micro-batches ran meanwhile."""
    # A dump this small takes a moment, so micro-batches follow each other at once.
    sizes = state_dump.Sizes(
        keys=600, batch_rows=200, interval_ms=100, warm_up=1, before=2, dumps=1, settings_rows=300
    )
    result = json.loads(json.dumps(state_dump.measure(sizes, tmp_path)))
    assert 600 < result["rows"] <= 1_200
    assert result["ratio"] > 0
    assert result["batches_before"] >= 2
    assert result["batches_during"] > 0
    assert 0 < result["seconds"] < result["process_s"]
    state_dump.show(result)


def test_state_query_in_its_small_form(tmp_path: Path, here: None) -> None:
    """Answers have every room, as of the newest micro-batch (`measure` raises otherwise), while micro-batches
    run.
    """
    sizes = state_query.Sizes(
        keys=300,
        batch_rows=100,
        interval_ms=100,
        warm_up=0,
        before=1,
        queries=1,
        pause_s=0,
        settings_rows=300,
    )
    result = json.loads(json.dumps(state_query.measure(sizes, tmp_path)))
    assert result["ratio"] > 0
    assert result["batches_before"] >= 1
    assert all(0 < times["median_s"] <= times["longest_s"] for times in result["queries"].values())
    state_query.show(result)


def test_windows_in_their_small_form(tmp_path: Path, here: None) -> None:
    """Spark emits the expected windows (`measure` raises otherwise), and the JSON has its keys."""
    sizes = windows.Sizes(
        keys=100, files=2, file_rows=2_000, span_ms=30_000, rounds=1, contestants=("spark",)
    )
    result = json.loads(json.dumps(windows.measure(sizes, tmp_path)))
    assert set(result["rows_per_s"]) == set(result["rss_mb"]) == {"spark"}
    assert result["rows_per_s"]["spark"] > 0
    assert (result["keys"], result["rows"], result["by_spark"]) == (100, 4_000, None)
    windows.show(result)


def test_windows_report_how_much_faster_penstock_is() -> None:
    """The rows per second of the fast path are beside those of Spark and of PySpark."""
    speeds = {"spark": 400, "columns": 1_000, "pyspark": 30}
    result = windows.report(windows.Sizes(), speeds, dict.fromkeys(speeds, 700))
    assert (result["rows_per_s"], result["by_spark"], result["by_python"]) == (speeds, 2.5, 33.3)
    windows.show(result)


@pytest.mark.parametrize("name", ["columns", "records", "custom", "distinct"])
def test_each_window_job_emits_the_windows_of_the_fold(name: str, tmp_path: Path) -> None:
    """The jobs whose windows are counted agree with the model; a result without one of the windows does not."""
    sizes = windows.Sizes(keys=20, files=2, file_rows=1_000, span_ms=30_000)
    expected = windows.write_input(tmp_path / "readings", sizes, sizes.files)
    job: ps.Job = getattr(window_jobs, name)
    running = BatchRunner(job, parallelism=2)
    found = []
    for number in range(sizes.files):
        rows = pq.read_table(tmp_path / "readings" / f"{number:04d}.parquet").to_pylist()
        readings = [window_jobs.Reading(**row) for row in rows]
        ends = number == sizes.files - 1
        sinks = running.run({"readings": [("0", readings)]}, ends=ends).sinks
        found += [batch for batch, _ in sinks["means"].batches] if "means" in sinks else []
    emitted = pa.Table.from_batches(found)
    (tmp_path / "out").mkdir()
    pq.write_table(emitted, tmp_path / "out" / "0.parquet")
    windows.check(name, tmp_path / "out", expected)
    pq.write_table(emitted.slice(1), tmp_path / "out" / "0.parquet")
    with pytest.raises(RuntimeError, match=f"{name} emitted"):
        windows.check(name, tmp_path / "out", expected)


def test_open_windows_in_their_small_form(tmp_path: Path, here: None) -> None:
    """The windows, opened in two micro-batches, emit the expected means (`measure` raises otherwise) at their
    end.
    """
    sizes = open_windows.Sizes(
        windows=(600,),
        per_key=(20,),
        roads=("columns",),
        batch_rows=200,
        batches=1,
        counted=1,
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


def test_growth_compares_the_last_tenth_with_the_second() -> None:
    """Medians of the two tenths are compared; measurements in between do not count."""
    series = soak.Series()
    for at, value in [
        (0.0, 900.0),
        (0.1, 9.0),
        (0.15, 10.0),
        (0.2, 11.0),
        (0.5, 99.0),
        (0.92, 12.0),
        (1.0, 13.0),
    ]:
        series.add(at, value)
    assert soak.growth(series) == (10.0, 12.5, 25.0)
    assert soak.growth(series, typical=min) == (9.0, 12.0, pytest.approx(100 / 3))
    # A slow machine may have no measurement in one of them.
    assert soak.growth(soak.Series([0.05, 0.3, 0.6], [1.0, 2.0, 3.0])) == (2.0, 3.0, 50.0)
    with pytest.raises(RuntimeError, match="The soak is too short"):
        soak.growth(soak.Series())


def test_the_soak_in_its_small_form(tmp_path: Path) -> None:
    """Commands are applied one by one (`measure` raises otherwise), and no micro-batch leaks a socket."""
    sizes = soak.Sizes(
        seconds=6, keys=300, rows=100, period_s=0.6, interval_ms=600, remembered=100, samples=30, part=0.2
    )
    result = json.loads(json.dumps(soak.measure(sizes, tmp_path)))
    assert result["commands"] > 1
    assert result["records"] > 0
    assert set(result["growth_percent"]) == set(result["early"]) == set(result["late"])
    # Each task of a micro-batch connects to the JVM for its state, two tasks in each: a leak is 1.2 times the bound.
    assert result["late"]["open_files"] - result["early"]["open_files"] < result["batches"]
    assert {"commits", "offsets", "state"} <= set(result["checkpoint_folders_mb"])
    soak.show(result)


@pytest.mark.chaos
@pytest.mark.parametrize("checkpoint_interval", ["0s", "1s"])
def test_model_swaps_lose_and_double_nothing(checkpoint_interval: str, tmp_path: Path) -> None:
    """Both modes run; the benchmark itself compares records with scores."""
    # It loads scikit-learn, which the other tests of this file do not need.
    from benchmarks import model_swaps

    sizes = model_swaps.Sizes(
        batch_rows=2_000,
        interval_ms=200,
        checkpoint_interval=checkpoint_interval,
        warm_up=2,
        apart=2,
        swaps=2,
        trees=5,
    )
    found = model_swaps.measure(sizes, tmp_path)
    assert found["batches"] > 6
    assert found["ratio"] >= 1
    assert set(found["longest_of_kind_ms"]) == {
        "load-model",
        "validate-model",
        "shadow-model",
        "promote-model",
    }


@pytest.mark.parametrize("name", ["totals", "top", "newest", "over"])
def test_each_table_job_has_the_rows_of_the_fold(name: str, tmp_path: Path) -> None:
    """A result without one of the rows is detected."""
    sizes = tables.Sizes(keys=20, files=2, file_rows=1_000)
    readings = tables.write_input(tmp_path / "readings", sizes)
    running = BatchRunner(getattr(table_jobs, name), parallelism=2)
    found = []
    for path in sorted((tmp_path / "readings").iterdir()):
        rows = pq.read_table(path).to_pylist()
        result = running.run({"readings": [("", [json.dumps(row).encode() for row in rows])]})
        found += [batch for batch, _ in result.sinks["rows"].batches] if "rows" in result.sinks else []
    result = running.run({}, ends=True)
    found += [batch for batch, _ in result.sinks["rows"].batches] if "rows" in result.sinks else []
    table = pa.Table.from_batches(found)
    tables.check(name, table, readings)
    with pytest.raises(RuntimeError, match="the fold"):
        tables.check(name, table.slice(0, len(table) - 1), readings)
