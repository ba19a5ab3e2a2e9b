"""Reading a large state takes no more memory than it must, and leaves the session of a job as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.session import SessionSettings, _all_settings
from penstock.spark.stored_state import _set


class Conf:
    """The settings of a session."""

    def __init__(self, **found: str) -> None:
        self.found = found

    def get(self, name: str, default: str | None) -> str | None:
        return self.found.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.found[name] = value

    def unset(self, name: str) -> None:
        del self.found[name]


class Session:
    def __init__(self, conf: Conf) -> None:
        self.conf = conf


def test_settings_of_a_session_are_what_they_were_afterwards() -> None:
    """Also when reading fails."""
    conf = Conf(own="1")
    session: Any = Session(conf)

    def read() -> None:
        with _set(session, {"own": "2", "other": "3"}):
            assert conf.found == {"own": "2", "other": "3"}
            raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        read()
    assert conf.found == {"own": "1"}


@pytest.mark.parametrize("lean", [True, False])
def test_the_heap_of_a_session_that_only_reads_stays_near_what_is_used(lean: bool) -> None:
    """That of a job may grow, since it is quicker so."""
    settings = SessionSettings("s", "yarn", 1, log_file=Path("log"), lean=lean)
    options = _all_settings(settings)["spark.driver.extraJavaOptions"].split()
    assert ("-XX:+UseSerialGC" in options) == ("-XX:MaxHeapFreeRatio=50" in options) == lean
