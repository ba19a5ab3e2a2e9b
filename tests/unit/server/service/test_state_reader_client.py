"""Asking the state reader: started when somebody asks, killed when it does not answer, never waited for for long."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import CheckpointError, ExternalSystemError, UnknownIdError
from penstock.savepoints.state_pages import KeysWanted
from penstock.server.service.state_reader import Question
from penstock.server.service.state_reader_client import StateReader

PROGRAM = """
import json, os, sys, time
print("noise", file=sys.stderr)
time.sleep({start_s})
print("ready", flush=True)
for line in sys.stdin:
    wanted = json.loads(line)["wanted"]
    if wanted["step"] == "die":
        os._exit(3)
    if wanted["step"] == "slow":
        time.sleep(float(wanted["key"]))
    if wanted["step"] == "unknown":
        answer = dict(error="There is no such step.", unknown=True)
    elif wanted["step"] == "broken":
        answer = dict(error="It is damaged.")
    else:
        item = dict(key=wanted["step"], key_group=os.getpid(), bytes=1, values=dict(a=1), timers=None, windows=None)
        answer = dict(page=dict(batch=3, items=[item], next=None))
    print(json.dumps(answer), flush=True)
"""


class Asking:
    """A state reader that answers without Spark."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.made: list[StateReader] = []

    def reader(self, start_s: float = 0.0, **settings: float) -> StateReader:
        program = (sys.executable, "-c", PROGRAM.format(start_s=start_s))
        self.made.append(StateReader(self.home, program, **settings))
        return self.made[-1]


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    made = Asking(tmp_path / "home")
    yield made
    for reader in made.made:
        reader.close()


def ask(reader: StateReader, step: str, key: str | None = None) -> tuple[str, int]:
    """What was answered, and the process that did."""
    page = reader.ask(Question("/checkpoint", KeysWanted(step=step, key=key)))
    return page.items[0].key, page.items[0].key_group


def test_one_process_answers_all(asking: Asking) -> None:
    """Also what is unknown and what is damaged; what it prints is in a log for the owner."""
    reader = asking.reader()
    first = ask(reader, "a")
    with pytest.raises(UnknownIdError, match="no such step"):
        ask(reader, "unknown")
    with pytest.raises(CheckpointError, match="damaged"):
        ask(reader, "broken")
    assert ask(reader, "b") == ("b", first[1])
    log = asking.home / "state-reader.log"
    assert log.read_text() == "noise\n"
    assert log.stat().st_mode & 0o077 == 0


def test_one_that_has_died_is_started_again(asking: Asking) -> None:
    """Whoever asked gets an error."""
    reader = asking.reader()
    _, before = ask(reader, "a")
    with pytest.raises(CheckpointError, match=r"died; see .*state-reader.log"):
        ask(reader, "die")
    assert ask(reader, "a")[1] != before


def test_nobody_waits_for_long(asking: Asking) -> None:
    """For its start, nor for an answer; an answer that comes later is nobody else's."""
    reader = asking.reader(start_s=0.6, patience_s=0.4)
    begun = time.monotonic()
    with pytest.raises(ExternalSystemError, match="Try again"):
        ask(reader, "a")
    assert time.monotonic() - begun < 5
    process = until_answered(reader, "b")
    with pytest.raises(ExternalSystemError, match="the state is being read"):
        ask(reader, "slow", "0.6")
    assert until_answered(reader, "c") == process


def test_who_asks_again_gets_the_answer_that_came_late(asking: Asking) -> None:
    """So that what takes longer than anybody waits can be seen as well."""
    reader = asking.reader(patience_s=0.5)
    until_answered(reader, "a")
    begun = time.monotonic()
    for _ in range(40):
        with contextlib.suppress(ExternalSystemError):
            assert ask(reader, "slow", "1.2")[0] == "slow"
            break
    else:
        raise AssertionError("it was never answered")
    # It was asked once: asked anew each time it would never come.
    assert time.monotonic() - begun < 10


def test_a_slow_answer_comes_however_long_it_takes(asking: Asking) -> None:
    """A reader that is silent for too long is killed for another question, and not for whoever waits for it."""
    reader = asking.reader(patience_s=0.1, longest_s=0.3)
    process = until_answered(reader, "a")
    for _ in range(100):
        with contextlib.suppress(ExternalSystemError):
            assert ask(reader, "slow", "1.2") == ("slow", process)
            break
    else:
        raise AssertionError("it was never answered")
    with pytest.raises(ExternalSystemError, match="Try again"):
        ask(reader, "slow", "60")
    time.sleep(0.4)
    assert until_answered(reader, "b") != process


def until_answered(reader: StateReader, step: str) -> int:
    """Ask until there is an answer; the process that gave it."""
    deadline = time.monotonic() + 20
    while True:
        try:
            told, process = ask(reader, step)
        except ExternalSystemError:
            assert time.monotonic() < deadline
            continue
        assert told == step
        return process


def test_one_that_does_not_answer_is_killed(asking: Asking) -> None:
    """And another one started."""
    reader = asking.reader(patience_s=0.3, longest_s=1.0)
    before = until_answered(reader, "a")
    with pytest.raises(ExternalSystemError):
        ask(reader, "slow", "1000")
    assert until_answered(reader, "b") != before


def test_one_that_cannot_start_is_told(tmp_path: Path) -> None:
    """With where to look."""
    reader = StateReader(tmp_path, (sys.executable, "-c", "raise SystemExit('no Java')"))
    with pytest.raises(CheckpointError, match=r"cannot start; .*penstock doctor"):
        ask(reader, "a")
    assert (tmp_path / "state-reader.log").read_text() == "no Java\n"
    reader.close()


def test_it_ends_with_the_server(asking: Asking) -> None:
    """At once, with what it has started."""
    reader = asking.reader()
    _, process = ask(reader, "a")
    reader.close()
    assert not Path(f"/proc/{process}").exists()
