"""The library of models of a job whose tasks share only the store: a shelf per run, beside the checkpoint's
log.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from doubled_model import CONTENT, MODEL
from modelled_store import ModelledStore

from penstock.checkpoints import stored_pieces
from penstock.checkpoints.ownership import Ownership
from penstock.checkpoints.stored_checkpoint import SHELVES, StoredCheckpoint, StoredOwnership
from penstock.checkpoints.stored_library import StoredLibrary
from penstock.errors import CheckpointError, ExternalSystemError, FencedError
from penstock.jobs.model_queue import ModelQueue
from penstock.models import library_places
from penstock.models.library import ModelLibrary, is_content_intact
from penstock.models.library_places import LibraryPlace, PublishedPlace
from penstock.models.loaded import LoadedModels
from penstock.models.orders import LoadModel, PromoteModel, ValidateModel
from penstock.models.refusals import ModelRefusedError
from penstock.models.suspensions import SlotSuspensions, Suspension, find_suspensions, suspend
from penstock.models.versions import ModelVersion
from penstock.objects.allowed import AllowedPlaces
from penstock.objects.object_stores import Place
from penstock.objects.store_client import FoundObject

SHA256 = hashlib.sha256(CONTENT).hexdigest()
VALIDATE, PROMOTE = ValidateModel("fraud", "1"), PromoteModel("fraud", "1")
VERSION = ModelVersion("SERVING", "safetensors", SHA256, "")
HUNG = Suspension("score", "fraud", "1", "p1", "it hung", 7, 0)


class Below(ModelledStore):
    """The objects below a prefix of a store, as a machine's tasks and commands access them."""

    def __init__(self, store: ModelledStore, place: Place) -> None:
        super().__init__(store._fate)
        self._store = store
        self.place = place
        self._root = f"{place.name.removeprefix('rooms').strip('/')}/".lstrip("/")

    @property
    def objects(self) -> Any:
        return _Prefixed(self._store.objects, self._root)

    @objects.setter
    def objects(self, _: object) -> None:
        """Those of the store count."""

    def read(self, name: str) -> bytes:
        found = self.objects.get(name)
        assert isinstance(found, bytes)
        return found

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self.read(name)[start : start + length]

    def copy(self, name: str, file: IO[bytes]) -> None:
        if name not in self.objects:
            raise FileNotFoundError(name)
        file.write(self.read(name))


class _Prefixed:
    """A prefix view of a dictionary."""

    def __init__(self, whole: dict[str, bytes], root: str) -> None:
        self._whole, self._root = whole, root

    def __call__(self) -> list[FoundObject]:
        return [FoundObject(name, 0, 0) for name in self]

    def __iter__(self) -> Any:
        return iter([name.removeprefix(self._root) for name in self._whole if name.startswith(self._root)])

    def __contains__(self, name: str) -> bool:
        return self._root + name in self._whole

    def __setitem__(self, name: str, content: bytes) -> None:
        self._whole[self._root + name] = content

    def get(self, name: str) -> bytes | None:
        return self._whole.get(self._root + name)

    def pop(self, name: str, default: Any) -> Any:
        return self._whole.pop(self._root + name, default)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ModelledStore:
    made = ModelledStore()
    for module in (library_places, stored_pieces):
        monkeypatch.setattr(module, "ObjectFolder", lambda place, *_: Below(made, place))
    return made


class Run:
    """A run with its own disk: its driver's and its tasks' access to the library."""

    def __init__(self, store: ModelledStore, disk: Path) -> None:
        self.disk = disk
        disk.mkdir(exist_ok=True)
        # The working folder's path is part of a checkpoint, and equal on all disks.
        self.stored = StoredCheckpoint(store, "s3://bucket/rooms", disk)
        self.stored._check_about = lambda: None  # type: ignore[method-assign]
        self.stored.open()
        StoredOwnership(self.stored, Ownership.of_next_run(disk)).begin()
        self.library = StoredLibrary(self.stored, {})
        self.library.take_over()
        self.stored.remove_left_behind()
        self.notes: list[str] = []

    @property
    def driver(self) -> PublishedPlace:
        return self.library.of_driver

    def tasks(self) -> LibraryPlace:
        """Return the library as seen by a task on another machine whose query starts now."""
        found: LibraryPlace = pickle.loads(pickle.dumps(self.library.of_tasks(apart=True)))
        return found

    def work_off(self) -> None:
        """Let the driver take in what tasks have left, and examine requested versions."""
        self.driver.take_in()
        queue = ModelQueue(self.opened(self.driver), {"score": {"fraud": MODEL}}, self.notes.append, 3)
        while queue.step():
            pass

    def opened(self, place: LibraryPlace) -> ModelLibrary:
        allowed = AllowedPlaces.of([str(self.disk.parent / "incoming")], [])
        return ModelLibrary(place, allowed, isolated=False, beside=True)

    def check(self, order: Any, place: LibraryPlace | None = None) -> None:
        """Check a version as the task does that reads a command."""
        self.opened(place or self.tasks()).check("score", order, MODEL.spec)


def load_order(folder: Path) -> LoadModel:
    incoming = folder / "incoming" / "1"
    incoming.parent.mkdir(exist_ok=True)
    incoming.write_bytes(CONTENT)
    return LoadModel("fraud", "1", str(incoming), SHA256, "safetensors")


def test_tasks_find_what_the_driver_has_fetched_and_the_driver_what_tasks_note(
    store: ModelledStore, tmp_path: Path
) -> None:
    """Within a query they use the shelf; a later query reads from the log."""
    run = Run(store, tmp_path / "disk")
    task = run.tasks()
    run.check(load_order(tmp_path), task)
    with pytest.raises(ModelRefusedError, match="is not examined yet"):
        run.check(VALIDATE, task)
    run.work_off()
    run.check(VALIDATE, task)
    run.check(PROMOTE, task)
    assert LoadedModels().get(task, VERSION, MODEL.spec) is not None
    run.stored.save()
    for name in [name for name in store.objects if name.startswith(f"{SHELVES}/")]:
        del store.objects[name]
    run.check(PROMOTE)
    assert LoadedModels().get(run.tasks(), VERSION, MODEL.spec) is not None


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "not saved"])
def test_a_run_goes_on_from_an_empty_disk(store: ModelledStore, tmp_path: Path, *, saves: bool) -> None:
    """It has everything that tasks of the previous run noted, logged or not; that run's shelf is then removed."""
    first = Run(store, tmp_path / "first")
    task = first.tasks()
    first.check(load_order(tmp_path), task)
    first.work_off()
    suspend(task, HUNG)
    if saves:
        first.driver.take_in()
        first.stored.save()
    second = Run(store, tmp_path / "second")
    (tmp_path / "incoming" / "1").unlink()
    second.check(VALIDATE)
    second.check(PROMOTE)
    assert LoadedModels().get(second.tasks(), VERSION, MODEL.spec) is not None
    assert SlotSuspensions(second.tasks(), "score", (0, 1)).at(7, "fraud") == [HUNG]
    assert not [name for name in store.objects if name.startswith(f"{SHELVES}/{first.stored.shelf_id}")]


def test_what_a_zombie_leaves_counts_for_nothing(store: ModelledStore, tmp_path: Path) -> None:
    """Nothing from its tasks or its driver counts, in this run or a later one."""
    first = Run(store, tmp_path / "first")
    task = first.tasks()
    first.check(load_order(tmp_path), task)
    first.work_off()
    second = Run(store, tmp_path / "second")
    suspend(task, HUNG)
    assert ModelLibrary(first.driver, AllowedPlaces.of([], [])).remove_content(SHA256) == len(CONTENT)
    first.stored.remove_left_behind()
    with pytest.raises(FencedError):
        first.stored.save()
    for run in (second, Run(store, tmp_path / "third")):
        run.driver.take_in()
        assert find_suspensions(run.driver) == find_suspensions(run.tasks()) == []
        run.check(VALIDATE)
        assert LoadedModels().get(run.tasks(), VERSION, MODEL.spec) is not None


def test_a_content_that_was_removed_is_fetched_anew(store: ModelledStore, tmp_path: Path) -> None:
    """This includes tasks whose query started while it was there."""
    run = Run(store, tmp_path / "disk")
    run.check(load_order(tmp_path))
    run.work_off()
    run.stored.save()
    task = run.tasks()
    run.check(VALIDATE, task)
    library = run.opened(run.driver)
    assert library.contents() == [SHA256]
    assert library.remove_content(SHA256) == len(CONTENT)
    for _ in range(2):
        with pytest.raises(ModelRefusedError, match="is not examined yet"):
            run.check(VALIDATE, task)
    run.work_off()
    run.check(VALIDATE, task)
    assert is_content_intact(task, SHA256)
    assert library.contents() == [SHA256]


def test_changed_bytes_on_a_shelf_are_damage(store: ModelledStore, tmp_path: Path) -> None:
    """Both the task that loads them and the run that takes them in detect it."""
    run = Run(store, tmp_path / "disk")
    run.check(load_order(tmp_path))
    run.work_off()
    name = f"{SHELVES}/{run.stored.shelf_id}/{SHA256}"
    store.objects[name] = store.objects[name][:-1] + b"!"
    with pytest.raises(ModelRefusedError, match="is damaged"):
        run.check(PROMOTE)
    with pytest.raises(CheckpointError, match=f"{SHA256} has changed bytes"):
        Run(store, tmp_path / "other")


def test_a_version_waits_while_the_store_is_away(store: ModelledStore, tmp_path: Path) -> None:
    """It is examined once the store is back, and no command is refused meanwhile."""
    run = Run(store, tmp_path / "disk")
    task = run.tasks()
    run.check(load_order(tmp_path), task)
    run.driver.take_in()
    store._fate = lambda: "fails"
    run.work_off()
    with pytest.raises(ExternalSystemError):
        run.check(VALIDATE, task)
    store._fate = lambda: "well"
    assert "could not be kept in the checkpoint" in "".join(run.notes)
    run.work_off()
    run.check(VALIDATE, task)
    assert msgspec.json.encode(run.driver.names("asked")) == b"[]"
