"""The file sink: one whole file per batch, exactly once, whatever is repeated."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import enum
import itertools
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bindings.types import FilesBinding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks import file_sink
from penstock.sinks.base import TaskContext
from penstock.sinks.file_sink import FilesSink
from penstock.sources.file_tables import CsvFile, read_csv

COMMAND = record_type("sensor_id INT, command STRING")
Rows = Sequence[tuple[int, str | None]]


def batch(rows: Rows) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(COMMAND.schema)]
    return pa.RecordBatch.from_arrays(columns, schema=COMMAND.schema)


class Job:
    """Calls a sink as the runtime does, for one lineage; another `start` is a restart."""

    def __init__(
        self, folder: Path, file_format: str = "jsonl", lineage: str = "one", stream: str = "heaters"
    ) -> None:
        self.folder = folder
        self.lineage = lineage
        self.checkpoint = folder.parent / f"checkpoint-{lineage}"
        uri = f"{file_format}:{folder}"
        self.binding = FilesBinding(stream, uri, file_format, str(folder))  # type: ignore[arg-type]
        self.attempts = itertools.count()
        self.start()

    def start(self) -> None:
        self.sink = FilesSink(self.binding)
        self.sink.prepare(self.lineage, str(self.checkpoint))

    def newest(self) -> int:
        """Return the newest batch as a new run would find it."""
        return FilesSink(self.binding).newest(self.lineage, str(self.checkpoint))

    def note(self) -> bytes:
        return self._note.read_bytes()

    def put_back(self, note: bytes | None) -> None:
        """Restore an earlier note in the checkpoint, or remove it."""
        self._note.unlink() if note is None else self._note.write_bytes(note)

    @property
    def _note(self) -> Path:
        return self.checkpoint / f"files-sink-{self.binding.stream}.json"

    def stage(self, batch_id: int, *tasks: Rows) -> list[bytes]:
        messages = []
        for partition, rows in enumerate(tasks):
            context = TaskContext(batch_id, partition, next(self.attempts), self.lineage)
            task = pickle.loads(pickle.dumps(self.sink)).task(context, COMMAND)
            for row in rows:
                task.write(batch([row]), None)
            messages.append(task.finish())
        return messages

    def run(self, batch_id: int, *tasks: Rows) -> None:
        self.sink.commit(batch_id, self.stage(batch_id, *tasks))

    def visible(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))

    def staged(self) -> list[Path]:
        return list((self.folder / f".staging-{self.lineage}").iterdir())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "out")


def test_a_batch_becomes_one_file_in_the_order_of_its_partitions(job: Job) -> None:
    """The tasks' parts are joined in order, in a file whose name sorts by batch."""
    job.run(0, [(1, "ON")], [], [(2, "OFF"), (3, None)])
    job.run(7, [(4, "ON")])
    assert job.visible() == ["part-0001-0000000000.jsonl", "part-0001-0000000007.jsonl"]
    assert (job.folder / job.visible()[0]).read_text() == (
        '{"sensor_id":1,"command":"ON"}\n'
        '{"sensor_id":2,"command":"OFF"}\n'
        '{"sensor_id":3,"command":null}\n'
    )  # fmt: skip
    assert job.staged() == []


def test_an_empty_batch_leaves_no_file(job: Job) -> None:
    """Nothing is written when no task had a record."""
    job.run(0, [], [])
    job.run(1)
    assert job.visible() == []
    assert job.staged() == []


def test_nothing_is_visible_before_the_commit(job: Job) -> None:
    """Parts are hidden from readers of the directory."""
    job.stage(0, [(1, "ON")])
    assert job.visible() == []


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
def test_a_replayed_batch_is_not_written_again(tmp_path: Path, file_format: str) -> None:
    """After a crash that follows the commit, the replay finds its file and only cleans up."""
    job = Job(tmp_path / "out", file_format)
    job.run(0, [(1, "ON")], [(2, "ON")])
    path = job.folder / job.visible()[0]
    before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
    job.start()
    job.run(0, [(1, "ON")], [(2, "ON")])
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert job.visible() == [path.name]
    assert job.staged() == []


def test_a_file_taken_away_before_the_replay_is_not_written_again(job: Job) -> None:
    """Consumers may move files as soon as they see them."""
    job.run(0, [(1, "ON")])
    (job.folder / job.visible()[0]).unlink()
    job.start()
    job.run(0, [(1, "ON")])
    assert job.visible() == []
    job.run(1, [(1, "OFF")])
    assert job.visible() == ["part-0001-0000000001.jsonl"]


@pytest.mark.parametrize("crash", ["before publishing", "before the note", "before cleaning up"])
def test_a_crash_inside_the_commit_is_repaired_by_the_replay(
    job: Job, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """Wherever the commit stops, the replay leaves the batch there exactly once."""
    function = {
        "before publishing": "penstock.sinks.file_sink._publish",
        "before the note": "penstock.sinks.file_sink.write_atomically",
        "before cleaning up": "pathlib.Path.unlink",
    }[crash]

    def crashes(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        messages = job.stage(0, [(1, "ON")], [(2, "ON")])
        patched.setattr(function, crashes)
        with pytest.raises(KeyboardInterrupt):
            job.sink.commit(0, messages)
    job.start()
    assert job.staged() == [], "leftovers are cleared at the start"
    job.run(0, [(1, "ON")], [(2, "ON")])
    assert job.visible() == ["part-0001-0000000000.jsonl"]
    assert len((job.folder / job.visible()[0]).read_text().splitlines()) == 2
    assert job.staged() == []


def test_a_failed_task_leaves_nothing(job: Job) -> None:
    """An aborted task removes its part; the retry uses another name."""
    first = job.sink.task(TaskContext(0, 0, 0, "one"), COMMAND)
    second = job.sink.task(TaskContext(0, 0, 0, "one"), COMMAND)
    first.write(batch([(1, "ON")]), None)
    second.write(batch([(1, "ON")]), None)
    assert len(job.staged()) == 2
    first.abort()
    first.abort()
    job.sink.commit(0, [second.finish()])
    assert job.staged() == []
    assert len(job.visible()) == 1


def test_a_new_lineage_writes_beside_the_files_of_the_old(job: Job) -> None:
    """A job that starts anew in the same directory neither overwrites nor skips, and the old one can continue."""
    job.run(0, [(1, "ON")])
    new = Job(job.folder, lineage="two")
    new.run(0, [(2, "ON")])
    job.start()
    job.run(1, [(1, "OFF")])
    third = Job(job.folder, lineage="three")
    third.run(0, [(3, "ON")])
    assert job.visible() == [
        "part-0001-0000000000.jsonl",
        "part-0001-0000000001.jsonl",
        "part-0002-0000000000.jsonl",
        "part-0003-0000000000.jsonl",
    ]


def test_lineages_that_start_before_either_writes_have_different_epochs(tmp_path: Path) -> None:
    """The epoch is claimed at the start, not by the first file."""
    jobs = [Job(tmp_path / "out", lineage=name) for name in ("one", "two", "three")]
    for job in jobs:
        job.run(0, [(1, job.lineage)])
    assert len(jobs[0].visible()) == 3


def test_files_of_unknown_origin_raise_the_epoch(tmp_path: Path) -> None:
    """Files copied from elsewhere without claims also count."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-0041-0000000000.jsonl").touch()
    (out / "part-x-0.jsonl").touch()
    job = Job(out)
    job.run(0, [(1, "ON")])
    assert "part-0042-0000000000.jsonl" in job.visible()


def test_an_emptied_or_changed_directory_gets_an_epoch_that_is_free(tmp_path: Path) -> None:
    """A new epoch is chosen when another lineage has taken the epoch, or the directory is a different one."""
    job = Job(tmp_path / "out")
    for path in (tmp_path / "out").glob(".epoch*"):
        path.unlink()
    other = Job(tmp_path / "out", lineage="two")
    other.run(0, [(2, "ON")])
    job.start()
    job.run(0, [(1, "ON")])
    assert job.visible() == ["part-0001-0000000000.jsonl", "part-0002-0000000000.jsonl"]
    job.binding = dataclasses.replace(job.binding, directory=str(tmp_path / "elsewhere"))
    job.start()
    job.run(0, [(1, "ON")])
    assert (tmp_path / "elsewhere" / "part-0001-0000000000.jsonl").exists()


def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    """The error names the sink and the directory, before the job starts."""
    (tmp_path / "file").touch()
    with pytest.raises(BindingError, match=r"'heaters'.*file/out.*-D heaters=jsonl:DIR"):
        Job(tmp_path / "file" / "out")
    with pytest.raises(BindingError, match="cannot be written"):
        Job(Path("/proc/out"))


def test_a_damaged_note_is_a_clear_error(job: Job) -> None:
    """A checkpoint whose note cannot be read stops the start."""
    (job.checkpoint / "files-sink-heaters.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        job.start()


def test_a_part_that_is_not_there_says_that_machines_must_share_the_directory(job: Job) -> None:
    """On a cluster without a shared disk the first commit fails with this explanation."""
    messages = job.stage(0, [(1, "ON")], [(2, "ON")])
    job.staged()[0].unlink()
    with pytest.raises(ExternalSystemError, match="must share"):
        job.sink.commit(0, messages)


def test_csv_has_one_header(tmp_path: Path) -> None:
    """Joined CSV files have one header, on top; the output can be read back."""
    job = Job(tmp_path / "out", "csv")
    rows: list[Rows] = [[(1, 'a,"b"\nc'), (2, None)], [(3, "")], [(4, "x")]]
    job.run(0, *rows)
    path = job.folder / "part-0001-0000000000.csv"
    with path.open(newline="") as file:
        assert next(csv.reader(file)) == ["sensor_id", "command"]
    read = [row for chunk in read_csv(CsvFile(str(path)), "p", COMMAND) for row in chunk.batch.to_pylist()]  # type: ignore[union-attr]
    assert [(row["sensor_id"], row["command"]) for row in read] == [row for task in rows for row in task]


def test_parquet_keeps_schema_and_order(tmp_path: Path) -> None:
    """Joined Parquet files have the record type's schema."""
    job = Job(tmp_path / "out", "parquet")
    job.run(0, [(1, "ON"), (2, None)], [(3, "OFF")])
    table = pq.read_table(job.folder / "part-0001-0000000000.parquet")
    assert table.schema.equals(COMMAND.schema)
    assert table.column("sensor_id").to_pylist() == [1, 2, 3]


class Switch(enum.Enum):
    ON = "on!"


@dataclasses.dataclass
class Everything:
    i: int
    f: float
    b: bool
    y: bytes
    t: dt.datetime
    e: Switch
    xs: list[int] | None
    m: dict[str, int] | None


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_values_have_the_text_forms_that_the_sources_read(tmp_path: Path, file_format: str) -> None:
    """Enumerations as values, bytes as base64, nested values as JSON, None as null or an empty cell."""
    kind: RecordType = record_type(Everything)
    time = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    record = Everything(1, 1.5, True, b"\0\1\2", time, Switch.ON, [1, 2], {"k": 1})
    empty = Everything(2, float("nan"), False, b"", time, Switch.ON, None, None)
    job = Job(tmp_path / "out", file_format)
    task = job.sink.task(TaskContext(0, 0, 0, "one"), kind)
    task.write(kind.batch([record, empty]), None)
    job.sink.commit(0, [task.finish()])
    text = (job.folder / job.visible()[0]).read_text()
    if file_format == "jsonl":
        first: dict[str, Any]
        first, second = map(json.loads, text.splitlines())
        assert first == {
            "i": 1, "f": 1.5, "b": True, "y": "AAEC", "t": "2024-01-02T03:04:05Z", "e": "on!", "xs": [1, 2],
            "m": {"k": 1},
        }  # fmt: skip
        assert (second["f"], second["xs"], second["y"]) == (None, None, "")
    else:
        assert text.splitlines()[1] == (
            '1,1.5,true,"AAEC",2024-01-02 03:04:05.000000Z,"on!","[1,2]","{""k"":1}"'
        )
        assert text.splitlines()[2].endswith(',"on!",,')


@given(
    batches=st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), min_size=1, max_size=5),
    replays=st.lists(st.integers(0, 4), max_size=4),
)
def test_any_history_of_replays_gives_each_record_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[list[int]]], replays: list[int]
) -> None:
    """Restarts that replay the newest batch, anywhere, change nothing."""
    job = Job(tmp_path_factory.mktemp("history") / "out")
    for batch_id, tasks in enumerate(batches):
        rows: list[Rows] = [[(n, "ON") for n in task] for task in tasks]
        job.run(batch_id, *rows)
        for _ in range(replays.count(batch_id)):
            job.start()
            job.run(batch_id, *rows)
    lines = [line for name in job.visible() for line in (job.folder / name).read_text().splitlines()]
    expected = [n for tasks in batches for task in tasks for n in task]
    assert [json.loads(line)["sensor_id"] for line in lines] == expected


def test_the_newest_batch_is_known_whatever_consumers_take(job: Job) -> None:
    """A file beside the epoch's claim names it; the checkpoint is not consulted, since it may have gone back."""
    assert job.newest() == -1
    job.run(0, [(1, "ON")])
    copy = job.note()
    job.run(1)
    assert job.newest() == 0
    job.run(12, [(2, "ON")])
    assert [path.name for path in job.folder.glob(".epoch-*.batch-*")] == [".epoch-0001.batch-0000000012"]
    for name in job.visible():
        (job.folder / name).unlink()
    assert job.newest() == 12
    job.put_back(copy)
    assert job.newest() == 12
    job.put_back(None)
    assert job.newest() == 12


def test_a_batch_is_marked_before_it_is_visible(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the two must not hide a batch; the replay writes it."""
    job.run(0, [(1, "ON")])

    def crash(staged: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(file_sink, "_publish", crash)
        with pytest.raises(KeyboardInterrupt):
            job.run(1, [(2, "ON")])
    job.start()
    assert job.newest() == 1
    assert len(job.visible()) == 1
    job.run(1, [(2, "ON")])
    job.run(2, [(3, "ON")])
    assert len(job.visible()) == 3
    assert [path.name for path in job.folder.glob(".epoch-*.batch-*")] == [".epoch-0001.batch-0000000002"]


def test_sinks_and_lineages_in_one_folder_know_their_own_batches(tmp_path: Path) -> None:
    """Two sinks of a job, or two jobs, may share a folder."""
    one, two = Job(tmp_path / "out"), Job(tmp_path / "out", lineage="two")
    other = Job(tmp_path / "out", stream="alerts")
    one.run(3, [(1, "ON")])
    two.run(7, [(2, "ON")])
    other.run(5, [(3, "ON")])
    assert [job.newest() for job in (one, two, other)] == [3, 7, 5]
    assert len(one.visible()) == 3


def test_a_checkpoint_that_lost_its_note_goes_on_in_its_epoch(job: Job) -> None:
    """So the newest batch, which may be replayed, is found and not written twice."""
    job.run(0, [(1, "ON")])
    job.put_back(None)
    job.start()
    job.run(0, [(1, "ON")])
    job.run(1, [(2, "ON")])
    assert job.visible() == ["part-0001-0000000000.jsonl", "part-0001-0000000001.jsonl"]
    assert [path.name for path in job.folder.glob(".epoch-*.batch-*")] == [".epoch-0001.batch-0000000001"]
