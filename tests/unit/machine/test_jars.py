"""Pinned jars: what is fetched from where, and what is refused. No network: a folder replaces Ivy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from threads_at_once import call_at_once

from penstock.machine import jars
from penstock.machine.cache import CacheFolderError, cache_folder
from penstock.machine.jars import (
    Jar,
    JarResolutionError,
    ivy_complaint,
    ivy_module,
    read_pinned_jars,
    resolve,
)

ONE = Jar("org.one", "one", "1.0", hashlib.sha256(b"one").hexdigest())
TWO = Jar("org.two", "two", "2.0", hashlib.sha256(b"two").hexdigest())


class Registry:
    """Replaces Ivy: serves content by file name, and counts requests."""

    def __init__(self) -> None:
        self.content = {"one-1.0.jar": b"one", "two-2.0.jar": b"two"}
        self.asked: list[list[str]] = []

    def __call__(self, wanted: Sequence[Jar], temporary: Path, out: Path) -> str:
        self.asked.append([jar.name for jar in wanted])
        out.mkdir()
        for jar in wanted:
            if jar.file_name in self.content:
                (out / jar.file_name).write_bytes(self.content[jar.file_name])
        return "no route"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Registry:
    """Provide an empty cache, no offline folder, and a registry that serves both jars."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PENSTOCK_JARS", raising=False)
    served = Registry()
    monkeypatch.setattr(jars, "_run_ivy", served)
    return served


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder named by PENSTOCK_JARS."""
    folder = tmp_path / "offline"
    folder.mkdir()
    monkeypatch.setenv("PENSTOCK_JARS", str(folder))
    return folder


def target() -> Path:
    return cache_folder() / "jars"


def test_missing_jars_are_fetched_once(registry: Registry) -> None:
    """The second call fetches nothing."""
    paths = resolve((ONE, TWO), target())
    assert [path.read_bytes() for path in paths] == [b"one", b"two"]
    assert resolve((ONE, TWO), target()) == paths
    assert registry.asked == [["one", "two"]]


def test_only_what_is_missing_or_damaged_is_fetched(registry: Registry) -> None:
    """A truncated or changed jar in the cache is fetched again; an intact one stays."""
    resolve((ONE, TWO), target())
    (target() / ONE.file_name).write_bytes(b"on")
    assert resolve((ONE, TWO), target())[0].read_bytes() == b"one"
    assert registry.asked[1:] == [["one"]]


def test_a_jar_that_is_not_the_pinned_one_is_refused(registry: Registry) -> None:
    """A file with another digest is neither used nor kept."""
    registry.content["two-2.0.jar"] = b"another"
    with pytest.raises(JarResolutionError, match=r"two-2\.0\.jar is not the pinned two 2\.0"):
        resolve((ONE, TWO), target())
    assert not (target() / TWO.file_name).exists()


def test_a_failure_names_the_jar_the_cause_and_the_ways_out(registry: Registry) -> None:
    """The message has all that the user needs."""
    del registry.content["two-2.0.jar"]
    with pytest.raises(JarResolutionError, match=r"two-2\.0\.jar \(no route\).*PENSTOCK_JARS") as caught:
        resolve((ONE, TWO), target())
    assert str(target()) in str(caught.value)
    assert "one-1.0.jar" not in str(caught.value)
    assert (caught.value.fault, caught.value.retryable) == ("external", True)


def test_a_failure_leaves_no_temporary_folder(registry: Registry) -> None:
    """The cache holds nothing half-made."""
    registry.content.clear()
    with pytest.raises(JarResolutionError):
        resolve((ONE,), target())
    assert sorted(path.name for path in cache_folder().iterdir()) == [".jars.lock", "jars"]


def test_the_offline_folder_comes_first(registry: Registry, offline: Path) -> None:
    """With every jar in PENSTOCK_JARS nothing is fetched."""
    (offline / ONE.file_name).write_bytes(b"one")
    (offline / TWO.file_name).write_bytes(b"two")
    assert [path.read_bytes() for path in resolve((ONE, TWO), target())] == [b"one", b"two"]
    assert registry.asked == []


def test_what_the_offline_folder_lacks_is_fetched(registry: Registry, offline: Path) -> None:
    """An offline folder may have some of the jars."""
    (offline / ONE.file_name).write_bytes(b"one")
    resolve((ONE, TWO), target())
    assert registry.asked == [["two"]]


def test_a_wrong_jar_in_the_offline_folder_is_refused(registry: Registry, offline: Path) -> None:
    """The error names the file in the user's folder."""
    (offline / ONE.file_name).write_bytes(b"old")
    with pytest.raises(JarResolutionError, match=re.escape(str(offline / ONE.file_name))):
        resolve((ONE,), target())


def test_an_offline_folder_that_is_not_there_is_an_error(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mistyped folder does not silently turn into a download."""
    monkeypatch.setenv("PENSTOCK_JARS", str(tmp_path / "mistyped"))
    with pytest.raises(JarResolutionError, match="mistyped, which is not a folder"):
        resolve((ONE,), target())
    assert registry.asked == []


def test_processes_that_start_together_fetch_once(registry: Registry) -> None:
    """The second waits for the first and finds its jars."""
    call_at_once([partial(resolve, (ONE, TWO), target())] * 5)
    assert len(registry.asked) == 1


def test_a_cache_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file in place of the folder gives a clear message."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheFolderError, match="PENSTOCK_CACHE"):
        cache_folder()


def test_every_pinned_jar_has_a_digest_and_a_name_of_its_own() -> None:
    """The committed table is complete."""
    sets = read_pinned_jars()
    assert {name: len(found) for name, found in sets.items()} == {"filesystem": 1, "broker": 45, "s3": 36}
    for found in sets.values():
        assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in found)
        assert len({jar.file_name for jar in found}) == len(found)


def test_ivy_is_asked_for_the_jars_and_nothing_behind_them() -> None:
    """Transitive dependencies are not fetched."""
    assert ivy_module((ONE, TWO)).count('transitive="false" conf="*->master"') == 2


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (":: loading\n\t\tServer access error at url x (java.net.UnknownHostException: r)\n", "UnknownHost"),
        ("\t:: org.one#one;1.0: not found\n", "org.one#one;1.0: not found"),
        ("", "no answer"),
    ],
)
def test_ivys_complaint_is_one_line(output: str, said: str) -> None:
    """Of Ivy's page of output one line is kept."""
    assert said in ivy_complaint(output)
    assert "\n" not in ivy_complaint(output)
