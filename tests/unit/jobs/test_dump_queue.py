"""Dumps that commands request: the allowed destinations are checked again when a dump is made."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.jobs import dump_queue
from penstock.jobs.dump_queue import DumpQueue
from penstock.objects.allowed import AllowedPlaces


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Collects the commands that would be started; each is replaced by one that ends at once."""
    commands: list[list[str]] = []
    real = dump_queue.subprocess.Popen

    def start(command: list[str], **more: object) -> object:
        commands.append(command)
        return real([sys.executable, "-c", "print('{\"rows\": 1}')"], **more)  # type: ignore[call-overload]

    monkeypatch.setattr(dump_queue.subprocess, "Popen", start)
    return commands


def dump(tmp_path: Path, to: str, allowed: list[str]) -> tuple[dict[str, object], list[str]]:
    """Return the outcome of a dump of a committed micro-batch, and the notes of the run."""
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    commits = checkpoint.spark_folder / "commits"
    commits.mkdir(parents=True)
    (commits / "7").touch()
    wanted = checkpoint.folder / "dumps" / "7.json"
    wanted.parent.mkdir()
    wanted.write_bytes(msgspec.json.encode({"batch": 7, "command": "c", "to": to, "format": "csv"}))
    notes: list[str] = []
    lineage = Lineage("lineage", "job", 8, 1, ("readings",))
    dumps = DumpQueue(checkpoint, lineage, AllowedPlaces.of([], allowed), notes.append)
    dumps.finish()
    assert not dumps.step()
    return msgspec.json.decode(wanted.with_suffix(".done").read_bytes()), notes


def test_a_dump_goes_where_it_is_allowed(tmp_path: Path, started: list[list[str]]) -> None:
    """The dump uses the path that was checked, with links resolved."""
    (tmp_path / "allowed" / "deep").mkdir(parents=True)
    (tmp_path / "allowed" / "link").symlink_to("deep")
    done, notes = dump(tmp_path, f"{tmp_path}/allowed/link/7", [str(tmp_path / "allowed")])
    assert done["rows"] == 1
    assert "1 rows" in notes[0]
    assert started[0][started[0].index("--to") + 1] == f"{tmp_path}/allowed/deep/7"


@pytest.mark.parametrize("to", ["allowed/out/x", "other/x", "allowed/../other", "allowedness/x"])
def test_a_dump_goes_nowhere_else(tmp_path: Path, started: list[list[str]], to: str) -> None:
    """A destination that was allowed at the request, or that has become a link since, is refused."""
    (tmp_path / "allowed").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "allowed" / "out").symlink_to(tmp_path / "other")
    done, notes = dump(tmp_path, f"{tmp_path}/{to}", [str(tmp_path / "allowed")])
    assert "the job may not write to the place" in str(done["error"])
    assert "--allow-write" in notes[0]
    assert started == []
