"""Questions about state: each has its own process, which is killed when it does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CheckpointError, ExternalSystemError, PenstockError, QueryError, UnknownIdError
from penstock.savepoints.state_pages import KeysWanted
from penstock.server.service.state_client import StateClient
from penstock.server.service.state_process import KeysQuestion, QueryQuestion

PROGRAM = """
import json, os, pathlib, sys, time
question = json.load(sys.stdin)
about = question["sql"] if question["type"] == "query" else question["wanted"]["step"]
print("noise", file=sys.stderr)
if about == "die":
    sys.exit("no memory")
if about.startswith("/"):
    pathlib.Path(about).write_text(str(os.getpid()))
    time.sleep(60)
if about in ("wrong", "unknown", "broken"):
    answer = {"error": f"It is {about}.", "wrong": about == "wrong", "unknown": about == "unknown"}
elif question["type"] == "query":
    answer = {"content": {"batch": 3, "columns": [{"name": "n", "type": "int64"}], "rows": [{"n": os.getpid()}]}}
else:
    item = dict(key=about, key_group=os.getpid(), bytes=1, values=dict(a=1), timers=None, windows=None)
    answer = {"page": {"batch": 3, "items": [item], "next": None}}
print(json.dumps(answer))
"""


def client(**settings: float) -> StateClient:
    return StateClient((sys.executable, "-c", PROGRAM), **settings)


def query(asked: StateClient, sql: str) -> int:
    """Ask a query; return the process that answered."""
    found = asked.query(QueryQuestion("/checkpoint", sql, 100, 0.1, 10))
    process: int = found.rows[0]["n"]
    return process


def keys(asked: StateClient, step: str) -> int:
    """Ask for keys; return the process that answered."""
    (item,) = asked.keys(KeysQuestion("/checkpoint", KeysWanted(step=step))).items
    assert item.key == step
    return item.key_group


Ask = Callable[[StateClient, str], int]


@pytest.mark.parametrize("ask", [query, keys])
def test_each_question_has_its_own_process(ask: Ask) -> None:
    """Nothing of a question is left for the next one."""
    asked = client()
    assert ask(asked, "a") != ask(asked, "b")


@pytest.mark.parametrize(
    ("about", "kind"), [("wrong", QueryError), ("unknown", UnknownIdError), ("broken", CheckpointError)]
)
@pytest.mark.parametrize("ask", [query, keys])
def test_errors_keep_their_kind(ask: Ask, about: str, kind: type[PenstockError]) -> None:
    """So that a user learns whether the question was wrong."""
    with pytest.raises(kind, match=f"It is {about}"):
        ask(client(), about)


@pytest.mark.parametrize("ask", [query, keys])
def test_a_process_that_dies_is_reported(ask: Ask) -> None:
    """With its last line; the next question is answered."""
    asked = client()
    with pytest.raises(CheckpointError, match="ended with 1: no memory"):
        ask(asked, "die")
    assert ask(asked, "a")


@pytest.mark.parametrize(
    ("ask", "kind", "remedy"),
    [(query, QueryError, "Name fewer columns"), (keys, CheckpointError, "Name one key")],
)
def test_a_process_that_takes_too_long_is_killed(
    ask: Ask, kind: type[PenstockError], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what takes less time."""
    started: list[int] = []

    class Noted(subprocess.Popen[str]):
        """A process whose number is noted, also if it is killed before it has begun."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            started.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with pytest.raises(kind, match=rf"more than \d\.\d s\. {remedy}"):
        ask(client(reading_s=0.5), str(tmp_path / "process"))
    (pid,) = started
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(("ask", "other"), [(query, keys), (keys, query)])
def test_questions_of_a_kind_wait_for_one_another(ask: Ask, other: Ask, tmp_path: Path) -> None:
    """Not for long; and a query does not wait for keys, nor keys for a query."""
    asked = client(patience_s=0.1)
    noted = tmp_path / "process"

    def wait() -> None:
        with pytest.raises(CheckpointError, match="ended with -9"):
            ask(asked, str(noted))

    first = threading.Thread(target=wait)
    first.start()
    while not (noted.exists() and noted.read_text()):
        time.sleep(0.01)
    with pytest.raises(ExternalSystemError, match="Try again in a few seconds"):
        ask(asked, "a")
    assert other(asked, "a")
    os.kill(int(noted.read_text()), signal.SIGKILL)
    first.join()
