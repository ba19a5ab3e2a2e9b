"""State on Spark: jobs that are rescaled, dumped, carried over or changed give the output of jobs that are not."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration_support import RunJob, read_lines, write_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_state import read_described
from penstock.errors import StateMismatchError
from penstock.jobs.job_loader import LoadedJob, load_job
from penstock.jobs.runner import JobRunner, RunSummary
from penstock.jobs.settings import RunSettings
from penstock.queries.job_tables import query_job
from penstock.queries.snapshot_tables import query_snapshot
from penstock.savepoints.rescaling import rescale
from penstock.savepoints.snapshot_capture import Capture, capture
from penstock.savepoints.state_pages import KeysWanted, key_page
from penstock.snapshots.differences import diff
from penstock.snapshots.manifest import Manifest

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Example:
    """An example job, its streams, its sinks, and the input of each micro-batch."""

    job: str
    streams: tuple[str, ...]
    sink: str

    def stages(self, folder: Path) -> list[dict[str, str]]:
        """Return the lines of each stream in each of three or four micro-batches."""
        if self.job.startswith("temperature"):
            return list(temperatures())
        place = EXAMPLES / Path(self.job).parent
        subprocess.run([sys.executable, str(place / "feed.py"), str(folder)], check=True)
        found = []
        for stage in sorted(folder.iterdir()):
            parts = {name: stage / f"{name}.jsonl" for name in self.streams}
            found.append({name: path.read_text() if path.exists() else "" for name, path in parts.items()})
        return found


def temperatures() -> Iterator[dict[str, str]]:
    chance = random.Random(5)
    for stage in range(3):
        settings = [
            {"sensor_id": chance.randrange(300), "desired": 20.0 + stage, "up_delta": 1.0, "down_delta": 1.0}
            for _ in range(200)
        ]
        readings = [
            {"sensor_id": chance.randrange(300), "temperature": chance.uniform(14, 28)} for _ in range(2_000)
        ]
        yield {
            "settings": "".join(json.dumps(record) + "\n" for record in settings),
            "readings": "".join(json.dumps(record) + "\n" for record in readings),
        }


JOBS = {
    "record by record": Example("temperature_control/job.py", ("settings", "readings"), "heaters"),
    "vectorised": Example("temperature_control/vectorised.py", ("settings", "readings"), "heaters"),
    "rules": Example("dynamic_rules/rules_job.py", ("rules", "commands", "payments"), "alerts"),
    "flags": Example("feature_flags/flags_job.py", ("flags", "commands", "views"), "exposures"),
}


@dataclass
class Runs:
    """Bounded runs of an example in one folder."""

    example: Example
    folder: Path
    loaded: LoadedJob

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / "checkpoint")

    def add(self, number: int, stage: dict[str, str]) -> None:
        for name, lines in stage.items():
            place = self.folder / name
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.jsonl").write_text(lines)

    def run(self, **settings: Any) -> RunSummary:
        bindings = {n: f"jsonl:{self.folder / n}?max_files_per_batch=1" for n in self.example.streams}
        bindings[self.example.sink] = f"jsonl:{self.folder / 'out'}"
        settings.setdefault("checkpoint", str(self.checkpoint.folder))
        run = RunSettings(bindings=bindings, bounded=True, **settings)
        return JobRunner(self.loaded.job, run, self.loaded.code).run()

    def out(self) -> list[str]:
        """Return the output in a canonical order of keys; the order within a key is kept."""
        return sorted(json.dumps(record) for record in read_lines(self.folder / "out"))


@pytest.mark.parametrize(
    "name",
    [
        "rules",
        # Their states are of the same kinds.
        pytest.param("vectorised", marks=pytest.mark.chaos),
        pytest.param("flags", marks=pytest.mark.chaos),
        pytest.param("record by record", marks=pytest.mark.chaos),
    ],
)
def test_a_job_that_is_rescaled_gives_what_it_gives_without(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """It goes from 2 to 4 to 3 tasks between micro-batches, also twice in a row without a micro-batch."""
    example = JOBS[name]
    stages = example.stages(tmp_path / "feed")
    loaded = load_job(str(EXAMPLES / example.job))
    straight = Runs(example, tmp_path / "straight", loaded)
    for number, stage in enumerate(stages):
        straight.add(number, stage)
    straight.run(parallelism=2)
    assert straight.out()
    often = Runs(example, tmp_path / "often", loaded)
    for number, stage in enumerate(stages):
        often.add(number, stage)
        often.run(parallelism=2)
        if number == 0:
            rescale(spark, often.checkpoint, 1)
        if number < 2:
            rescale(spark, often.checkpoint, (4, 3)[number])
    assert often.out() == straight.out()
    captured = [
        capture(spark, runs.checkpoint, Capture("dump", str(tmp_path / f"dump-{place}"), "jsonl"))
        for place, runs in enumerate((straight, often))
    ]
    assert captured[0].digest == captured[1].digest
    assert captured[0].key_groups == 128
    assert_queries_alike((straight, often), str(tmp_path / "dump-1"), captured[1])
    assert_keys_alike((straight, often), captured[1])
    assert not (often.folder / "checkpoint" / "rescaling.json").exists()


def assert_queries_alike(jobs: tuple[Runs, ...], dump: str, manifest: Manifest) -> None:
    """Check that queries of the state, read without Spark, equal those of the dump, for each table and step."""
    tables = [table for table in manifest.tables if table.kind != "internal"]
    assert any(table.rows for table in tables)
    steps = {table.step for table in tables if table.kind == "state"}
    for name in [*(table.name for table in tables), *sorted(steps)]:
        query = f'select * from state."{name}" order by all'
        expected = query_snapshot(dump, query).to_pylist()
        for runs in jobs:
            found = query_job(str(runs.checkpoint.folder), query)
            assert found.rows.to_pylist() == expected, name


def assert_keys_alike(jobs: tuple[Runs, ...], manifest: Manifest) -> None:
    """Check that the keys of the state, read without Spark, are the same in each job and as many as in a dump."""
    for step in {table.step for table in manifest.tables if table.kind == "state"}:
        pages = [
            key_page(
                runs.checkpoint, read_described(runs.checkpoint.folder), KeysWanted(step=step, limit=10**6)
            )
            for runs in jobs
        ]
        assert all(page.items == pages[0].items for page in pages)
        for table in manifest.tables:
            if table.kind == "state" and table.step == step:
                state = table.name.removeprefix(f"{step}/")
                held = [(one.values or {}).get(state) for one in pages[0].items]
                assert sum(value is not None for value in held) == table.rows, table.name


def test_a_dump_is_the_beginning_of_another_job(spark: SparkSession, tmp_path: Path) -> None:
    """The new job has another parallelism and number of key groups; its own dump has the same content."""
    example = JOBS["record by record"]
    loaded = load_job(str(EXAMPLES / example.job))
    runs = Runs(example, tmp_path / "first", loaded)
    stages = list(temperatures())
    for number, stage in enumerate(stages):
        runs.add(number, stage)
    runs.run()
    first = capture(spark, runs.checkpoint, Capture("dump", str(tmp_path / "dump"), "csv"))
    again = capture(spark, runs.checkpoint, Capture("dump", str(tmp_path / "again"), "csv"))
    assert contents(tmp_path / "dump") == contents(tmp_path / "again"), "the same bytes"
    loaded.job.key_groups = 50
    other = Runs(example, tmp_path / "second", loaded)
    other.add(0, dict.fromkeys(example.streams, ""))
    summary = other.run(from_dump=str(tmp_path / "dump"), parallelism=3)
    assert summary.state == {"thermostat": first.table("thermostat/setting").rows}
    second = capture(spark, other.checkpoint, Capture("dump", str(tmp_path / "second dump"), "parquet"))
    assert (second.digest, second.key_groups) == (first.digest, 50)
    assert diff(str(tmp_path / "dump"), str(tmp_path / "second dump")).same
    assert again.batch == len(stages) - 1
    key = json.loads(stages[0]["settings"].splitlines()[0])["sensor_id"]

    def values(runs: Runs, key: object) -> list[dict[str, Any] | None]:
        state, wanted = read_described(runs.checkpoint.folder), KeysWanted(step="thermostat", key=str(key))
        return [one.values for one in key_page(runs.checkpoint, state, wanted).items]

    (value,) = values(runs, key)
    assert value
    assert values(other, key) == [value]
    assert values(runs, 999) == []


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_savepoint_goes_on_where_the_job_stood(spark: SparkSession, tmp_path: Path) -> None:
    """The job has a new checkpoint and reads the same folders; both runs together equal one run."""
    example = JOBS["record by record"]
    loaded = load_job(str(EXAMPLES / example.job))
    runs = Runs(example, tmp_path / "runs", loaded)
    straight = Runs(example, tmp_path / "straight", loaded)
    for number, stage in enumerate(temperatures()):
        straight.add(number, stage)
        runs.add(number, stage)
        if number == 1:
            runs.run()
            place = tmp_path / "runs" / "savepoints" / "one"
            capture(spark, runs.checkpoint, Capture("savepoint", str(place), "arrow", "one"))
    straight.run()
    # Workers import this module, but they do not have that one.
    from state_stores import stop_state_stores

    stop_state_stores(spark)
    shutil.rmtree(runs.checkpoint.folder)
    runs.run(from_savepoint=str(place), parallelism=4)
    assert runs.out() == straight.out()


@dataclass
class Visit:
    user: str
    pages: int


@dataclass
class Total:
    user: str
    visits: int
    pages: int


class Count(ps.ProcessFunction):
    visits = ps.ValueState(int)
    pages = ps.ValueState(int)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Total]:
        self.visits.set((self.visits.get() or 0) + 1)
        self.pages.set((self.pages.get() or 0) + visit.pages)
        yield Total(visit.user, self.visits.get() or 0, self.pages.get() or 0)


class Renamed(ps.ProcessFunction):
    """The state visits is renamed to calls, pages has a wider type, and there is one more state."""

    calls = ps.ValueState(int, renamed_from="visits")
    pages = ps.ValueState(int)
    longest = ps.ReducingState(int, max)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Total]:
        self.calls.set((self.calls.get() or 0) + 1)
        self.pages.set((self.pages.get() or 0) + visit.pages)
        self.longest.add(visit.pages)
        yield Total(visit.user, self.calls.get() or 0, self.pages.get() or 0)


class Narrowed(ps.ProcessFunction):
    visits = ps.ValueState(str)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Total]:
        yield Total(visit.user, 0, 0)


def visits_job(function: ps.ProcessFunction, step: str = "count") -> ps.Job:
    job = ps.Job("visits")
    visits = job.data_stream("visits", schema=Visit)
    visits.key_by("user").process(step, function).sink_to("totals")
    return job


def test_a_changed_job_takes_its_state_over_or_is_refused(
    spark: SparkSession, run_job: RunJob, tmp_path: Path
) -> None:
    """In place and from a savepoint states are renamed and added; misfits are refused before data is read."""
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    bindings = {"visits": f"jsonl:{tmp_path / 'visits'}", "totals": f"jsonl:{tmp_path / 'totals'}"}
    write_lines(tmp_path / "visits", "1.jsonl", [{"user": "ann", "pages": 3}, {"user": "bob", "pages": 1}])
    run_job(visits_job(Count()), bindings)
    capture(spark, checkpoint, Capture("savepoint", str(tmp_path / "savepoint"), "arrow", "one"))
    write_lines(tmp_path / "visits", "2.jsonl", [{"user": "ann", "pages": 4}])
    with pytest.raises(
        StateMismatchError, match="count/visits: it is declared as string, and found as int64"
    ):
        run_job(visits_job(Narrowed()), bindings)
    with pytest.raises(StateMismatchError, match="has the steps count, and the job has tell"):
        run_job(visits_job(Renamed(), "tell"), bindings)
    run_job(visits_job(Renamed()), bindings)
    assert read_lines(tmp_path / "totals")[-1] == {"user": "ann", "visits": 2, "pages": 7}
    write_lines(tmp_path / "visits", "3.jsonl", [{"user": "ann", "pages": 1}])
    run_job(visits_job(Count()), bindings)
    assert read_lines(tmp_path / "totals")[-1] == {"user": "ann", "visits": 1, "pages": 8}, "dropped is gone"
    (tmp_path / "visits" / "3.jsonl").unlink()
    more = {"checkpoint": str(tmp_path / "other"), "from_savepoint": str(tmp_path / "savepoint")}
    bindings["totals"] = f"jsonl:{tmp_path / 'others'}"
    with pytest.raises(
        StateMismatchError, match="holds state of the step 'count', which the job no longer has"
    ):
        run_job(visits_job(Renamed(), "tell"), bindings, **more)
    assert not (tmp_path / "other" / "lineage.json").exists()
    run_job(visits_job(Renamed()), bindings, **more)
    assert read_lines(tmp_path / "others") == [{"user": "ann", "visits": 2, "pages": 7}]
    more["checkpoint"] = str(tmp_path / "third")
    run_job(visits_job(Renamed(), "tell"), bindings, allow_non_restored_state=True, **more)
    assert read_lines(tmp_path / "others")[-1] == {"user": "ann", "visits": 1, "pages": 4}
