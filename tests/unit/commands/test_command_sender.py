"""Sending commands: what is written into a command folder, and where commands cannot be sent."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from control_checkpoint import ENTRY, make_checkpoint

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FilesBinding
from penstock.commands.command_catalog import CommandCatalog, command_catalog, read_command_catalog
from penstock.commands.command_sender import command_binding, find_waiting, send_command
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command, Target
from penstock.engine.command_validation import Accepting
from penstock.errors import BindingError, CheckpointError
from penstock.sources.file_source import FileLog


def command(command_id: str) -> Command:
    return Command(
        id=command_id, kind="set", target=Target("heat", key=1), payload=msgspec.Raw(b'{"limit":1.50}')
    )


def test_commands_in_a_folder_are_read_in_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    """Each command gets its own file, which is complete when it gets its name; ids may be any text."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    binding = command_binding(read_command_catalog(checkpoint), None)
    assert isinstance(binding, FilesBinding)
    ids = ["b", "a", "../../c", "é" * 64, "x" * 128, "a"]
    for command_id in ids:
        send_command(command(command_id), binding)
    log = FileLog(binding, tmp_path / "list")
    splits = log.splits(0, log.latest(0, limited=False), 1)
    assert [Path(split.path).parent for split in splits] == [checkpoint / "commands"] * len(ids)
    read = [decode_command(Path(split.path).read_bytes()) for split in splits]
    assert [found.id for found in read] == ids
    assert bytes(read[0].payload) == b'{"limit":1.50}'
    assert not [path for path in (checkpoint / "commands").iterdir() if path.name.startswith(".")]


def test_commands_in_a_table_are_added_with_insert() -> None:
    """The sender refuses a table and names `INSERT`."""
    entry = msgspec.structs.replace(ENTRY, commands="postgresql://u@h:1/d/commands?poll_by=number")
    with pytest.raises(BindingError, match=r"rows of the table public\.commands .* Add one with INSERT"):
        command_binding(entry, None)


def test_a_command_that_waits_is_found(tmp_path: Path) -> None:
    """A waiting command is found whether this sender wrote it or another program put several into one file."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    entry = read_command_catalog(checkpoint)
    send_command(command("mine"), command_binding(entry, None))
    lines = [msgspec.json.encode(command(name)) for name in ("first", "second")]
    (checkpoint / "commands" / "theirs.jsonl").write_bytes(b"\n".join([b"{broken second", *lines]))
    (checkpoint / "commands" / ".hidden.jsonl").write_bytes(msgspec.json.encode(command("hidden")))
    assert find_waiting("mine", entry, checkpoint) == command("mine")
    assert find_waiting("second", entry, checkpoint) == command("second")
    assert [find_waiting(name, entry, checkpoint) for name in ("min", "set", "hidden", "broken")] == [
        None
    ] * 4
    assert find_waiting("mine", msgspec.structs.replace(entry, commands="kafka://h:1/t"), checkpoint) is None
    assert find_waiting("mine", CommandCatalog("rooms", "", {}), checkpoint) is None


@pytest.mark.parametrize(
    ("commands", "given", "said"),
    [
        ("amqp://guest:***@h:5672/%2F/q", None, "does not keep the secrets"),
        ("kafka://h:9092/t?sasl.password=***", None, "Give the whole URI with -D commands=URI"),
        ("socket://h:1", None, "sends to the job itself"),
        ("kafka://h:9092/t?format=bytes", None, "JSON or protobuf"),
        ("jsonl:/x", "csv:/x", "JSON or protobuf"),
        ("jsonl:/x", "kafka://h:1/t?format=json&registry=http://r:1", "without a registry"),
        ("jsonl:/x", "console:", "console: is only for sinks"),
        ("jsonl:/x", "kafka://h/t", "HOST:PORT"),
    ],
)
def test_where_nothing_can_be_sent_is_refused(commands: str, given: str | None, said: str) -> None:
    """The refusal comes before anything is written."""
    with pytest.raises(BindingError) as refused:
        command_binding(msgspec.structs.replace(ENTRY, commands=commands), given)
    assert said in str(refused.value)


def test_the_uri_that_is_given_wins() -> None:
    """A URI given on the call overrides the entry's, whose secret is masked."""
    entry = msgspec.structs.replace(ENTRY, commands="amqp://guest:***@h:5672/%2F/q")
    uri = "amqp://guest:secret@h:5672/%2F/q"
    assert command_binding(entry, uri) == parse_binding("commands", uri, "control")


def test_a_job_without_steps_takes_no_commands() -> None:
    """The error says that the job has no steps."""
    with pytest.raises(BindingError, match="'copy' has no keyed step, so it takes no commands"):
        command_binding(CommandCatalog("copy", "", {}), None)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The job would not watch a folder that is created now."""
    binding = parse_binding("commands", f"jsonl:{tmp_path / 'gone'}", "control")
    with pytest.raises(BindingError, match="cannot be written into the folder"):
        send_command(command("a"), binding)
    assert not (tmp_path / "gone").exists()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """Refused are: a folder without a control entry, a missing folder, and a damaged entry."""
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(CheckpointError, match="not a checkpoint of a job that was started"):
            read_command_catalog(folder)
    (tmp_path / "control.json").write_text('{"job": 5}')
    with pytest.raises(CheckpointError, match=r"control\.json cannot be read"):
        read_command_catalog(tmp_path)


def test_the_entry_names_a_folder_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender may have another working folder, so the entry is absolute; odd names lead back to the same
    folder.
    """
    monkeypatch.chdir(tmp_path)
    binding = parse_binding("commands", "jsonl:50%2525?max_files_per_batch=1", "control")
    assert isinstance(binding, FilesBinding)
    entry = command_catalog("rooms", Accepting({}, 8), binding)
    monkeypatch.chdir("/")
    found = parse_binding("commands", entry.commands, "control")
    assert isinstance(found, FilesBinding)
    assert found.directory == binding.directory == str(tmp_path / "50%25")
