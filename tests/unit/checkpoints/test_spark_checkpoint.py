"""Inspection of small checkpoints written by hand: logs with gaps, and state of several lineages.

tests/integration/test_damaged_checkpoints.py damages checkpoints of real jobs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from spark_checkpoint import write_changelog, write_snapshot

from penstock.checkpoints.spark_checkpoint import Expected, Found, inspect
from penstock.checkpoints.spark_state_files import check_partition
from penstock.errors import CheckpointError

EXPECTED = Expected(streams=2)


def write_logs(folder: Path, offsets: Sequence[int], commits: Sequence[int]) -> None:
    """Write logs of a job without state, in Spark's format."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"7"}')
    for number in offsets:
        lines = ["v1", '{"batchWatermarkMs":0}', json.dumps({"position": number + 1}), "-"]
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in commits:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.mark.parametrize(
    ("offsets", "commits", "found"),
    [
        ([], [], Found()),
        ([0], [], Found(0, -1, ({"position": 1}, None))),
        ([0, 1], [0], Found(1, 0, ({"position": 2}, None))),
        ([0, 1, 2], [0, 1, 2], Found(2, 2, ({"position": 3}, None))),
        # Old entries are purged, one log after the other.
        ([5, 6, 7], [4, 5, 6], Found(7, 6, ({"position": 8}, None))),
        ([5, 6, 7], [6, 7], Found(7, 7, ({"position": 8}, None))),
    ],
)
def test_whole_logs_are_accepted(
    tmp_path: Path, offsets: list[int], commits: list[int], found: Found
) -> None:
    """The last micro-batch may be planned but not committed, and the logs may start anywhere."""
    write_logs(tmp_path, offsets, commits)
    assert inspect(tmp_path, EXPECTED) == found


@pytest.mark.parametrize(
    ("offsets", "commits", "missing"),
    [
        ([0, 2], [0, 1, 2], "offsets/1"),
        ([0, 1, 3], [0, 1, 2], "offsets/2"),
        ([0, 1], [0, 1, 2], "offsets/2"),
        ([], [0], "offsets/0"),
        ([0, 1, 2, 3], [0, 2, 3], "commits/1"),
        ([0, 1, 2, 3], [0, 1], "commits/2"),
        ([0, 1, 2, 3], [], "commits/2"),
        ([0, 1], [], "commits/0"),
    ],
)
def test_holes_are_named(tmp_path: Path, offsets: list[int], commits: list[int], missing: str) -> None:
    """With a missing micro-batch Spark would continue from a state that does not match the outputs."""
    write_logs(tmp_path, offsets, commits)
    with pytest.raises(CheckpointError, match="Restore the file") as caught:
        inspect(tmp_path, EXPECTED)
    assert f"{tmp_path / missing} is missing" in str(caught.value)


def test_holes_in_what_spark_clears_are_none(tmp_path: Path) -> None:
    """A run that is killed while it purges old micro-batches leaves some of them."""
    write_logs(tmp_path, [0, 3, *range(5, 12)], [1, *range(4, 11)])
    assert inspect(tmp_path, Expected(2, retained=6)).planned == 11


@pytest.mark.parametrize("begun", [0, 5])
def test_an_empty_log_of_a_job_that_has_begun_is_damage(tmp_path: Path, begun: int) -> None:
    """Where there are outputs, the job never restarts from zero."""
    write_logs(tmp_path, [], [])
    with pytest.raises(CheckpointError, match=r"offsets is empty, though .* begin from nothing"):
        inspect(tmp_path, Expected(2, begun=begun))


def test_a_log_that_ends_before_the_outputs_is_damage(tmp_path: Path) -> None:
    """Micro-batch 4 was written, so Spark must know it."""
    write_logs(tmp_path, range(4), range(4))
    with pytest.raises(CheckpointError, match="offsets/4 is missing"):
        inspect(tmp_path, Expected(2, begun=4))
    assert inspect(tmp_path, Expected(2, begun=3)).committed == 3


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"v1", "is truncated"),
        (b"v1\n", "is truncated"),
        (b'v1\n{"batchWater', "is truncated or damaged"),
        (b'v1\n{}\n{"position"', "is truncated or damaged"),
        (b'v1\n{}\n{"position": 3}', "has the offsets of 1 streams instead of 2"),
        (b'\0\0\0\0\n{}\n{"position": 3}\n-', "instead of a version"),
        (b"v1\n\xff\xff", "cannot be read"),
    ],
)
def test_offsets_that_cannot_be_read_are_named(tmp_path: Path, content: bytes, what: str) -> None:
    """This holds for any damage to the file."""
    write_logs(tmp_path, range(3), range(2))
    path = tmp_path / "offsets" / "2"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=what) as caught:
        inspect(tmp_path, EXPECTED)
    assert str(path) in str(caught.value)


def test_broken_metadata_before_the_first_micro_batch_may_be_deleted(tmp_path: Path) -> None:
    """No data is lost by that."""
    (tmp_path / "metadata").write_text("")
    with pytest.raises(CheckpointError, match=r"metadata is empty\. Delete the file"):
        inspect(tmp_path, EXPECTED)


# State


def write_state(folder: Path) -> None:
    """Write versions 1 to 9, with snapshots of 1, 4 and 7; each changelog names those back to the last
    snapshot.
    """
    for version in range(1, 10):
        last = max((snapshot for snapshot in (1, 4, 7) if snapshot < version), default=1)
        write_changelog(folder, version, range(last, version))
    for version in (1, 4, 7):
        write_snapshot(folder, version, ["a.sst", f"{version}.sst"])


def test_a_version_is_a_snapshot_and_the_changelogs_after_it(tmp_path: Path) -> None:
    """Neither older nor newer files are needed."""
    write_state(tmp_path)
    for version in (1, 2, 3, 4, 5, 6):
        (tmp_path / f"{version}_id{version}.changelog").unlink()
    check_partition(tmp_path, 9, "id9")
    (tmp_path / "9_id9.changelog").unlink()
    check_partition(tmp_path, 8, "id8")
    check_partition(tmp_path, 7, "id7")
    check_partition(tmp_path, 0, "")


@pytest.mark.parametrize("fault", ["missing", "empty", "no archive", "table missing", "table shorter"])
def test_without_its_newest_snapshot_state_is_built_on_an_older_one(tmp_path: Path, fault: str) -> None:
    """Spark does so by itself, if the changelogs in between exist."""
    write_state(tmp_path)
    snapshot, table = tmp_path / "7_id7.zip", tmp_path / "SSTs" / "7.sst"
    if fault == "missing":
        snapshot.unlink()
    elif fault == "empty":
        snapshot.write_bytes(b"")
    elif fault == "no archive":
        snapshot.write_bytes(b"PK nothing")
    elif fault == "table missing":
        table.unlink()
    else:
        table.write_bytes(b"tab")
    check_partition(tmp_path, 9, "id9")
    damaged = {"missing": "6_id6.changelog", "table missing": "7.sst", "table shorter": "7.sst"}
    (tmp_path / "6_id6.changelog").unlink()
    with pytest.raises(CheckpointError, match=damaged.get(fault, "7_id7.zip")):
        check_partition(tmp_path, 9, "id9")


def test_state_of_another_line_of_descent_does_not_count(tmp_path: Path) -> None:
    """Files of an uncommitted attempt have other ids."""
    write_state(tmp_path)
    (tmp_path / "7_id7.changelog").rename(tmp_path / "7_other.changelog")
    (tmp_path / "7_id7.zip").rename(tmp_path / "7_other.zip")
    with pytest.raises(CheckpointError, match=r"7_id7\.changelog is missing"):
        check_partition(tmp_path, 9, "id9")


def test_a_changelog_that_is_shorter_than_noted_is_damaged(tmp_path: Path) -> None:
    """This includes a cut between two blocks, which Spark would take for the end."""
    write_state(tmp_path)
    path = write_changelog(tmp_path, 9, [7, 8], size=100_000)
    with pytest.raises(CheckpointError, match="bytes instead of 100000") as caught:
        check_partition(tmp_path, 9, "id9")
    assert str(path) in str(caught.value)


def test_changelogs_without_any_snapshot_are_not_enough(tmp_path: Path) -> None:
    """Only snapshots name the states, so changelogs cannot be applied to an empty state."""
    write_state(tmp_path)
    for path in tmp_path.glob("*.zip"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"has no snapshot \(\.zip\) on which version 9 can be built"):
        check_partition(tmp_path, 9, "id9")


def test_a_changelog_in_another_compression_is_left_to_spark(tmp_path: Path) -> None:
    """The user may have chosen it."""
    write_state(tmp_path)
    path = tmp_path / "9_id9.changelog"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 100)
    path.with_name(path.name + ".crc").unlink()
    check_partition(tmp_path, 9, "id9")
