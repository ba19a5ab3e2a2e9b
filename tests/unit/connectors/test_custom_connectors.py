"""Custom connectors: bindings, options, guarantees, and the errors for mistakes in the user's class."""

from __future__ import annotations

import doctest
import importlib
import pickle
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock.connectors
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PythonBinding
from penstock.commands.command_catalog import CommandCatalog
from penstock.commands.command_sender import command_binding
from penstock.connectors.custom_class import bind_class, describe_guarantee
from penstock.connectors.custom_log import CustomLog, open_custom_log
from penstock.errors import (
    BindingError,
    CheckpointError,
    ExternalSystemError,
    JobFailedError,
    PenstockError,
    RecordsLostError,
)
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.testing.connectors import (
    SinkUnderTest,
    SourceUnderTest,
    StoredRecord,
    check_sink,
    check_source,
    open_custom_sink,
    open_custom_source,
)

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "custom.md"
RECORDS = record_type("id BIGINT NOT NULL, value STRING NOT NULL")
NO_SERVER = {"credentials": "it has no login", "slow server": "it has no server"}
BLOCK = pa.record_batch({"id": [1], "value": ["a"]})


def bound(uri: str, *, is_sink: bool) -> PythonBinding:
    """Return the binding of a URI, with its class imported."""
    binding = parse_binding("kit", uri, "sink" if is_sink else "data")
    assert isinstance(binding, PythonBinding)
    return bind_class(binding, is_sink=is_sink)


@pytest.mark.parametrize("name", penstock.connectors.__all__)
def test_examples_in_docstrings_run(name: str) -> None:
    """The examples of each base class run unchanged."""
    names = {public: getattr(penstock.connectors, public) for public in penstock.connectors.__all__}
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(recurse=False).find(names[name], name, globs={**names, "pa": pa}):
        report: list[str] = []
        runner.run(test, out=report.append)
        assert not report, "".join(report)


def test_the_connectors_of_the_page_conform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source and the sink, of at most 60 lines, pass the page's own tests unchanged."""
    files = dict(
        re.findall(
            r"^`(\w+)\.py`[^`]*(?:`[^`\n]*`[^`]*)*?```python\n(.*?)^```",
            PAGE.read_text(),
            re.DOTALL | re.MULTILINE,
        )
    )
    assert len(files["shelf"].splitlines()) <= 60
    for name in ("shelf", "test_shelf"):
        (tmp_path / f"{name}.py").write_text(files[name])
    monkeypatch.syspath_prepend(tmp_path)
    try:
        tests = importlib.import_module("test_shelf")
        for name in ("source", "sink"):
            folder = tmp_path / name
            folder.mkdir()
            getattr(tests, f"test_the_{name}")(folder)
    finally:
        for name in ("shelf", "test_shelf"):
            sys.modules.pop(name, None)


def test_a_log_with_partitions_conforms(tmp_path: Path) -> None:
    """The lines of two files form two partitions."""
    folder = tmp_path / "in"
    folder.mkdir()

    def put(records: Sequence[bytes]) -> None:
        for number, record in enumerate(records):
            with (folder / f"{number % 2}.txt").open("ab") as file:
                file.write(record + b"\n")

    source = SourceUnderTest(
        "lines",
        "each record once",
        lambda: open_custom_source(f"python:custom_kinds:Lines?folder={folder}", tmp_path / "checkpoint"),
        put,
        without=NO_SERVER,
    )
    check_source(source).require()


@pytest.mark.parametrize("kind", ["Feed", "Inbox"])
def test_a_receiver_conforms(tmp_path: Path, kind: str) -> None:
    """Covered are one that resumes at a position, and one whose system drops acknowledged records."""
    place, names = tmp_path / "place", iter(range(10_000))
    if kind == "Feed":
        place.touch()
    else:
        place.mkdir()

    def put(records: Sequence[bytes]) -> None:
        if kind == "Feed":
            with place.open("ab") as file:
                file.write(b"".join(record + b"\n" for record in records))
            return
        for record in records:
            new = tmp_path / f"{next(names):06}"
            new.write_bytes(record)
            new.rename(place / new.name)

    option = "path" if kind == "Feed" else "folder"
    source = SourceUnderTest(
        kind,
        "each record once" if kind == "Feed" else "at least once",
        lambda: open_custom_source(f"python:custom_kinds:{kind}?{option}={place}", tmp_path / "checkpoint"),
        put,
        without=NO_SERVER,
    )
    check_source(source).require()


def test_a_sink_that_commits_in_the_driver_conforms(tmp_path: Path) -> None:
    """Tasks stage files, and the commit publishes one for each sink partition."""

    def stored() -> list[StoredRecord]:
        lines = [line for path in sorted(tmp_path.glob("[!.]*")) for line in path.read_text().splitlines()]
        return [StoredRecord(int(number), value) for number, value in (line.split(" ", 1) for line in lines)]

    uri = f"python:custom_kinds:Staged?folder={tmp_path}&mode=rows&loud=true"
    excuses = {**NO_SERVER, "bad record": "it takes every record"}
    sink = SinkUnderTest(
        "files", "exactly once", lambda: open_custom_sink(uri), stored, ordered=True, without=excuses
    )
    check_sink(sink).require()


def test_a_sink_with_ids_conforms(tmp_path: Path) -> None:
    """Copies of a record have the same id."""
    path = tmp_path / "lines"
    path.touch()

    def stored() -> list[StoredRecord]:
        lines = [line.split(" ", 2) for line in path.read_text().splitlines()]
        return [StoredRecord(int(number), value, mark) for number, mark, value in lines]

    excuses = {**NO_SERVER, "bad record": "it takes every record"}
    sink = SinkUnderTest(
        "lines",
        "at least once with ids",
        lambda: open_custom_sink(f"python:custom_kinds:Marked?path={path}"),
        stored,
        without=excuses,
    )
    check_sink(sink).require()


@pytest.mark.parametrize(
    ("uri", "is_sink", "message"),
    [
        ("python:custom_kinds", True, "needs a module and a class, such as python:"),
        (
            "python:no_such_module:Sink",
            True,
            "there is no module 'no_such_module'. Put no_such_module.py beside the job",
        ),
        (
            "python:custom_mistake:Sink",
            True,
            r"custom_mistake' cannot be imported \(RuntimeError: not today; custom_mistake.py, l",
        ),
        ("python:custom_kinds:Stagd", True, "no class 'Stagd'. Did you mean Staged?"),
        (
            "python:custom_kinds:Lines",
            True,
            "is a sink, but custom_kinds:Lines is not a class that derives from .*RecordSink. Derive it",
        ),
        (
            "python:custom_kinds:Staged",
            False,
            "is a stream, but .*RecordLog or penstock.connectors.RecordReceiver",
        ),
        ("python:custom_kinds:Half", True, "custom_kinds:Half lacks the methods write. Define them."),
        (
            "python:custom_kinds:Boastful",
            True,
            "'at most once', which is none of exactly once, idempotent by key",
        ),
        (
            "python:custom_kinds:Staged",
            True,
            "needs the options folder: python:custom_kinds:Staged.folder=VALUE",
        ),
        (
            "python:custom_kinds:Staged?foldr=x",
            True,
            "no option 'foldr'; it has folder, mode, loud. Did you mean folder?",
        ),
        (
            "python:custom_kinds:Staged?folder=x&mode=fast",
            True,
            "takes for mode one of rows, arrow, not 'fast'",
        ),
        (
            "python:custom_kinds:Staged?folder=x&loud=yes",
            True,
            "takes for loud one of true, false, not 'yes'",
        ),
        ("python:custom_kinds:Clumsy?port=high", True, "takes a number for port, not 'high'"),
        (
            "python:custom_kinds:Clumsy?port=env:OWN_SECRET",
            True,
            "takes a number for port, not 'env:OWN_SECRET'",
        ),
        ("python:custom_kinds:Clumsy?password=env:NO_SUCH", True, "there is no environment variable NO_SUCH"),
        ("python:custom_kinds:Greedy?a=b", True, "it cannot have 'options'. List the arguments"),
        ("python:custom_kinds:Odd?many=1", True, "An option can be str, int, float, bool, Path or a Literal"),
    ],
)
def test_a_wrong_binding_is_a_sentence(
    uri: str, is_sink: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any error in the class or its options the start is refused with what to do."""
    monkeypatch.setenv("OWN_SECRET", "s3same")
    with pytest.raises(BindingError, match=message) as raised:
        bound(uri, is_sink=is_sink)
    assert "s3same" not in str(raised.value)


def test_errors_of_a_sink_name_the_class_and_mask_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has stream, class, method and line; the value of a reference is masked."""
    monkeypatch.setenv("OWN_SECRET", "s3same")
    sink = open_custom_sink("python:custom_kinds:Clumsy?password=env:OWN_SECRET")
    with pytest.raises(
        ExternalSystemError, match=r"^Sink 'kit', custom_kinds:Clumsy: The server refuses '\*\*\*'\.$"
    ):
        sink.prepare("lineage", "")
    task = sink.task(TaskContext(0, 0, 0, "lineage"), RECORDS)
    wanted = (
        r"Sink 'kit', custom_kinds:Clumsy: write failed \(ValueError: bad login \*\*\*; "
        r"custom_kinds.py, line \d+\)"
    )
    with pytest.raises(JobFailedError, match=wanted):
        task.write(BLOCK, None)
    with pytest.raises(JobFailedError, match="finish returns a text for commit, not int"):
        task.finish()
    task.abort()


def test_an_object_is_called_in_one_thread(tmp_path: Path) -> None:
    """In real time one thread writes an interval and another finishes it; a failed object is also aborted in
    its own thread.
    """
    sink = open_custom_sink(f"python:custom_kinds:StrictSink?path={tmp_path / 'aborted'}")
    for number in range(2):
        with ThreadPoolExecutor(1) as slot, ThreadPoolExecutor(1) as commits:
            task = slot.submit(sink.task, TaskContext(number, 0, 0, "lineage"), RECORDS).result()
            slot.submit(task.write, BLOCK, None).result()
            if number == 0:
                assert commits.submit(task.finish).result() == b"done"
            # One that has finished is closed, which is the last call.
            commits.submit(task.abort).result()
            assert (tmp_path / "aborted").exists() == (number == 1)
    place = tmp_path / "place"
    place.write_text("a\nb\n")
    with open_custom_source(f"python:custom_kinds:StrictFeed?path={place}", tmp_path / "checkpoint") as log:
        deadline = time.monotonic() + 20
        while log.latest(0, limited=False) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_errors_of_a_log_say_whether_its_system_is_away(tmp_path: Path) -> None:
    """An OSError is attributed to the external system; other errors, and positions out of order, to the class."""
    (tmp_path / "a.txt").write_text("{}\n{}\n")

    def read(kind: str) -> list[Any]:
        log = CustomLog(bound(f"python:custom_kinds:{kind}?folder={tmp_path}", is_sink=False), {})
        return list(log.read(log.splits({}, {"a.txt": 2}, 1), RECORDS))

    with pytest.raises(JobFailedError, match=r"Broken: read failed \(KeyError: 'a.txt'; custom_kinds.py"):
        read("Broken")
    with pytest.raises(
        PenstockError, match=r"read gave position 0 of the partition 'a.txt' where 2 to 1 were due"
    ):
        read("Backwards")
    broken = CustomLog(bound(f"python:custom_kinds:Broken?folder={tmp_path}", is_sink=False), {})
    with pytest.raises(
        ExternalSystemError, match=r"ends failed .*nobody is there.* The system behind it does not"
    ):
        broken.latest({}, limited=False)


def test_a_log_begins_where_it_first_began_and_never_goes_back(tmp_path: Path) -> None:
    """The start is kept in the checkpoint; micro-batches are limited; missing records end the run."""
    file = tmp_path / "a.txt"
    file.write_text("{}\n" * 5)
    query = f"folder={tmp_path}&max_records_per_batch=2"
    log = open_custom_log(
        bound(f"python:custom_kinds:Lines?{query}&first=2", is_sink=False), tmp_path / "begins"
    )
    assert log.beginning() == {"a.txt": 2}
    again = open_custom_log(bound(f"python:custom_kinds:Lines?{query}", is_sink=False), tmp_path / "begins")
    assert again.beginning() == {"a.txt": 2}
    first = log.latest(log.beginning(), limited=True)
    assert first == {"a.txt": 4}
    assert log.latest(first, limited=False) == {"a.txt": 5}
    assert log.decode(log.encode(first)) == first
    assert log.newest() == {"a.txt": 5}
    with pytest.raises(BindingError, match="are of another source than custom_kinds:Lines"):
        log.decode({"position": 5})
    file.write_text("{}\n")
    with pytest.raises(
        RecordsLostError, match=r"ends at 1, but the job has read up to 4. Restore its records"
    ):
        pickle.loads(pickle.dumps(log)).latest(first, limited=True)  # pickled one word before
    (tmp_path / "begins").write_text("?")
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_custom_log(bound(f"python:custom_kinds:Lines?{query}", is_sink=False), tmp_path / "begins")


def test_a_receiver_whose_system_is_away_refuses_the_start(tmp_path: Path) -> None:
    """The message is like that of other receivers."""
    uri = f"python:custom_kinds:Inbox?folder={tmp_path / 'away'}"
    refused = pytest.raises(ExternalSystemError, match=r"custom_kinds:Inbox: open failed \(FileNotFoundError")
    with refused, open_custom_source(uri, tmp_path / "checkpoint"):
        pytest.fail("it is open")


def test_the_class_says_what_the_job_shows() -> None:
    """It is a sentence with the guarantee; ids are mentioned only for a sink that declares them."""
    sink = bound("python:custom_kinds:Marked?path=x", is_sink=True)
    assert (
        describe_guarantee(sink) == "Sink 'kit' is custom_kinds:Marked, which states: at least once with ids."
    )
    assert sink.origin
    assert describe_guarantee(bound("python:custom_kinds:Lines?folder=x", is_sink=False)).endswith(
        "states: each record once."
    )


def test_commands_are_not_sent_to_a_class_and_nothing_is_imported() -> None:
    """The place of commands is stored in the checkpoint, so parsing it must not run code."""
    entry = CommandCatalog("job", "python:custom_unknown:Commands", {"step": None})  # type: ignore[dict-item]
    with pytest.raises(BindingError, match="come from custom_unknown:Commands, a class of your own"):
        command_binding(entry, None)
    assert "custom_unknown" not in sys.modules
