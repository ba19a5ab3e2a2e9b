"""Pages of keys: each key once, in a fixed order, for any number of slots."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples
from random_jobs import drawn_jobs
from rooms_job import committed_rooms, snapshot
from stored_jobs import JobWith, StepWith, StoredJob, captured

import penstock as ps
from penstock.checkpoints import committed_state
from penstock.checkpoints.checkpoint import Checkpoint, Lineage, Origin
from penstock.checkpoints.described_state import STATE_FILE
from penstock.checkpoints.evolution import plan_changes
from penstock.errors import CheckpointError, UnknownIdError
from penstock.queries.job_tables import query_job
from penstock.savepoints.captured_tables import table_name
from penstock.savepoints.state_pages import KeyPage, KeysWanted, StoredKey, key_page
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.snapshots.manifest import TableEntry


def stored(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
    key_type: tuple[Any, ...] = (str,),
    rows: dict[Any, dict[str, Any]] | None = None,
) -> tuple[Checkpoint, StoredJob]:
    """Return a checkpoint after a micro-batch in which a step stored 50 keys."""
    states = {"count": ps.ValueState(int), "names": ps.ListState(str)}
    held = rows or {f"room {n}": {"count": n, "names": ["a"] * (n % 3)} for n in range(50)}
    job = StoredJob(JobWith([StepWith(states, key_type, [held, {}])], 8), slots)
    job.read_as_committed(monkeypatch)
    return committed(folder, 8, slots), job


def committed(folder: Path, key_groups: int, slots: int) -> Checkpoint:
    """Return a checkpoint after its first micro-batch."""
    checkpoint = Checkpoint.open(str(folder))
    checkpoint.begin(Lineage("abc", "drawn", key_groups, slots, ("readings-0", "commands")))
    (folder / "commits").mkdir()
    (folder / "commits" / "0").touch()
    return checkpoint


def pages(
    checkpoint: Checkpoint, job: StoredJob, most: int, contains: str = "", step: str = "step 0"
) -> list[KeyPage]:
    found, after = [], None
    while True:
        wanted = KeysWanted(step=step, after=after, limit=most, contains=contains)
        found.append(key_page(checkpoint, job.state, wanted))
        after = found[-1].next
        if after is None:
            return found


@pytest.mark.parametrize("most", [1, 7, 50, 1000])
def test_pages_are_all_keys(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes once, in the order of key groups, the same from one slot and from several."""
    orders = []
    for slots in (1, 3):
        checkpoint, job = stored(tmp_path / str(slots), monkeypatch, slots)
        found = [one for page in pages(checkpoint, job, most) for one in page.items]
        orders.append([one.key for one in found])
        assert sorted(orders[-1]) == sorted(f"room {n}" for n in range(50))
        assert [one.key_group for one in found] == sorted(one.key_group for one in found)
        for one in found:
            number = int(one.key.split()[1])
            names = ["a"] * (number % 3) or None
            assert one.values == {"count": number, "names": names}
    assert orders[0] == orders[1]


def test_keys_are_found_by_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is a part of their JSON; the next page continues after the last match."""
    checkpoint, job = stored(tmp_path, monkeypatch, 2)
    found = pages(checkpoint, job, 3, contains="room 4")
    assert [len(page.items) for page in found] == [3, 3, 3, 2]
    assert {one.key for page in found for one in page.items} == {"room 4", *(f"room 4{n}" for n in range(10))}
    assert pages(checkpoint, job, 3, contains="attic")[0] == KeyPage(batch=0, items=(), next=None)


def test_one_key_is_found_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of several fields is a JSON list; a missing key gives no result."""
    rows = {(1, "b"): {"count": 5}, (2, "c"): {"count": 6}}
    checkpoint, job = stored(tmp_path, monkeypatch, 3, (int, str), rows)

    def one(text: str) -> tuple[StoredKey, ...]:
        return key_page(checkpoint, job.state, KeysWanted(step="step 0", key=text)).items

    (found,) = one('[1, "b"]')
    assert (found.key, found.values) == ([1, "b"], {"count": 5, "names": None})
    assert one('[3, "b"]') == ()
    with pytest.raises(CheckpointError, match="is not a key of the step"):
        one("attic")


def test_what_is_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is shown instead, so that an answer is bounded."""
    rows = {"small": {"count": 1}, "large": {"names": ["x" * 1000]}}
    checkpoint, job = stored(tmp_path, monkeypatch, 2, rows=rows)
    wanted = KeysWanted(step="step 0", max_bytes=500)
    found = {one.key: one for one in key_page(checkpoint, job.state, wanted).items}
    assert found["small"].values == {"count": 1, "names": None}
    assert found["large"].values is None
    assert found["large"].bytes > 1000


@pytest.mark.parametrize(
    "after", ["", "1", "1.x", "x." + "0" * 32, "-1." + "0" * 32, "9" * 20 + "." + "0" * 32]
)
def test_a_wrong_place_is_told(after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown step is reported as well."""
    checkpoint, job = stored(tmp_path, monkeypatch, 1)
    with pytest.raises(CheckpointError, match="not the `next` of a page"):
        key_page(checkpoint, job.state, KeysWanted(step="step 0", after=after))
    with pytest.raises(UnknownIdError, match="its steps are step 0"):
        key_page(checkpoint, job.state, KeysWanted(step="other"))


@given(drawn=drawn_jobs(), parallelism=st.integers(1, 10), most=st.integers(1, 9))
@settings(examples(30), suppress_health_check=list(HealthCheck))
def test_pages_have_what_a_dump_has(drawn: JobWith, parallelism: int, most: int) -> None:
    """All kinds of state and keys are tested; each key is also found alone, in its slot."""
    job = StoredJob(drawn, min(parallelism, drawn.key_groups))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        folder = Path(name)
        dump = captured(folder / "dump", job.state, "jsonl", job.read)
        checkpoint = committed(folder / "cp", drawn.key_groups, min(parallelism, drawn.key_groups))
        read = job.read_as_committed(monkeypatch)
        for step, described in job.state.steps.items():
            found = [one for page in pages(checkpoint, job, most, step=step) for one in page.items]
            for state in described.states:
                if not state.startswith("__"):
                    shown = {as_json(one.key): (one.values or {})[state] for one in found}
                    shown = {key: value for key, value in shown.items() if value is not None}
                    assert shown == dumped(folder / "dump", dump.table(table_name(step, state)))
            for one in found[:3]:
                read.clear()
                wanted = KeysWanted(step=step, key=as_json(one.key))
                assert key_page(checkpoint, job.state, wanted).items == (one,)
                assert len(read) == 1


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def dumped(dump: Path, table: TableEntry) -> dict[str, Any]:
    """Return the values in a table of a dump by key, in the form in which pages show them."""
    found = {}
    for file in table.files:
        for line in (dump / file.path).read_bytes().split(b"\n")[:-1]:
            row = msgspec.json.decode(line)
            key = row["key"]
            found[as_json(list(key.values()) if isinstance(key, dict) else key)] = row["value"]
    return found


def test_a_page_reads_only_the_slots_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads from the slot of its place on, until it is full."""
    checkpoint, job = stored(tmp_path, monkeypatch, 4)
    read = job.read_as_committed(monkeypatch)
    wanted = KeysWanted(step="step 0", limit=3)
    first = key_page(checkpoint, job.state, wanted)
    assert read == [0]
    read.clear()
    key_page(checkpoint, job.state, msgspec.structs.replace(wanted, after=first.next))
    key_page(checkpoint, job.state, msgspec.structs.replace(wanted, after="6." + "0" * 32))
    assert read == [0, 3]
    read.clear()
    assert key_page(checkpoint, job.state, msgspec.structs.replace(wanted, after="8." + "0" * 32)).items == ()
    assert read == []


class Entries(dict[str, bytes]):
    """Entries of a slot that a weak reference can follow."""


def test_one_slot_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and queries drop the entries of a slot before they read the next one."""
    checkpoint, job = stored(tmp_path, monkeypatch, 4)
    checkpoint.save(STATE_FILE, job.state)
    freed: list[bool] = []

    def stored_slots(folder: Path, batch: int, node: str, files: Any, numbers: list[int]) -> Any:
        last = None
        for number in numbers:
            if last is not None:
                freed.append(last() is None)
            entries = Entries(job.stored[node, number])
            last = weakref.ref(entries)
            yield number, entries
            del entries

    monkeypatch.setattr(committed_state, "stored_slots", stored_slots)
    assert len(key_page(checkpoint, job.state, KeysWanted(step="step 0")).items) == 50
    assert query_job(str(tmp_path), 'select count(*) from state."step 0"').rows.num_rows == 1
    assert freed == [True] * 6


def test_a_micro_batch_that_is_removed_meanwhile_gives_way_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names it; a micro-batch that was asked for is an error instead."""
    checkpoint, job = stored(tmp_path, monkeypatch, 2)
    job.read_as_committed(monkeypatch)
    stored_slots = committed_state.stored_slots

    def removed(folder: Path, batch: int, *more: Any) -> Any:
        if batch == 0:
            (folder / "commits" / "1").touch()
            raise CheckpointError("The checkpoint is damaged: a file is missing.")
        return stored_slots(folder, batch, *more)

    monkeypatch.setattr(committed_state, "stored_slots", removed)
    found = key_page(checkpoint, job.state, KeysWanted(step="step 0"))
    assert (found.batch, len(found.items)) == (1, 50)
    with pytest.raises(CheckpointError, match="a file is missing"):
        key_page(checkpoint, job.state, KeysWanted(step="step 0", batch=0))


def test_slots_that_have_not_run_have_what_the_job_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds before the first micro-batch, and after it for a slot that has stored nothing."""
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    expected = key_page(rooms.checkpoint, rooms.stored.state, KeysWanted(step="step 0")).items
    snapshot(tmp_path / "dump", "jsonl")
    state = rooms.stored.state
    changes = plan_changes(state.steps, state.steps)
    write_seed(Snapshot.at(str(tmp_path / "dump")), state, 2, changes, rooms.checkpoint.seed)
    lineage = rooms.checkpoint.known_lineage()
    begun = msgspec.structs.replace(lineage, origin=Origin("dump"), first_batch=3)
    rooms.checkpoint.begin(begun)
    (rooms.folder / "commits").rename(rooms.folder / "before")
    first = key_page(rooms.checkpoint, state, KeysWanted(step="step 0"))
    assert (first.batch, first.items) == (2, expected)
    rooms.commit(2)
    rooms.stored.stored["step/step 0", 0].clear()
    later = key_page(rooms.checkpoint, state, KeysWanted(step="step 0"))
    assert (later.batch, later.items) == (5, expected)
