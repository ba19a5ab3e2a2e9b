"""Stored savepoints: those of earlier versions are readable by this one."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kept_savepoint import AT, ATTIC, BARE, GROUPS, Mode, Place, Sensor, make, steps
from stored_jobs import job_of, plan_of, read_from

from penstock.checkpoints.evolution import check_changes, plan_changes
from penstock.control.commands import Command, Target
from penstock.control.register import Register
from penstock.engine.slot import Header, header_of
from penstock.jobs.restore import declared_state
from penstock.runtime.packed_rows import PackedRow
from penstock.savepoints.state_restore import Snapshot, states_of, write_seed
from penstock.snapshots.snapshot_reader import read_file, read_manifest, verify
from penstock.snapshots.stores import open_store
from penstock.state.history import Version
from penstock.state.key_index import key_values
from penstock.state.shared import SharedStates
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

KEPT = Path(__file__).parents[2] / "data" / "savepoints"

ROOMS: dict[Any, dict[str, Any]] = {
    "attic": {
        "flag": True,
        "count": -9223372036854775808,
        "level": 0.1,
        "label": "„quoted“, \n",
        "blob": b"\x00\x01",
        "seen": AT,
        "day": AT.date(),
        "sum": decimal.Decimal("-0.000000000000000001"),
        "mode": Mode.OFF,
        "room": ATTIC,
        "recent": [Sensor(1), Sensor(2, "K")],
        "doors": {Place(1, "b"): 0.5, Place(-1, ""): -0.5},
        "most": 7,
        "kept": Sensor(9, "x"),
        "price": [(None, 1.5), (AT, 2.5)],
    },
    "": {"count": 0},
    "☃": {"level": -0.0, "room": BARE},
}
PAIRS: dict[Any, dict[str, Any]] = {(1, "a"): {"count": 3}, (2, ""): {"count": 2}}
VERSIONS = sorted(path.name for path in KEPT.iterdir() if path.is_dir())


def plain(value: Any) -> Any:
    """Return the versions of a temporal state as pairs."""
    if isinstance(value, list) and value and type(value[0]).__name__ == "Version":
        return [(version.at, version.value) for version in value]
    return value


class Found:
    """The state in the slots of a seed."""

    def __init__(self, uri: str, folder: Path, parallelism: int) -> None:
        job = job_of(steps(), GROUPS)
        state = declared_state(job)
        snapshot = Snapshot.at(uri)
        changes = plan_changes(state.steps, states_of(snapshot.manifest).steps)
        check_changes(changes, uri)
        assert {change.outcome for change in changes} == {"kept"}
        self.keys = write_seed(snapshot, state, parallelism, changes, folder)
        self.rows: dict[str, dict[Any, dict[str, Any]]] = {}
        self.headers: dict[str, list[Header]] = {}
        self.held: dict[str, list[PackedRow]] = {}
        self.shared: list[SharedStates] = []
        plan = plan_of(job, parallelism)
        read = read_from(folder, state, parallelism)
        for node in plan.graph.steps():
            core = plan.core(node)
            rows = self.rows.setdefault(node.step, {})
            headers, held = self.headers.setdefault(node.step, []), self.held.setdefault(node.step, [])

            def look(
                number: int,  # as a reader of slots
                entries: dict[str, bytes],
                core: Any = core,
                rows: Any = rows,
                headers: Any = headers,
                held: Any = held,
            ) -> list[bytes]:
                tables = SlotTables(core.state_schema, MemoryEntries(entries))
                for table in tables.tables.values():
                    batch = table.all_rows()
                    for spec in core.specs:
                        values = spec.to_python(batch.column(spec.name))
                        for key, value in zip(key_values(batch.column(0)), values, strict=True):
                            if value is not None:
                                rows.setdefault(key, {})[spec.name] = plain(value)
                headers.append(header_of(tables))
                if "held/0" in entries:
                    held += msgspec.msgpack.decode(entries["held/0"], type=list[PackedRow])
                self.shared.append(SharedStates(core.shared, headers[-1].shared))
                return []

            read(node.id, look)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("parallelism", [1, 5])
def test_a_kept_savepoint_is_sound_and_gives_what_was_put_into_it(
    version: str, parallelism: int, tmp_path: Path
) -> None:
    """It has all kinds of state, per-step state, held data, positions, and the files of sources."""
    uri = str(KEPT / version)
    assert verify(uri).defects == ()
    found = Found(uri, tmp_path / "seed", parallelism)
    assert found.keys == {"step 0": 3, "step 1": 2}
    assert found.rows == {"step 0": ROOMS, "step 1": PAIRS}
    assert str(found.rows["step 0"]["☃"]["level"]) == "-0.0"
    for header in found.headers["step 0"]:
        assert (header.standing, header.paused, header.cache_generation) == (b"", False, 2)
        register = Register(header.register)
        assert register.mark_seen("first")
        assert not register.mark_seen("second")
        older = Command(id="third", kind="set", target=Target(step="rooms", all=True), version=2)
        refusal = register.admit(older, AT)
        assert refusal is not None
        assert "version 3 has been applied" in refusal.reason
    for header in found.headers["step 1"]:
        assert (header.standing, header.paused) == (b"standing", True)
    assert sum(header.held_bytes for header in found.headers["step 1"]) == 11
    assert sorted(found.held["step 1"], key=lambda row: row.first_offset) == [
        PackedRow("step 1", 1, 0, "p", 0, b"one"),
        PackedRow("step 1", 7, 0, "p", 1, b"seven"),
        PackedRow("step 1", 1, 0, "p", 2, b"two"),
    ]
    for shared in found.shared[: len(found.headers["step 0"])]:
        assert shared.settings == {"factor": [Version(None, 0.5), Version(AT, None)]}
        assert list(shared.mapping("rules").items()) == [("b", ATTIC), ("a", BARE)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kept_savepoint_says_what_it_is(version: str) -> None:
    """The commands show the description, and a job restores by it."""
    store = open_store(str(KEPT / version))
    manifest = read_manifest(store)
    assert f"v{manifest.version}" == version
    assert (manifest.kind, manifest.id, manifest.job) == ("savepoint", "sp-20260102-030405-abcdef", "drawn")
    assert (manifest.batch, manifest.created_at, manifest.key_groups) == (41, "2026-01-02T03:04:05+00:00", 8)
    assert manifest.positions == {"readings-0": {"position": 1}, "commands": {"position": 0}}
    (file,) = manifest.files
    assert (file.path, read_file(store, file).to_pybytes()) == ("sources/readings-0.files", b'"a.jsonl"\n')


def test_this_version_still_writes_what_it_keeps(tmp_path: Path) -> None:
    """Otherwise the format has changed, and needs a new version and a savepoint of its own here."""
    make(tmp_path / "sp")
    kept = read_manifest(open_store(str(KEPT / VERSIONS[-1])))
    made = read_manifest(open_store(str(tmp_path / "sp")))
    assert (made.version, made.digest) == (kept.version, kept.digest)
