"""The store of a server on an object store: one order of transactions for all servers, whatever the store does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from empty_stores import connect_to_empty
from modelled_store import Fate, ModelledStore
from store_cases import LEASE_MS, Opens, StoreCases, asks, become, new_job

from penstock.errors import ExternalSystemError, JobDefinitionError, StoreError
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.store import row_view, view_folder
from penstock.server.store.change_log import BehindError, Change, ChangeLog
from penstock.server.store.logged_transactions import LoggedTransactions
from penstock.server.store.store import Store

EVERY = 4
SHOWN = "s3://bucket/server"
REVISION = "0001"
PATIENCE_S = 30.0


class Seconds:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def log_of(objects: ModelledStore) -> ChangeLog:
    return ChangeLog(objects, SHOWN, EVERY)


def server(objects: ModelledStore, clock: Callable[[], float] = lambda: 0.0) -> Store:
    """A server with tables of its own."""
    return Store(LoggedTransactions(log_of(objects), clock))


def change(number: int, name: str = "one", **more: Any) -> Change:
    event = {"id": number, "at_ms": 1, "job_id": None, "who": "ann", "what": name, "detail": "{}"}
    values = {"number": number, "id": f"{name}-{number}", "writer": "here", "revision": REVISION}
    return Change(**{**values, "rows": {"events": [event]}, "gone": {}, **more})


def said(store: Store) -> list[str]:
    return [event.what for event in store.events()]


@pytest.fixture(autouse=True)
def tmp_of_test(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are made once, but for tests of that, in the folder of a test."""
    if "migrat" not in request.node.name:
        monkeypatch.setattr(row_view, "connect", connect_to_empty)
    monkeypatch.setattr(view_folder.tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def objects() -> ModelledStore:
    return ModelledStore()


class TestLogged(StoreCases):
    """All cases, with each connection a server of its own."""

    @pytest.fixture
    def opens(self, objects: ModelledStore) -> Opens:
        return lambda: LoggedTransactions(log_of(objects))

    def note_later_version(self, opens: Opens) -> None:
        opened = opens()
        assert isinstance(opened, LoggedTransactions)
        number = max([0, *(change.number for change in opened._log.newer(0))])
        assert opened._log.add(change(number + 1, revision="9999"))
        opened.close()

    def test_a_lease_ends_by_the_clock_of_whoever_waits(self, objects: ModelledStore) -> None:
        """For as long as it has seen it unchanged; the leader's clock does not matter."""
        clock = Seconds()
        first, second = server(objects), server(objects, clock)
        assert first.lead("a", LEASE_MS) == 1
        assert second.lead("b", LEASE_MS) is None
        clock.s += LEASE_MS / 1000 - 0.001
        assert first.lead("a", LEASE_MS) == 1
        assert second.lead("b", LEASE_MS) is None
        clock.s += LEASE_MS / 1000 - 0.001
        assert second.lead("b", LEASE_MS) is None
        clock.s += 0.001
        assert second.lead("b", LEASE_MS) == 2
        assert first.lead("a", LEASE_MS) is None

    def test_who_waits_writes_nothing(self, objects: ModelledStore) -> None:
        first, second = server(objects), server(objects)
        assert first.lead("a", LEASE_MS) == 1
        before = dict(objects.objects)
        assert second.lead("b", LEASE_MS) is None
        assert [event.what for event in second.events()] == []
        assert objects.objects == before


def test_each_server_sees_at_once_what_any_has_written(objects: ModelledStore) -> None:
    first, second = server(objects), server(objects)
    first.submit(new_job(), asks())
    assert [job.id for job in second.jobs()] == ["job-one"]
    leader = second.lead("b", LEASE_MS)
    assert leader is not None
    become(second, leader, "job-one", JobStatus.STARTING, JobStatus.CANCELED)
    assert first.job("job-one").status is JobStatus.CANCELED
    first.delete("job-one", "ann", checkpoint=False)
    assert (second.jobs(), second.runs("job-one")) == ([], [])
    assert first.events() == second.events() == server(objects).events()


def test_a_server_that_starts_reads_the_newest_snapshot_and_what_comes_after(objects: ModelledStore) -> None:
    """What no reader needs is removed, but for a while one that is a little behind finds its changes."""
    first, behind = server(objects), server(objects)
    for number in range(3 * EVERY + 2):
        first.add_event(None, f"{number}")
    changes = sorted(name for name in objects.objects if name.startswith("changes/"))
    assert changes[0] == f"changes/{2 * EVERY + 1:010}"
    assert [name for name in objects.objects if name.startswith("snapshots/")] == [
        f"snapshots/{3 * EVERY:010}"
    ]
    expected = [f"{number}" for number in range(3 * EVERY + 2)]
    assert said(server(objects)) == expected
    assert said(behind) == expected
    behind.add_event(None, "more")
    assert said(first) == [*expected, "more"]


@pytest.mark.parametrize("reads", [True, False])
def test_a_server_that_slept_does_not_go_on_from_where_it_was(objects: ModelledStore, reads: bool) -> None:
    """The change that it would read or add next was removed: it could create that once more."""
    first, zombie = server(objects), server(objects)
    zombie.add_event(None, "before")
    for number in range(3 * EVERY):
        first.add_event(None, f"{number}")
    assert f"changes/{2:010}" not in objects.objects
    if reads:
        assert said(zombie) == said(first)
    zombie.add_event(None, "behind")
    assert said(zombie)[-1] == "behind"
    assert said(zombie) == said(first) == said(server(objects))


def test_a_server_that_stands_still_within_a_transaction_is_told_when_that_is_lost(
    objects: ModelledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its change is created where one was removed, and counts nowhere: also not for another that slept as long."""
    first, zombie, other = (server(objects) for _ in range(3))
    first.add_event(None, "before")
    assert said(zombie) == said(other) == ["before"]
    create = objects.create
    slept: list[bool] = []

    def sleeps(name: str, content: bytes) -> bool:
        if not slept:
            slept.append(True)
            for number in range(3 * EVERY):
                first.add_event(None, f"{number}")
        return create(name, content)

    monkeypatch.setattr(objects, "create", sleeps)
    with pytest.raises(StoreError, match="stood still while others continued"):
        zombie.add_event(None, "lost")
    assert f"changes/{2:010}" in objects.objects
    for store in (other, zombie, first, server(objects)):
        assert "lost" not in said(store)
        assert len(said(store)) == 3 * EVERY + 1
    # The next snapshot takes it away.
    for number in range(EVERY):
        first.add_event(None, f"{number}")
    assert f"changes/{2:010}" not in objects.objects


def test_a_change_whose_answer_was_lost_is_not_made_twice_if_it_was_removed_meanwhile(
    objects: ModelledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands still between its request and the look for what has become of it."""
    first, zombie = server(objects), server(objects)
    first.add_event(None, "before")
    create = objects.create
    slept: list[bool] = []

    def loses_the_answer(name: str, content: bytes) -> bool:
        created = create(name, content)
        if slept:
            return created
        slept.append(True)
        for number in range(3 * EVERY):
            first.add_event(None, f"{number}")
        return False

    monkeypatch.setattr(objects, "create", loses_the_answer)
    with pytest.raises(StoreError, match="stood still while others continued"):
        zombie.add_event(None, "made")
    assert f"changes/{2:010}" not in objects.objects
    for store in (zombie, first, server(objects)):
        assert said(store) == ["before", "made", *map(str, range(3 * EVERY))]


def test_a_server_that_starts_while_changes_are_removed_begins_anew(
    objects: ModelledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has listed is gone, and one that slept has created a part of it again."""
    first = server(objects)
    first.add_event(None, "before")
    find = objects.find
    slept: list[bool] = []

    def sleeps(name: str) -> bytes | None:
        if name.startswith("changes/") and not slept:
            slept.append(True)
            for number in range(3 * EVERY):
                first.add_event(None, f"{number}")
            assert objects.create(name, msgspec.json.encode(change(1, "lost")))
        return find(name)

    monkeypatch.setattr(objects, "find", sleeps)
    assert said(server(objects)) == said(first)
    assert slept


@pytest.mark.parametrize("late", [True, False])
def test_a_change_whose_answer_is_lost_counts_once(late: bool) -> None:
    """Or is overtaken by another one, while it is under way."""
    fates: list[Fate] = []
    objects = ModelledStore(lambda: fates.pop() if fates else "well")
    store, other = server(objects), server(objects)
    fates[:] = ["answer lost"]
    store.add_event(None, "lost")
    fates[:] = ["fails and arrives late" if late else "fails but arrives"]
    with pytest.raises(StoreError, match=r"s3://bucket/server cannot be used.*Check what was done"):
        store.add_event(None, "unknown")
    other.add_event(None, "other")
    objects.arrive()
    store.add_event(None, "next")
    unknown = [] if late else ["unknown"]
    assert said(store) == said(other) == ["lost", *unknown, "other", "next"]


def test_while_the_object_store_is_away_each_call_says_so(
    objects: ModelledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then all continues."""
    store = server(objects)
    store.submit(new_job(), asks())

    def away(*_: object) -> bytes:
        raise ExternalSystemError("s3://bucket: no answer.")

    with monkeypatch.context() as patch:
        patch.setattr(objects, "find", away)
        for call in (store.jobs, lambda: store.add_event(None, "x"), lambda: server(objects)):
            with pytest.raises(StoreError, match=r"cannot be used: s3://bucket: no answer"):
                call()
    assert [job.id for job in store.jobs()] == ["job-one"]


@pytest.mark.parametrize("uri", ["s3://", "s3://user@bucket/server", "s3://bucket", "s3://bucket/../server"])
def test_other_uris_are_refused(uri: str) -> None:
    """Without what may be a secret."""
    with pytest.raises(
        JobDefinitionError, match=r"^s3://\.\.\. cannot be the store .*Give s3://BUCKET/PREFIX"
    ):
        Store.open(uri)


class Gate:
    """Objects whose reader waits with what it has found, the first time."""

    def __init__(self, objects: ModelledStore) -> None:
        self._objects = objects
        self.finds = 0
        self.failing = False
        self.reached, self.opens = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def find(self, name: str) -> bytes | None:
        found = self._objects.find(name)
        if name.startswith("changes/"):
            self.finds += 1
            if self.finds == 1:
                self.reached.set()
                assert self.opens.wait(PATIENCE_S)
            elif self.failing:
                raise ExternalSystemError("no answer")
        return found


class CountingLock:
    """A lock that knows how many have asked for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.asked.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("failing", [False, True])
def test_reads_that_wait_share_a_look_that_began_after_they_asked(
    objects: ModelledStore, failing: bool
) -> None:
    """Not the one they wait for, which may have missed what they must see; and its failure is theirs."""
    gate = Gate(objects)
    transactions = LoggedTransactions(log_of(gate))  # type: ignore[arg-type]
    lock = transactions._lock = CountingLock()  # type: ignore[assignment,misc]
    store, other = Store(transactions), server(objects)
    found: dict[int, object] = {}

    def read(number: int) -> None:
        try:
            found[number] = said(store)
        except StoreError:
            found[number] = "failed"

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    threads[0].start()
    assert gate.reached.wait(PATIENCE_S)
    other.add_event(None, "told")
    for thread in threads[1:]:
        thread.start()
    for _ in threads:
        assert lock.asked.acquire(timeout=PATIENCE_S)
    gate.failing = failing
    gate.opens.set()
    for thread in threads:
        thread.join()
    # The first one's look ended before any other began, and saw nothing; it may read behind the others.
    assert found.pop(0) in ([[]] if failing else [[], ["told"]])
    assert list(found.values()) == ["failed" if failing else ["told"]] * 3
    assert gate.finds == (2 if failing else 3)


def test_an_object_store_that_replaces_objects_is_refused(objects: ModelledStore) -> None:
    objects.replaces = True
    with pytest.raises(StoreError, match=r"replaces objects that are to be created only once"):
        server(objects)


def test_a_prefix_with_something_else_is_refused(objects: ModelledStore) -> None:
    objects.objects["about.json"] = b'{"checkpoint":1}'
    with pytest.raises(StoreError, match=r"s3://bucket/server has something else"):
        server(objects)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda objects: objects.pop(f"changes/{2:010}"), "changes after 0: missing"),
        (lambda objects: objects.update({f"changes/{2:010}": b"{}"}), "changes/0000000002: not what"),
    ],
)
def test_a_damaged_log_is_refused(objects: ModelledStore, harm: Callable[..., object], message: str) -> None:
    store = server(objects)
    for number in range(3):
        store.add_event(None, f"{number}")
    harm(objects.objects)
    with pytest.raises(StoreError, match=f"is damaged: {message}"):
        server(objects)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"passwords": [{"id": 1}]}, "has a table 'passwords'"),
        ({"events": [{"id": 1, "x'; DROP TABLE jobs; --": 1}]}, "rows of events with other columns"),
    ],
)
def test_rows_that_this_version_does_not_know_are_refused(
    objects: ModelledStore, rows: dict[str, list[dict[str, int]]], message: str
) -> None:
    """Names in the log are never a part of a statement."""
    store = server(objects)
    assert log_of(objects).add(change(1, rows=rows))
    with pytest.raises(StoreError, match=message):
        store.jobs()


def test_changes_are_text_that_people_can_read(objects: ModelledStore) -> None:
    store = server(objects)
    store.add_event(None, "told", {"n": 1})
    told = msgspec.json.decode(objects.objects[f"changes/{1:010}"])
    assert told["rows"]["events"][0] | {"at_ms": 0} == {
        "id": 1,
        "at_ms": 0,
        "job_id": None,
        "who": "manager",
        "what": "told",
        "detail": '{"n": 1}',
    }


def test_a_failed_compaction_is_made_up_for(
    objects: ModelledStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails no transaction; the next one marks what both remove."""
    store = server(objects)

    def fails(*_: object) -> bool:
        raise ExternalSystemError("no answer")

    for number in range(3 * EVERY - 1):
        store.add_event(None, f"{number}")
    with monkeypatch.context() as patch:
        patch.setattr(objects, "holds", lambda name: fails() if name.startswith("snapshots") else False)
        store.add_event(None, "compacts")
    assert "Old changes of the store stay for now" in caplog.text
    for number in range(EVERY):
        store.add_event(None, f"{number}")
    marks = sorted(name for name in objects.objects if name.startswith("removed/"))
    assert marks == [f"removed/{number * EVERY:010}" for number in (1, 2, 3)]
    with pytest.raises(BehindError):
        log_of(objects).newer(2)
    assert said(server(objects)) == said(store)


def test_tables_of_killed_servers_are_removed(objects: ModelledStore, tmp_path: Path) -> None:
    """Those of live ones stay, and those that somebody else may have made."""
    store = server(objects)
    (mine,) = tmp_path.glob("penstock-store-*")
    left, strange = tmp_path / "penstock-store-left", tmp_path / "penstock-store-strange"
    for folder in (left, strange):
        folder.mkdir()
    (left / "in-use.lock").touch()
    other = server(objects)
    assert mine.exists()
    assert not left.exists()
    assert strange.exists()
    assert {oct(path.stat().st_mode & 0o777) for path in mine.glob("*.db*")} == {"0o600"}
    other.close()
    store.close()
    assert list(tmp_path.glob("penstock-store-*")) == [strange]
