"""The start of Spark, whose JVM may be killed at any moment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.errors import ExternalSystemError
from penstock.spark import session as session_module
from penstock.spark.session import SessionSettings, open_session


class Context:
    """A context that starts at once."""

    _gateway = None

    def __init__(self, **_: Any) -> None:
        pass


class StartedSession:
    """A session whose JVM does not answer."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(setLogLevel=lambda _: None)
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True
        raise Py4JNetworkError("Error while sending or receiving")


class LostJvm(Context):
    """A call during which the JVM is killed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize("lost_in", ["SparkContext", "_interpret_everywhere", "_shorten_hadoop_settings"])
def test_a_jvm_that_is_killed_during_the_start_is_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_in: str
) -> None:
    """Whatever the driver asks it at that moment; the session is stopped, so another one can start."""
    started = StartedSession()
    own = {
        # Other tests of this process may have one.
        "_running_session": lambda: None,
        "SparkContext": Context,
        "take_jvm_ahead": lambda _: None,
        "jvm_environment": lambda _: {},
        "start_fork_server": lambda: None,
        "_new_session": lambda *_: started,
        "_interpret_everywhere": lambda _: None,
    }
    for name, value in own.items():
        monkeypatch.setattr(session_module, name, value)
    monkeypatch.setattr(session_module, lost_in, LostJvm)
    settings = SessionSettings("job", "local[2]", 1, tmp_path / "spark.log")
    with pytest.raises(
        ExternalSystemError, match=r"cannot be started .* its JVM has ended; it may have been killed"
    ):
        open_session(settings).__enter__()
    assert started.is_stopped == (lost_in != "SparkContext")
