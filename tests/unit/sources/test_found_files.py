"""Lists of found files: every file once, in a list that stays short and fast however many files were read."""

from __future__ import annotations

import os
import pickle
import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.bindings.types import FilesBinding
from penstock.errors import CheckpointError, FencedError
from penstock.records.schemas import record_type
from penstock.sources import file_source, found_files
from penstock.sources.file_source import FileLog, Keeping
from penstock.sources.found_files import FoundFiles, Listing, LoggedFile, files_found

READING = record_type("n INT")
DAY_S = 24 * 3600


def binding(folder: Path) -> FilesBinding:
    return FilesBinding("readings", f"jsonl:{folder}", "jsonl", str(folder), None)


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(f'{{"n":"{name}"}}\n')


def names(log: FileLog, start: int, end: int) -> list[str]:
    return [split.partition for split in log.splits(start, end, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "in"
    found.mkdir()
    return found


@pytest.fixture(autouse=True)
def always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make lists compact after a few files."""
    monkeypatch.setattr(found_files, "_WORTHWHILE", 2)


def test_a_list_does_not_grow_with_what_was_read(tmp_path: Path, folder: Path) -> None:
    """It lists files of retained micro-batches, and sixteen bytes for each earlier file that still exists."""
    path = tmp_path / "list"
    log = FileLog(binding(folder), path, Keeping(retained=3))
    end = 0
    for batch in range(60):
        write(folder, f"{batch:03}-a", f"{batch:03}-b")
        end = log.latest(end, limited=False)
        log.forget(end)
    assert end == files_found(path) == 120
    assert len(path.read_bytes().splitlines()) <= 1 + 2 * 3 + 30
    again = FileLog(binding(folder), path)
    assert again.latest(end, limited=False) == 120, "none is taken twice"
    assert names(again, 114, 120) == ["057-a", "057-b", "058-a", "058-b", "059-a", "059-b"]
    with pytest.raises(CheckpointError, match="begins after the first"):
        again.splits(0, 2, 1)


def test_short_runs_keep_the_list_short(tmp_path: Path, folder: Path) -> None:
    """A run of a single micro-batch learns from the checkpoint how far it may have to go back."""
    path = tmp_path / "list"
    for batch in range(20):
        write(folder, f"{batch:03}-a", f"{batch:03}-b")
        log = FileLog(binding(folder), path, Keeping(retained=100, oldest=max(0, 2 * batch - 6)))
        assert log.latest(2 * batch, limited=False) == 2 * batch + 2
        log.forget(2 * batch)
    assert len(path.read_bytes().splitlines()) < 20


def test_a_command_that_was_read_is_removed(tmp_path: Path, folder: Path) -> None:
    """It is removed from the checkpoint's folder when the next micro-batch commits; its name is then free
    again.
    """
    log = FileLog(binding(folder), tmp_path / "list", Keeping(retained=2, owned=True))
    write(folder, "a", "b")
    end = log.latest(0, limited=False)
    write(folder, "c")
    assert {path.name for path in folder.iterdir()} == {"a", "b", "c"}
    log.forget(end)
    assert {path.name for path in folder.iterdir()} == {"a", "b", "c"}, (
        "a power loss may take the commit back"
    )
    log.forget(end)
    assert {path.name for path in folder.iterdir()} == {"c"}
    for name in "defgh":
        write(folder, name)
        end = log.latest(end, limited=False)
        log.forget(end)
    assert [path.name for path in folder.iterdir()] == ["h"]
    write(folder, "a")
    assert names(log, end, log.latest(end, limited=False)) == ["a"]


def test_a_kill_between_removing_and_noting_it_is_no_loss(tmp_path: Path, folder: Path) -> None:
    """The next run removes the files that the previous one left."""
    keeping = Keeping(retained=2, owned=True)
    log = FileLog(binding(folder), tmp_path / "list", keeping)
    write(folder, "a", "b")
    end = log.latest(0, limited=False)
    (folder / "a").unlink()
    again = FileLog(binding(folder), tmp_path / "list", keeping)
    assert again.latest(end, limited=False) == end
    again.forget(end)
    again.forget(end)
    assert list(folder.iterdir()) == []


def test_a_job_from_a_savepoint_leaves_out_commands_that_its_origin_has_read(
    tmp_path: Path, folder: Path
) -> None:
    """Commands still waiting there are read; each was for the job at the time of the savepoint."""
    keeping = Keeping(owned=True)
    log = FileLog(binding(folder), tmp_path / "list", keeping)
    write(folder, "a", "b")
    end = log.latest(0, limited=False)
    (tmp_path / "savepoint").write_bytes((tmp_path / "list").read_bytes())
    own = tmp_path / "own"
    own.mkdir()
    write(own, "a")
    restored = FileLog(binding(own), tmp_path / "savepoint", keeping)
    (folder / "a").unlink()
    assert restored.latest(0, limited=False) == 3
    assert [split.path for split in restored.splits(0, 3, 1)] == [str(own / "a"), str(folder / "b")]
    restored.forget(3)
    assert (folder / "b").exists()
    assert end == 2


def test_a_file_that_is_away_for_a_moment_is_not_read_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network share may return after hours; a file that is missing for a day is forgotten, and its name is
    free.
    """
    now_s = time.time()
    monkeypatch.setattr(file_source.time, "time", lambda: now_s)
    log = FileLog(binding(folder), tmp_path / "list", Keeping(retained=1))
    end = 0

    def more(*new: str) -> list[str]:
        nonlocal end
        write(folder, *new)
        start, end = end, log.latest(end, limited=False)
        found = names(log, start, end)
        log.forget(end)
        return found

    more("a", "b", "c")
    (folder / "a").rename(tmp_path / "a")
    more("d", "e", "f")
    now_s += DAY_S - 60
    more("g", "h", "i")
    (tmp_path / "a").rename(folder / "a")
    assert more("j", "k", "l") == ["j", "k", "l"]
    (folder / "a").unlink()
    more("m", "n", "o")
    now_s += DAY_S + 60
    more("p", "q", "r", "s")
    assert more("a", "t") == ["a", "t"]


def test_two_readers_see_a_list_that_is_written_anew(tmp_path: Path, folder: Path) -> None:
    """The driver reads the list while it is rewritten, any number of times between two reads."""
    log = FileLog(binding(folder), tmp_path / "list", Keeping(retained=1))
    driver = pickle.loads(pickle.dumps(log))
    end = 0
    for batch in range(30):
        write(folder, f"{batch:03}-a", f"{batch:03}-b", f"{batch:03}-c")
        end = log.latest(end, limited=False)
        log.forget(end - 3)
        if batch % 7 == 0:
            assert driver.lag(end - 3)["files"] == 3
            assert driver.splits(end - 3, end, 1) == log.splits(end - 3, end, 1)


def test_a_kill_while_the_list_is_written_anew_leaves_the_old_one(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run rewrites it."""
    log = FileLog(binding(folder), tmp_path / "list", Keeping(retained=1))
    write(folder, "a", "b", "c")
    end = log.latest(0, limited=False)
    before = (tmp_path / "list").read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as kill:
        kill.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            log.forget(end)
    assert (tmp_path / "list").read_bytes() == before
    again = FileLog(binding(folder), tmp_path / "list", Keeping(retained=1))
    assert again.latest(end, limited=False) == end
    again.forget(end)
    assert files_found(tmp_path / "list") == end
    assert (tmp_path / "list").read_bytes() != before


def test_a_list_of_another_format_is_refused(tmp_path: Path) -> None:
    """The error names both formats and the remedy."""
    (tmp_path / "list").write_text('{"before":3,"format":2,"names":{}}\n')
    with pytest.raises(CheckpointError, match=r"has the format 2; this penstock reads 1. Run the job"):
        FoundFiles(str(tmp_path / "list"))


def test_a_million_names_are_known_at_once(tmp_path: Path) -> None:
    """A list of 100,000 files, compacted to hashes, opens in about a tenth of a second, and is small."""
    found = FoundFiles(str(tmp_path / "list"))
    many = [f"{number:09}-é\udcff.jsonl" for number in range(100_000)]
    found.append([LoggedFile("/in\udcfe", name, 1, 1) for name in many])
    found.compact(len(many), Listing("/in\udcfe", many, time.time()), DAY_S)
    assert (tmp_path / "list").stat().st_size < 34 * len(many)
    begin = time.process_time()
    again = FoundFiles(str(tmp_path / "list"))
    assert time.process_time() - begin < 1
    assert again.unknown("/in\udcfe", [*many[::1000], "new"]) == ["new"]
    assert again.unknown("/other", many[:2]) == many[:2]
    assert again.end == len(many)


def test_hashes_with_zeros_are_told_apart() -> None:
    """Any bytes may be in a hash."""
    rng = random.Random(1)
    made = {bytes(rng.choice((0, 0, 1, 255)) for _ in range(16)) for _ in range(2000)}
    known = np.unique(np.frombuffer(b"".join(sorted(made)[::2]), "S16"))
    wanted = np.frombuffer(b"".join(sorted(made)), "S16")
    assert found_files._contains(known, wanted).tolist() == [place % 2 == 0 for place in range(len(made))]


class Lists(RuleBasedStateMachine):
    """A model test: a job reads a folder, is killed, and goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(os.environ["PYTEST_LISTS"]) / f"{time.time_ns()}"
        self.folder = self.root / "in"
        self.folder.mkdir(parents=True)
        self.taken: list[str] = []
        self.ends = [0]
        self.log = self._open()

    def _open(self) -> FileLog:
        oldest = self.ends[max(0, len(self.ends) - 4)]
        return FileLog(binding(self.folder), self.root / "list", Keeping(retained=3, oldest=oldest))

    @rule(numbers=st.sets(st.integers(0, 60), max_size=8))
    def files_come(self, numbers: set[int]) -> None:
        write(self.folder, *(f"f{number}" for number in numbers))

    @rule()
    def a_micro_batch(self) -> None:
        end = self.log.latest(self.ends[-1], limited=False)
        found = names(self.log, self.ends[-1], end)
        assert found == sorted(found)
        self.taken += found
        self.ends.append(end)
        self.log.forget(self.ends[-2])

    @rule()
    def a_kill(self) -> None:
        self.log = self._open()

    @invariant()
    def each_file_is_taken_once(self) -> None:
        assert len(self.taken) == len(set(self.taken)) == self.ends[-1]
        oldest = self.ends[max(0, len(self.ends) - 3)]
        assert sorted(names(self.log, oldest, self.ends[-1])) == sorted(self.taken[oldest:])


@pytest.fixture(autouse=True)
def place_of_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_LISTS", str(tmp_path))


TestLists = Lists.TestCase


class LaterRun:
    """The check that a run makes before it continues: whether a later run has started."""

    def __init__(self) -> None:
        self.has_begun = False

    def fence(self) -> None:
        if self.has_begun:
            raise FencedError("Another run has taken over the checkpoint.")


def test_a_run_that_lost_its_checkpoint_leaves_the_list_of_the_next_alone(
    tmp_path: Path, folder: Path
) -> None:
    """A suspended run wakes, and goes on adding files and compacting; its positions cover none of these files."""
    path, later = tmp_path / "list", LaterRun()
    write(folder, "a", "b")
    first = FileLog(binding(folder), path, Keeping(retained=1), later.fence)
    assert first.latest(0, limited=False) == 2

    later.has_begun = True
    second = FileLog(binding(folder), path, Keeping(retained=1))
    write(folder, "c")
    assert second.latest(2, limited=False) == 3
    write(folder, "0", "d", "e")
    with pytest.raises(FencedError):
        first.latest(2, limited=False)
    assert second.latest(3, limited=False) == files_found(path) == 6
    again = FileLog(binding(folder), path)
    assert [names(again, 0, 2), names(again, 2, 3), names(again, 3, 6)] == [
        ["a", "b"],
        ["c"],
        ["0", "d", "e"],
    ]
    with pytest.raises(FencedError):
        first.forget(2)
    assert files_found(path) == 6


def test_a_run_takes_over_what_the_run_before_added_last(tmp_path: Path, folder: Path) -> None:
    """The list it read ends before the last file; the carried copy has what a position may cover."""
    path, later = tmp_path / "list", LaterRun()
    first = FileLog(binding(folder), path, fence=later.fence)
    second = FileLog(binding(folder), path)
    write(folder, "a")
    assert first.latest(0, limited=False) == 1
    assert second.lag(0) == {"files": 1, "bytes": 10}
    write(folder, "b")
    assert first.latest(1, limited=False) == 2
    later.has_begun = True
    write(folder, "c")
    assert second.latest(2, limited=False) == 3
    assert names(second, 0, 3) == ["a", "b", "c"]
