"""A damaged checkpoint of a real job is repaired, or refused with an error that names the file and the
remedy.

One short run records the checkpoint. It is damaged in place, since Spark finds some of its files only there.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import recorded_job
from integration_support import RunJob, read_lines, write_lines
from pyspark.sql import SparkSession
from reliability import Injected, noting
from state_stores import stop_state_stores

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import check_checkpoint
from penstock.checkpoints.described_state import read_described
from penstock.checkpoints.ownership import LOCK_FILE
from penstock.checkpoints.state_files import StateFiles
from penstock.doctor.checkpoints import examine_checkpoint
from penstock.doctor.findings import Finding
from penstock.errors import CheckpointError, PenstockError
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings
from penstock.spark.stored_state import StateLocation, read_slots

BATCHES = 9
SENSORS = 4
Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Recorded:
    """A job's input, output and checkpoint, and a copy of all of them to restore."""

    folder: Path
    copy: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def reset(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)

    def check(self) -> None:
        check_checkpoint(Checkpoint.open(str(self.checkpoint)), 100)


# Take snapshots of the state soon and often, instead of each minute.
SNAPSHOTS = {
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Recorded:
    """Record a run of nine micro-batches, so that each partition has a second snapshot."""
    folder = tmp_path_factory.mktemp("recorded")
    for number in range(BATCHES):
        readings = ({"sensor": sensor, "number": number} for sensor in range(SENSORS))
        write_lines(folder / "readings", f"{number}.jsonl", readings)
    settings = RunSettings(
        bindings=bindings_in(folder),
        bounded=True,
        checkpoint=str(folder / "checkpoint"),
        parallelism=2,
        spark_settings=SNAPSHOTS,
    )
    with maintenance_anew(spark):
        JobRunner(recorded_job.job, settings, {"recorded_job.py": Path(recorded_job.__file__)}).run()
        partitions = [folder / "checkpoint" / "state" / "0" / str(number) for number in range(2)]
        deadline = time.monotonic() + 60
        while any(len(list(partition.glob("*.zip"))) < 2 for partition in partitions):
            assert time.monotonic() < deadline, "no snapshots"
            time.sleep(0.1)
    copy = folder.with_name(folder.name + "-copy")
    shutil.copytree(folder, copy)
    return Recorded(folder, copy)


def bindings_in(folder: Path) -> dict[str, str]:
    return {
        "readings": f"jsonl:{folder / 'readings'}?max_files_per_batch=1",
        "seen": f"jsonl:{folder / 'seen'}",
    }


@contextlib.contextmanager
def maintenance_anew(spark: SparkSession) -> Iterator[None]:
    """Stop Spark's state maintenance, which otherwise keeps the interval of its first user."""
    stop_state_stores(spark)
    try:
        yield
    finally:
        stop_state_stores(spark)


@pytest.fixture
def recorded(recording: Recorded) -> Recorded:
    """Restore the recorded checkpoint in its original place."""
    recording.reset()
    return recording


# Kinds of damage


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.write_bytes(b"")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def without_checksums(path: Path) -> None:
    """Remove checksums that would reveal a change of the file."""
    for name in (f"{path.name}.crc", f".{path.name}.crc", f".{path.name}.crc.crc"):
        path.with_name(name).unlink(missing_ok=True)


def versions(checkpoint: Path, ending: str, partition: int = 0) -> list[Path]:
    """Return the state files of a partition with a suffix, the newest last."""
    found = (checkpoint / "state" / "0" / str(partition)).glob(f"[0-9]*.{ending}")
    return sorted(found, key=lambda path: int(path.name.split("_")[0]))


def newest(ending: str) -> Callable[[Path], Path]:
    return lambda checkpoint: versions(checkpoint, ending)[-1]


def at(name: str) -> Callable[[Path], Path]:
    return lambda checkpoint: checkpoint / name


def only(pattern: str) -> Callable[[Path], Path]:
    def find(checkpoint: Path) -> Path:
        (path,) = [path for path in checkpoint.glob(pattern) if not path.name.startswith(".")]
        return path

    return find


SCHEMA, DESCRIPTION = only("state/0/_stateSchema/default/*"), only("state/0/_metadata/v2/*")
ANY = (delete, empty, truncate)
DAMAGES: dict[str, tuple[Callable[[Path], Path], Iterable[Callable[[Path], None]], str]] = {
    "metadata": (at("metadata"), ANY, "Restore the file from a copy"),
    "newest offsets": (at(f"offsets/{BATCHES - 1}"), ANY, "Restore the file from a copy"),
    "older offsets": (at("offsets/3"), ANY, "Restore the file from a copy"),
    "newest commit": (
        at(f"commits/{BATCHES - 1}"),
        (empty, truncate),
        "or delete it: micro-batch 8 is then repeated",
    ),
    "older commit": (at("commits/3"), ANY, "Restore the file from a copy"),
    "commit before the newest": (at(f"commits/{BATCHES - 2}"), ANY, "Restore the file from a copy"),
    "offsets": (at("offsets"), (delete, empty), "Restore the f"),
    "commits": (at("commits"), (delete, empty), "Restore the file from a copy"),
    "state": (at("state"), (delete, empty), "Restore the folder from a copy"),
    "partition": (at("state/0/1"), (delete,), "Restore the folder from a copy"),
    "newest changelog": (newest("changelog"), ANY, "Restore the file from a copy"),
    "description of the state": (DESCRIPTION, (empty, truncate), "Restore the file from a copy"),
    "schema of the state": (SCHEMA, (delete, empty), "Restore the file from a copy"),
    "lineage": (at("lineage.json"), ANY, "Restore the file from a copy"),
    "counts": (at("counts.json"), (empty, truncate), "or delete it"),
    "mark": (at("begun.json"), (empty,), "or delete it"),
    "list of files": (at("sources/readings.files"), ANY, "Restore the file from a copy"),
}
CASES = [
    pytest.param(find, how, remedy, id=f"{name}-{how.__name__}")
    for name, (find, ways, remedy) in DAMAGES.items()
    for how in ways
]


@pytest.mark.parametrize(("find", "how", "remedy"), CASES)
def test_damage_is_told_with_its_file_and_remedy(
    recorded: Recorded, find: Callable[[Path], Path], how: Callable[[Path], None], remedy: str
) -> None:
    """The error comes before Spark opens anything, and names the file and the remedy, for any damage."""
    path = find(recorded.checkpoint)
    how(path)
    with pytest.raises(CheckpointError, match=re.escape(remedy)) as caught:
        recorded.check()
    assert str(path) in str(caught.value)


def test_a_whole_checkpoint_is_accepted_in_milliseconds(recorded: Recorded) -> None:
    """Checking it costs next to nothing; best of five, since the machine may be busy."""
    times = []
    for _ in range(5):
        begun_s = time.perf_counter()
        recorded.check()
        times.append(time.perf_counter() - begun_s)
    assert min(times) < 0.1


def doctor(checkpoint: Path) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine_checkpoint(Checkpoint(checkpoint))}


def test_the_doctor_tells_where_a_whole_checkpoint_stands(recorded: Recorded) -> None:
    """It finds nothing wrong."""
    found = doctor(recorded.checkpoint)
    assert {finding.status for finding in found.values()} == {"ok"}
    assert found["checkpoint use"].found == "no run uses it now"
    assert found["checkpoint files"].found.startswith(f"intact; micro-batch {BATCHES - 1} was committed last")


def test_the_doctor_finds_a_bit_that_no_start_looks_at(recorded: Recorded) -> None:
    """It reads the state, which a start leaves to Spark."""
    # A start reads only the beginning of the newest file, which names the earlier ones.
    path = versions(recorded.checkpoint, "changelog")[-2]
    flip(path)
    without_checksums(path)
    recorded.check()
    finding = doctor(recorded.checkpoint)["checkpoint files"]
    assert (finding.status, str(path) in finding.found) == ("failed", True)
    assert "Restore the file from a copy" in finding.remedy


def test_a_micro_batch_whose_offsets_and_commit_are_gone_is_missed(recorded: Recorded) -> None:
    """Shortened logs do not count as an earlier checkpoint: the outputs are ahead of it."""
    for log in ("offsets", "commits"):
        delete(recorded.checkpoint / log / str(BATCHES - 1))
    with pytest.raises(CheckpointError, match=f"offsets/{BATCHES - 1} is missing"):
        recorded.check()


def test_nothing_starts_from_zero_without_offsets_commits_and_counts(recorded: Recorded) -> None:
    """When all of Spark's files are gone, the mark still shows that the job has started."""
    for name in ("offsets", "commits", "state", "metadata", "counts.json"):
        delete(recorded.checkpoint / name)
    with pytest.raises(CheckpointError, match="it would begin from nothing"):
        recorded.check()


def test_all_snapshots_are_gone(recorded: Recorded) -> None:
    """Changelogs without a snapshot are no state."""
    for path in versions(recorded.checkpoint, "zip"):
        delete(path)
    with pytest.raises(CheckpointError, match=r"state/0/0 has no snapshot \(\.zip\)"):
        recorded.check()


def test_a_table_file_of_all_snapshots_is_gone(recorded: Recorded) -> None:
    """The files that a snapshot refers to are part of it."""
    tables = list((recorded.checkpoint / "state/0/0/SSTs").glob("*.sst"))
    assert tables
    for path in [*tables, versions(recorded.checkpoint, "zip")[0]]:
        delete(path)
    with pytest.raises(CheckpointError, match=r"SSTs/\S+\.sst is missing"):
        recorded.check()


def test_a_moved_checkpoint_is_told_where_it_was(recorded: Recorded, tmp_path: Path) -> None:
    """Spark finds some files only where they were written."""
    moved = tmp_path / "moved"
    shutil.move(recorded.checkpoint, moved)
    with pytest.raises(CheckpointError, match="was moved") as caught:
        check_checkpoint(Checkpoint.open(str(moved)), 100)
    assert str(recorded.checkpoint) in str(caught.value)


def test_the_state_after_a_micro_batch_that_is_not_there_is_told(
    recorded: Recorded, spark: SparkSession
) -> None:
    """Spark notices that before it reads any state."""
    (step,) = read_described(recorded.checkpoint).steps.values()
    place = StateLocation(str(recorded.checkpoint), StateFiles(recorded.checkpoint).operator_of)
    with pytest.raises(
        CheckpointError, match=r"after micro-batch 999 in .* cannot be read: .*COMMITTED_BATCH"
    ):
        read_slots(spark, place, 999, step.node, lambda *_: [])


def lose_newest_snapshots(checkpoint: Path) -> None:
    """Remove the newest snapshot of one partition, and truncate that of the other."""
    delete(versions(checkpoint, "zip", 0)[-1])
    empty(versions(checkpoint, "zip", 1)[-1])


def lose_newest_commit_and_derived_files(checkpoint: Path) -> None:
    delete(checkpoint / "commits" / str(BATCHES - 1))
    for name in ("counts.json", "streams.json", "control.json", "epoch.json"):
        delete(checkpoint / name)


def break_derived_files(checkpoint: Path) -> None:
    for name in ("streams.json", "control.json"):
        empty(checkpoint / name)


def write_readings(folder: Path, number: int) -> None:
    """Write one more file."""
    readings = ({"sensor": sensor, "number": number} for sensor in range(SENSORS))
    write_lines(folder / "readings", f"{number:04}.jsonl", readings)


def run_on(recorded: Recorded, run_job: Any) -> list[dict[str, int]]:
    """Run the job on two more files, and return all of its output."""
    for number in (BATCHES, BATCHES + 1):
        write_readings(recorded.folder, number)
    run_job(recorded_job.job, bindings_in(recorded.folder), checkpoint=str(recorded.checkpoint))
    return read_lines(recorded.folder / "seen")


@pytest.mark.parametrize(
    "how",
    [lose_newest_snapshots, lose_newest_commit_and_derived_files, break_derived_files],
)
def test_what_can_be_made_anew_is_no_damage(recorded: Recorded, run_job: Any, how: Damage) -> None:
    """Files that others imply are recreated, and the job continues: each reading counts exactly once."""
    how(recorded.checkpoint)
    seen = run_on(recorded, run_job)
    assert sorted((row["sensor"], row["count"]) for row in seen) == [
        (sensor, count) for sensor in range(SENSORS) for count in range(1, BATCHES + 3)
    ]


def lose_the_commit(checkpoint: Path) -> None:
    empty(checkpoint / "commits" / str(BATCHES - 1))


def lose_the_state_that_was_written_last(checkpoint: Path) -> None:
    """Keep the last commit, but remove some of the state that it names."""
    truncate(versions(checkpoint, "changelog", 0)[-1])
    delete(versions(checkpoint, "changelog", 1)[-1])


def lose_all_that_came_last(checkpoint: Path) -> None:
    """Keep what was synced by the last micro-batch, and only the plan of the next one."""
    newest = checkpoint / "commits" / str(BATCHES - 1)
    plan = (checkpoint / "offsets" / str(BATCHES - 1)).read_text()
    later = plan.replace(f'"position": {BATCHES}', f'"position": {BATCHES + 1}')
    (checkpoint / "offsets" / str(BATCHES)).write_text(later)
    write_readings(checkpoint.parent, BATCHES)
    found = checkpoint.parent / "readings" / f"{BATCHES:04}.jsonl"
    listed = {"directory": str(found.parent), "name": found.name, "size": found.stat().st_size, "mtime_ns": 0}
    with (checkpoint / "sources" / "readings.files").open("a") as files:
        files.write(json.dumps(listed) + "\n")
    for path in [newest, *versions(checkpoint, "changelog", 0)[-1:], *versions(checkpoint, "zip", 1)[-1:]]:
        empty(path)
        empty(path.with_name(f".{path.name}.crc"))


@pytest.mark.parametrize(
    "how", [lose_the_commit, lose_the_state_that_was_written_last, lose_all_that_came_last]
)
def test_what_a_power_loss_takes_is_made_good(recorded: Recorded, run_job: Any, how: Damage) -> None:
    """No output depends on the lost files: the job repeats the last micro-batch, and each reading counts
    exactly once.
    """
    before = read_lines(recorded.folder / "seen")
    how(recorded.checkpoint)
    seen = run_on(recorded, run_job)
    assert seen[: len(before)] == before
    assert sorted((row["sensor"], row["count"]) for row in seen) == [
        (sensor, count) for sensor in range(SENSORS) for count in range(1, BATCHES + 3)
    ]


def flipped_changelog(checkpoint: Path) -> Path:
    # The newest file is read at the start, and recreated.
    path = versions(checkpoint, "changelog")[-2]
    flip(path)
    return path


def flipped_changelog_without_checksum(checkpoint: Path) -> Path:
    path = flipped_changelog(checkpoint)
    without_checksums(path)
    return path


def flipped_tables(checkpoint: Path) -> Path:
    paths = sorted((checkpoint / "state/0/0/SSTs").glob("*.sst"))
    for path in [*paths, versions(checkpoint, "zip")[0]]:
        flip(path)
    # Only Spark's log says which file it is.
    return checkpoint / "state"


def flipped_offsets(checkpoint: Path) -> Path:
    """Change a digit of a position, so that it is still JSON."""
    path = checkpoint / "offsets" / str(BATCHES - 1)
    path.write_text(path.read_text().replace(f'"position": {BATCHES}', f'"position": {BATCHES - 1}'))
    return path


def flipped_id(checkpoint: Path) -> Path:
    """Change a digit of the query's id, which Spark reads before the query starts."""
    path = checkpoint / "metadata"
    content = json.loads(path.read_text())
    content["id"] = content["id"][:-1] + ("1" if content["id"].endswith("0") else "0")
    path.write_text(json.dumps(content))
    return path


def flipped_description(checkpoint: Path) -> Path:
    path = DESCRIPTION(checkpoint)
    path.write_text(path.read_text().replace("transformWithState", "transformWithstate"))
    return path


@pytest.mark.parametrize(
    "how",
    [
        flipped_changelog,
        flipped_changelog_without_checksum,
        flipped_tables,
        flipped_offsets,
        flipped_id,
        flipped_description,
    ],
)
def test_what_spark_finds_damaged_is_told_as_damage(
    recorded: Recorded, run_job: Any, how: Callable[[Path], Path]
) -> None:
    """Changed bits show only when Spark reads them: the error names the file, or the folder of the state."""
    before = read_lines(recorded.folder / "seen")
    path = how(recorded.checkpoint)
    with pytest.raises(CheckpointError, match="Restore the f") as caught:
        run_on(recorded, run_job)
    assert str(path) in str(caught.value)
    assert read_lines(recorded.folder / "seen") == before


def test_the_recording_is_what_it_should_be(recorded: Recorded) -> None:
    """On a checkpoint without snapshots and state the other tests would prove nothing."""
    assert len(versions(recorded.checkpoint, "zip")) >= 2
    assert json.loads((recorded.checkpoint / "begun.json").read_bytes()) == {"batch": BATCHES - 1}
    assert len(list((recorded.checkpoint / "commits").glob("[0-9]*"))) == BATCHES


# Random damage


def flip_somewhere(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate_somewhere(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def overwrite_somewhere(path: Path, chance: random.Random) -> None:
    """Overwrite a sector with zeros, as failing disks do."""
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data) + 1)
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    path.write_bytes(data)


def delete_file(path: Path, _: random.Random) -> None:
    path.unlink()


RANDOM_DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "file with a flipped bit": flip_somewhere,
    "truncated file": truncate_somewhere,
    "file with a sector of zeros": overwrite_somewhere,
    "deleted file": delete_file,
}


def damage_at_random(checkpoint: Path, chance: random.Random, injected: Injected) -> list[str]:
    """Damage one or several files, sometimes with their checksums; return what was done."""
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        paths = sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name != LOCK_FILE)
        # There are many checksum files, of which Spark reads few.
        named = [path for path in paths if not path.name.endswith(".crc")]
        path = chance.choice(named if chance.random() < 0.9 else paths)
        name = chance.choice(sorted(RANDOM_DAMAGES))
        RANDOM_DAMAGES[name](path, chance)
        if chance.random() < 0.3:
            without_checksums(path)
        injected.add(name)
        done.append(f"{name}: {path.relative_to(checkpoint)}")
    return done


def outcome(recorded: Recorded, run_job: RunJob) -> tuple[str, str]:
    """Return the error of a refused job, and what is wrong: a job must continue exactly, or be refused with a
    remedy.
    """
    told = ""
    try:
        run_on(recorded, run_job)
    except PenstockError as e:
        told = str(e)
        if str(recorded.checkpoint) not in told:
            return told, "names no file"
        if not re.search(r"Restore|[Dd]elete|[Mm]ake sure|Start|Choose", told):
            return told, "names no remedy"
    except Exception as e:
        return repr(e), "is no refusal"
    seen = read_lines(recorded.folder / "seen")
    found = collections.Counter((row["sensor"], row["count"]) for row in seen)
    right = {(sensor, count) for sensor in range(SENSORS) for count in range(1, BATCHES + 3)}
    wrong = [one for one, times in found.items() if times > 1 or one not in right]
    missing = [] if told else sorted(right - found.keys())
    return told, f"doubled or wrong: {wrong}, missing: {missing}" if wrong or missing else ""


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_damage_is_made_good_or_told(
    recording: Recorded, run_job: RunJob, spark: SparkSession, first: int
) -> None:
    """Damage of any files in any place never gives a wrong result."""
    seeds = f"{first} to {first + 24}"
    with noting("damaged checkpoints", "-k random_damage_is_made_good", seeds) as injected:
        found = {}
        for seed in range(first, first + 25):
            recording.reset()
            done = damage_at_random(recording.checkpoint, random.Random(seed), injected)
            told, wrong = outcome(recording, run_job)
            # The session continues to maintain the state in the folder that is now restored.
            stop_state_stores(spark)
            if wrong:
                found[seed] = [*done, told, wrong]
            injected.add("refusal with the file and the remedy" if told else "run that goes on exactly")
        assert not found, json.dumps(found, indent=1)
