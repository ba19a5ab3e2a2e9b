"""Fetched content leaves a store once no micro-batch can read it again, whatever happens to the store and the
run.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from modelled_store import Fate, ModelledStore
from property_examples import examples

import penstock as ps
from penstock.errors import ExternalSystemError
from penstock.jobs.fetched_removal import FetchedRemoval
from penstock.objects.allowed import AllowedPlaces
from penstock.objects.object_stores import Place
from penstock.runtime.packed_rows import FETCHED
from penstock.sources import fetched as fetched_module
from penstock.sources.fetched import FetchedFiles, KeptInStore, kept_name
from penstock.testing.batch_runner import BatchRunner

RETAINED = 3
KEPT = KeptInStore(Place("s3", "bucket", "rooms/fetched"), {})


class Limits(ps.ProcessFunction):
    """Has a setting whose value may come from a file."""

    limit = ps.Setting(int, 0)

    def process_record(self, record: Any, ctx: ps.Context) -> None:
        pass


def reports(*names: str) -> list[Any]:
    return [SimpleNamespace(kind=FETCHED, name=name) for name in names]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_tasks_tell_each_content_that_they_have_read(parallelism: int, tmp_path: Path) -> None:
    """This covers applied, refused and repeated commands, and only commands that refer to content."""
    job = ps.Job("rooms", key_groups=8)
    job.data_stream("visits", schema="user INT").key_by("user").process(
        "limits", Limits(), output="n INT"
    ).sink_to("out")
    runner = BatchRunner(job, parallelism=parallelism)
    runner.fetched_folder = str(tmp_path / "kept")
    runner.allow_read = [str(tmp_path)]
    (tmp_path / "limits.json").write_text('{"limit": 3}')
    reload = {"kind": "reload-config", "target": {"step": "limits"}}
    sent = [
        {"id": "good", **reload, "payload": {"from": f"{tmp_path}/limits.json"}},
        {"id": "missing", **reload, "payload": {"from": f"{tmp_path}/none.json"}},
        {"id": "good", **reload, "payload": {"from": f"{tmp_path}/limits.json"}},
        {"id": "other", **reload, "target": {"step": "none"}, "payload": {"from": f"{tmp_path}/limits.json"}},
        {"id": "dump", "kind": "dump-state", "payload": {"to": "/not/allowed"}},
        {"id": "trace", "kind": "trace"},
    ]
    result = runner.run({"commands": [("c", list(map(msgspec.json.encode, sent)))], "visits": [("a", [])]})
    told = [name for kind, name, *_ in result.reports if kind == FETCHED]
    kept = {path.name for path in Path(runner.fetched_folder).iterdir()}
    assert len(kept) == 5
    assert sorted(told) == sorted(kept)


def test_a_content_goes_when_no_replay_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store is unreachable, a later micro-batch tries again."""
    fates: list[Fate] = []
    store = ModelledStore(lambda: fates.pop(0) if fates else "well")
    monkeypatch.setattr(fetched_module, "ObjectFolder", lambda *_: store)
    removal, read = FetchedRemoval(KEPT, RETAINED), dict[str, int]()
    for name in ("a", "b"):
        KEPT.keep_first(name, b"{}")
    removal.remove_unread(7, reports("a", "a"), read)
    for batch in range(8, 11):
        removal.remove_unread(batch, reports("b") if batch == 9 else [], read)
    assert set(store.objects) == {"a", "b"}
    fates.append("fails")
    removal.remove_unread(11, [], read)
    assert (set(store.objects), read) == ({"a", "b"}, {"a": 7, "b": 9})
    removal.remove_unread(12, [], read)
    assert (set(store.objects), read) == ({"b"}, {"b": 9})
    asked = store.requests
    removal.remove_unread(12, [], read)
    assert store.requests == asked


@examples(30)
@given(seed=st.integers(0, 2**32))
def test_random_lives_find_what_they_have_read(seed: int) -> None:
    """Runs repeat micro-batches, go back as far as allowed, and lose their notes; old runs commit late."""
    chance = random.Random(seed)
    store = ModelledStore(lambda: chance.choice(["well", "well", "fails but arrives", "fails"]))
    with mock.patch.object(fetched_module, "ObjectFolder", return_value=store):
        noted = _live(chance)
        for batch in range(1000, 1020):
            FetchedRemoval(KEPT, RETAINED).remove_unread(batch, [], noted)
    assert not set(noted) & set(store.objects)


def _live(chance: random.Random) -> dict[str, int]:
    """Let runs commit micro-batches; return the notes of the last one."""
    files = FetchedFiles(KEPT, 1000, AllowedPlaces.of((), ()))
    removal, clock = FetchedRemoval(KEPT, RETAINED), itertools.count()
    commands: dict[int, list[str]] = {}
    seen: dict[str, bytes] = {}
    noted: dict[str, int] = {}
    late: tuple[int, dict[str, int]] = (0, {})
    newest = -1
    batch = 0
    for _ in range(60):
        places = commands.setdefault(batch, [f"{batch}-{n}" for n in range(chance.randrange(3))])
        own = dict(noted)
        try:
            for place in places:
                found = files.find_once(place, "id", lambda: b"%d" % next(clock))
                assert seen.setdefault(place, found) == found, "a replay has decided otherwise"
            removal.remove_unread(batch, reports(*(kept_name(place, "id") for place in places)), own)
        except ExternalSystemError:
            continue
        if chance.random() < 0.1:
            late = batch, dict(own)
        elif chance.random() < 0.1:
            removal.remove_unread(late[0], [], late[1])
        if chance.random() < 0.2:
            # It ends before it has noted anything, and the next run goes back.
            batch = max(0, newest + 1 - chance.randrange(RETAINED + 1))
            continue
        noted, newest, batch = own, max(newest, batch), batch + 1
    return noted
