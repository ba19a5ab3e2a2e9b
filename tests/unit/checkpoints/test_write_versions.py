"""Write versions increase over runs, clocks that go back, and runs that have lost the checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.checkpoints.ownership import Ownership
from penstock.checkpoints.write_versions import WriteVersions, no_version
from penstock.errors import CheckpointError, FencedError

HOUR_US = 3_600_000_000


class Clocks:
    """Two clocks that a test moves."""

    def __init__(self, wall_us: int) -> None:
        self.wall_us, self.elapsed_us = wall_us, 5

    def versions(self, folder: Path) -> WriteVersions:
        """Return the versions of a run that has just taken the checkpoint."""
        ownership = Ownership.take(folder)
        return WriteVersions(folder, ownership, lambda: self.wall_us, lambda: self.elapsed_us)

    def pass_us(self, us: int) -> None:
        self.wall_us += us
        self.elapsed_us += us


def test_a_version_is_the_time(tmp_path: Path) -> None:
    """This holds while the clock advances."""
    clocks = Clocks(HOUR_US)
    versions = clocks.versions(tmp_path)
    assert versions.next() == HOUR_US
    clocks.pass_us(7)
    assert [versions.next(), versions.next()] == [HOUR_US + 8, HOUR_US + 9]
    clocks.pass_us(1_000)
    assert versions.next() == HOUR_US + 1_010
    assert no_version() == 0


def test_a_clock_that_goes_back_is_not_followed(tmp_path: Path) -> None:
    """Within a run elapsed time is added, over runs the earlier run's noted version counts."""
    clocks = Clocks(2 * HOUR_US)
    versions = clocks.versions(tmp_path)
    first = versions.next()
    clocks.wall_us -= HOUR_US
    clocks.pass_us(100)
    assert versions.next() == first + 101
    clocks.elapsed_us = 3
    assert first + 101 < clocks.versions(tmp_path).next() < first + 3_000_000


def test_a_run_that_has_lost_the_checkpoint_gets_no_version_that_the_next_run_does_not_know(
    tmp_path: Path,
) -> None:
    """At its reserved limit it checks, and finds that it lost the checkpoint."""
    clocks = Clocks(HOUR_US)
    old = clocks.versions(tmp_path)
    old.next()
    new = clocks.versions(tmp_path)
    begun = new.next()
    assert old.next() < begun
    clocks.wall_us += HOUR_US
    with pytest.raises(FencedError, match="Another run has taken over"):
        old.next()


def test_a_damaged_note_is_said(tmp_path: Path) -> None:
    """The error has the remedy."""
    (tmp_path / "write-versions").mkdir()
    (tmp_path / "write-versions" / "1.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"1\.json cannot be read .*delete the file"):
        Clocks(1).versions(tmp_path)


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "restart", "zombie"]), st.integers(-HOUR_US, HOUR_US)),
        max_size=25,
    )
)
@examples(60)
def test_the_last_writer_by_version_is_the_last_writer(events: list[tuple[str, int]]) -> None:
    """A store that keeps the greatest version has the newest run's last write, whenever zombies write."""
    with tempfile.TemporaryDirectory() as name:
        folder, clocks = Path(name), Clocks(10 * HOUR_US)
        run, late = clocks.versions(folder), []
        stored, expected = (-1, ""), ""
        for number, (event, change) in enumerate(events):
            clocks.wall_us = max(1, clocks.wall_us + change)
            clocks.elapsed_us += abs(change) % 5_000 + 10
            if event == "restart":
                run = clocks.versions(folder)
            elif event == "zombie" and late:
                stored = max(stored, late.pop(number % len(late)))
            else:
                # A task's versions start from that of its micro-batch.
                written = (run.next() + number % 10, f"{number}")
                stored, expected = max(stored, written), written[1]
                late.append((written[0], written[1]))
            assert stored[1] == expected
