"""Fetched files: a file that a command names is read once, and an unreadable one is refused with a reason."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from modelled_store import ModelledStore

from penstock.control.commands import CommandError
from penstock.errors import ExternalSystemError
from penstock.objects.allowed import AllowedPlaces
from penstock.objects.object_stores import Place
from penstock.sources import fetched as fetched_module
from penstock.sources.fetched import FetchedFiles, KeptInFolder, KeptInStore

MAX_BYTES = 200
ANYWHERE = AllowedPlaces.of(["/", "s3://bucket", "https://host"], [])


@pytest.fixture
def fetched(tmp_path: Path) -> FetchedFiles:
    return FetchedFiles(KeptInFolder(str(tmp_path / "kept")), MAX_BYTES, ANYWHERE)


def content(fetched: FetchedFiles, name: str | Path, place: str = "0-0") -> Any:
    """Return the file's content, for the command at this place."""
    return msgspec.json.decode(fetched.json_of(str(name), place, "id"))


def reason(fetched: FetchedFiles, name: str | Path) -> str:
    """Return the reason for which a file is refused."""
    with pytest.raises(CommandError) as caught:
        fetched.json_of(str(name), "0-0", "id")
    assert caught.value.id == "id"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.json", "a.conf", "a", "ü b.json"])
def test_json_is_read_whatever_the_name(fetched: FetchedFiles, tmp_path: Path, name: str) -> None:
    """The file name does not matter, unless it ends as YAML does; paths and file:// URIs work."""
    path = written(tmp_path, name, '{"a": 1, "b": [true, null, "ü"], "c": {"d": 1.5}}')
    expected = {"a": 1, "b": [True, None, "ü"], "c": {"d": 1.5}}
    assert content(fetched, path) == expected
    assert content(fetched, f"file://{path}", "0-1") == expected


@pytest.mark.parametrize("name", ["a.yaml", "a.yml"])
def test_yaml_is_read(fetched: FetchedFiles, tmp_path: Path, name: str) -> None:
    """YAML dates become text, as in JSON."""
    path = written(tmp_path, name, "a: 1\nb: [true, null, ü]\nc: {d: 1.5, 7: x}\ne: 2026-11-21\n")
    expected = {"a": 1, "b": [True, None, "ü"], "c": {"d": 1.5, "7": "x"}, "e": "2026-11-21"}
    assert content(fetched, path) == expected


BROKEN: dict[str, tuple[str, str | bytes, str]] = {
    "no JSON": ("a.json", '{"a": ', "cannot be parsed: "),
    "empty": ("a.json", "", "cannot be parsed: "),
    "no text": ("a.json", b'{"a": "\xff"}', "cannot be parsed: "),
    "deep JSON": ("a.json", "[" * MAX_BYTES, "cannot be parsed: "),
    "no YAML": ("a.yaml", "a: [1", "cannot be parsed: "),
    "YAML that is no text": ("a.yaml", b"a: \xff", "cannot be parsed: "),
    "an impossible date": ("a.yaml", "a: 2026-13-45", "cannot be parsed: "),
    "a list as a name": ("a.yaml", "a: {? [1, 2] : 3}", "cannot be parsed: "),
    "Python in YAML": ("a.yaml", "a: !!python/name:os.system", "cannot be parsed: "),
    "an alias": ("a.yaml", "a: &x [1]\nb: *x\n", "aliases (*name) are not supported"),
    "YAML without an end": ("a.yaml", "a: &x [*x]\n", "aliases (*name) are not supported"),
    "an array": ("a.json", "[1]", "must contain an object of settings and their values"),
    "a number": ("a.yaml", "1", "must contain an object of settings and their values"),
    "empty YAML": ("a.yaml", "", "must contain an object of settings and their values"),
    "numbers as names": ("a.yaml", "1: 2", "must contain an object of settings and their values"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_object_of_settings_is_refused(fetched: FetchedFiles, tmp_path: Path, kind: str) -> None:
    """The reason names the file and fits on one line."""
    name, text, why = BROKEN[kind]
    path = written(tmp_path, name, text)
    assert reason(fetched, path).startswith(f"{str(path)!r} ")
    assert why in reason(fetched, path)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    """The size of the file does not matter."""
    fetched = FetchedFiles(KeptInFolder(str(tmp_path / "kept")), 1 << 20, ANYWHERE)
    for name in ("a.json", "b.yaml"):
        path = written(tmp_path, name, '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}")
        with pytest.raises(CommandError, match="nested too deeply"):
            fetched.json_of(str(path), name, "id")


def test_a_file_up_to_the_limit_is_taken(fetched: FetchedFiles, tmp_path: Path) -> None:
    """One byte more is refused."""
    text = '{"a": "' + "x" * (MAX_BYTES - 9) + '"}'
    assert len(content(fetched, written(tmp_path, "full.json", text))["a"]) == MAX_BYTES - 9
    larger = written(tmp_path, "larger.json", text + " ")
    with pytest.raises(CommandError, match=f"larger.json' is larger than {MAX_BYTES} bytes"):
        fetched.json_of(str(larger), "0-1", "id")


def test_a_place_that_cannot_be_read_is_refused(fetched: FetchedFiles, tmp_path: Path) -> None:
    """Each has its own reason; a pipe without a writer does not block the job."""
    os.mkfifo(tmp_path / "pipe")
    cases = {
        str(tmp_path / "none.json"): "cannot be read: No such file or directory",
        str(tmp_path): "cannot be read: Is a directory",
        str(tmp_path / "pipe"): "cannot be read: it is not a regular file",
        "/dev/zero": "cannot be read: it is not a regular file",
        "some/settings.json": "may not read",
        "file://host/settings.json": "may not read",
        "": "may not read",
        "/with\0zero": "may not read",
        "~nobody-of-this-name/settings.json": "may not read",
        "/" + "x" * 2000: "cannot be read: File name too long",
        "ftp://host/settings.json": "may not read",
        "s3://bucket": "may not read",
        "https://user:sesame@host/a.json": "may not read",
        "https://host/a.json?signature=sesame": "may not read",
    }
    for number, (name, why) in enumerate(cases.items()):
        with pytest.raises(CommandError) as caught:
            fetched.json_of(name, f"0-{number}", "id")
        assert why in str(caught.value), name
        assert "sesame" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(fetched: FetchedFiles, tmp_path: Path) -> None:
    """The reason is the system's."""
    path = written(tmp_path, "a.json", "{}")
    path.chmod(0)
    assert "cannot be read: Permission denied" in reason(fetched, path)


def test_a_refusal_of_the_system_is_told(
    fetched: FetchedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same is tested for root, to whom no file is refused."""

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path, "a.json", "{}")
    with monkeypatch.context() as patched:
        patched.setattr("penstock.objects.allowed._open_below", refuse)
        assert reason(fetched, path) == f"{str(path)!r} cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("os.open", OSError(errno.EMFILE, "Too many open files")),
        ("os.fsync", OSError(errno.ENOSPC, "No space left on device")),
        ("msgspec.json.decode", MemoryError()),
    ],
)
def test_what_the_job_lacks_rejects_no_command(
    fetched: FetchedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    """The task fails instead, and reads the file when Spark retries it; no partial copy remains."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    path = written(tmp_path, "a.json", '{"a": 1}')
    with monkeypatch.context() as patched:
        patched.setattr(f"penstock.sources.fetched.{place}", refuse)
        with pytest.raises(
            ExternalSystemError, match=r"command 'id' names cannot be read and kept.*start it again"
        ):
            fetched.json_of(str(path), "0-0", "id")
    assert not list(Path(fetched.kept.folder).glob(".*"))
    assert content(fetched, path) == {"a": 1}


def test_what_was_read_once_stays(fetched: FetchedFiles, tmp_path: Path) -> None:
    """The same command keeps its content, whatever the file has by now; another command reads it again."""
    path = written(tmp_path, "a.json", '{"a": 1}')
    assert content(fetched, path) == {"a": 1}
    path.write_text('{"a": 2}')
    assert content(fetched, path) == {"a": 1}
    assert content(fetched, path, "0-1") == {"a": 2}
    path.unlink()
    assert content(FetchedFiles(fetched.kept, 1, AllowedPlaces()), path) == {"a": 1}


def test_a_failure_stays_as_well(fetched: FetchedFiles, tmp_path: Path) -> None:
    """A replay fails in the same way, even if the file exists by now."""
    path = tmp_path / "a.json"
    first = reason(fetched, path)
    path.write_text('{"a": 1}')
    assert reason(fetched, path) == first
    assert content(fetched, path, "0-1") == {"a": 1}


def test_readers_at_once_agree(
    fetched: FetchedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads different content; all get the content of the first to store it."""
    readers = 4
    all_have_read = threading.Barrier(readers)
    numbers = iter(range(readers))

    def read(*_: object) -> bytes:
        content = b'{"a": %d}' % next(numbers)
        all_have_read.wait(10)
        return content

    monkeypatch.setattr("penstock.objects.allowed._file", read)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetched.json_of("/any", "0-0", "id")))
        for _ in range(readers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == readers
    assert len(set(found)) == 1
    # No partial file remains.
    assert len(list(Path(fetched.kept.folder).iterdir())) == 1


def test_what_was_read_long_ago_is_deleted(
    fetched: FetchedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletion starts once there are many; files that retained micro-batches have read stay."""
    monkeypatch.setattr("penstock.sources.fetched._MAX_KEPT", 3)
    path = written(tmp_path, "a.json", '{"a": 1}')
    for number in range(3):
        content(fetched, path, f"old-{number}")
    for kept in Path(fetched.kept.folder).iterdir():
        os.utime(kept, (1_000, 1_000))
    content(fetched, path, "0-0")
    assert len(list(Path(fetched.kept.folder).iterdir())) == 4, "nobody knows which may be needed"
    (tmp_path / "offsets").mkdir()
    for number in ("9", "10", ".9.crc"):
        (tmp_path / "offsets" / number).touch()
    content(fetched, path, "0-1")
    assert len(list(Path(fetched.kept.folder).iterdir())) == 2


def test_on_a_store_the_first_task_decides_what_a_replay_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also when two tasks look at the same time and the file changes between them."""
    store = ModelledStore()
    monkeypatch.setattr(fetched_module, "ObjectFolder", lambda *_: store)
    fetched = FetchedFiles(KeptInStore(Place("s3", "bucket", "rooms/fetched"), {}), MAX_BYTES, ANYWHERE)
    path = written(tmp_path, "a.json", '{"a": 1}')
    assert content(fetched, path) == {"a": 1}
    written(tmp_path, "a.json", '{"a": 2}')
    assert content(fetched, path) == {"a": 1}
    (name,) = store.objects
    fetched.kept.keep_first(name, b'{"content": {"a": 3}}')
    assert content(fetched, path) == {"a": 1}
