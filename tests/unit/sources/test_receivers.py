"""Behaviour shared by all receivers: they reconnect, and report errors that they cannot recover from."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BindingError, ExternalSystemError, JobFailedError, PenstockError
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import Group, Receiver, group_end_s


class Scripted(Receiver[Any]):
    """A receiver that follows a script: each connection raises an error or delivers a record."""

    def __init__(self, folder: Path, *script: Exception | bytes, bounded: bool = True) -> None:
        self.journal = JournalWriter(folder)
        super().__init__("readings", self.journal, bounded=bounded)
        self._script = list(script)
        self.lost: list[bytes] = []

    def _connect(self) -> Any:
        if self._script and isinstance(self._script[0], PenstockError):
            raise self._script.pop(0)  # type: ignore[misc]
        return contextlib.nullcontext()

    def _receive(self, connection: Any) -> None:
        step = self._script.pop(0)
        if isinstance(step, Exception):
            raise step
        self._journal.append([step])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("penstock.sources.receiver._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("penstock.sources.receiver._LONGEST_PAUSE_S", 0.01)
    return


AWAY = ExternalSystemError("away")
MISSING = BindingError("missing")


def test_a_lost_connection_is_made_again(tmp_path: Path) -> None:
    """It reconnects after any kind of loss, also when the queue is missing for a moment."""
    with Scripted(tmp_path, ConnectionError("lost"), AWAY, MISSING, AWAY, OSError("lost"), b"a") as receiver:
        receiver.wait_for_end(threading.Event())
        assert receiver.journal.position > 0
    assert receiver.error is None


def test_what_stays_missing_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted queue does not come back, so the receiver gives up."""
    monkeypatch.setattr("penstock.sources.receiver._PATIENCE_S", 0.05)
    with (
        Scripted(tmp_path, ConnectionError("lost"), *[MISSING] * 200) as receiver,
        pytest.raises(BindingError, match="missing"),
    ):
        receiver.wait_for_end(threading.Event())


@pytest.mark.parametrize("error", [AWAY, MISSING])
def test_the_first_connection_must_be_made(tmp_path: Path, error: PenstockError) -> None:
    """Otherwise the run does not start, and the journal is released."""
    with pytest.raises(type(error)):
        Scripted(tmp_path, error).__enter__()
    JournalWriter(tmp_path).close()


def test_any_other_error_reaches_whoever_runs_the_job(tmp_path: Path) -> None:
    """A receiver never ends silently."""
    with (
        Scripted(tmp_path, KeyError("x")) as receiver,
        pytest.raises(JobFailedError, match=r"'readings': the receiver failed \(KeyError"),
    ):
        receiver.wait_for_end(threading.Event())


def test_a_group_waits_only_behind_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first record commits at once; later ones wait briefly, or until there are many."""
    writer = JournalWriter(tmp_path)
    group = Group(writer, 3)
    group.add(b"a", b"1")
    assert group.wait_s == 0
    group.commit()
    assert group_end_s(5.0) == pytest.approx(5.01)
    # No pause of this process is as long.
    monkeypatch.setattr("penstock.sources.receiver._GROUP_S", 60.0)
    group.add(b"b", b"2")
    assert 0 < group.wait_s <= 60.0
    group.add(b"c", b"3")
    group.add(b"d")
    assert group.wait_s == 0
    group.commit()
    assert list(writer.notes()) == [b"23", b"1"]
    group.add(b"e")
    monkeypatch.setattr("penstock.sources.receiver._GROUP_S", 0.0)
    assert group.wait_s == 0
    group.commit()
    group.commit()
    assert not len(group)
    writer.close()
