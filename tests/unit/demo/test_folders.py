"""Folders that connect the rooms and the job."""

from __future__ import annotations

import json
from pathlib import Path

from stand_in_job import StandInJob, folder_of

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FilesBinding
from penstock.demo.feeds import COMMANDS, READINGS, SETTINGS
from penstock.demo.folders import Folders

ON = {"sensor_id": 1, "command": "ON"}
COLD = {"sensor_id": 1, "temperature": 10.0}
WISH = {"sensor_id": 1, "desired": 20.0, "up_delta": 1.0, "down_delta": 1.0}


def test_the_bindings_name_the_folders_whatever_their_path(tmp_path: Path) -> None:
    """A path may have characters that are special in URIs."""
    root = tmp_path / "100% sure? yes"
    feed = Folders(root)
    for stream, role in ((READINGS, "data"), (SETTINGS, "control"), (COMMANDS, "sink")):
        binding = parse_binding(stream, feed.bindings[stream], role)  # type: ignore[arg-type]
        assert isinstance(binding, FilesBinding)
        assert Path(binding.directory) == root / stream


def test_each_sending_is_a_file_with_a_later_name(tmp_path: Path) -> None:
    """Files sort in the order of sending and have whole lines, and no other file is left in the folder."""
    feed = Folders(tmp_path / "streams")
    for number in range(12):
        feed.send(READINGS, [COLD | {"temperature": number}, COLD])
    feed.send(READINGS, [])
    files = sorted(folder_of(feed, READINGS).iterdir())
    assert len(files) == 12
    assert [json.loads(path.read_text().splitlines()[0])["temperature"] for path in files] == list(range(12))


def test_commands_are_read_back_once(tmp_path: Path) -> None:
    """Only complete files count, each of them once."""
    feed = Folders(tmp_path / "streams")
    (folder_of(feed, COMMANDS) / ".staging").mkdir()
    (folder_of(feed, COMMANDS) / ".part.jsonl").write_text("{")
    assert feed.new_commands() == []
    (folder_of(feed, COMMANDS) / "part-0001-0000000000.jsonl").write_text(json.dumps(ON) + "\n")
    assert feed.new_commands() == [ON]
    assert feed.new_commands() == []


def test_the_evidence_is_what_each_batch_has_read_and_written(tmp_path: Path) -> None:
    """Batches come from the checkpoint's cuts, commands from the files of the sink."""
    feed = Folders(tmp_path / "streams")
    job = StandInJob(feed, str(tmp_path / "checkpoint"))
    feed.send(READINGS, [COLD])
    job.step()
    feed.send(SETTINGS, [WISH])
    feed.send(READINGS, [COLD])
    feed.send(READINGS, [COLD, COLD])
    job.step()
    evidence = feed.evidence(str(tmp_path / "checkpoint"))
    first, second = evidence.batch(0), evidence.batch(1)
    assert (list(first.settings), list(first.readings)) == ([], [COLD])
    assert (list(second.settings), list(second.readings)) == ([WISH], [COLD, COLD, COLD])
    assert [evidence.commands(0), evidence.commands(1)] == [[], [ON]]
