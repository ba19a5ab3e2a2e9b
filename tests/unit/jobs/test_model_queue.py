"""The model queue: each version is fetched and examined once, beside the job, and the run reports the result."""

from __future__ import annotations

import errno
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from doubled_model import CONTENT, MODEL

from penstock.jobs.model_queue import ModelQueue
from penstock.models.library import ModelLibrary
from penstock.models.library_places import FolderPlace
from penstock.models.orders import LoadModel, ValidateModel
from penstock.models.refusals import ModelRefusedError
from penstock.objects.allowed import AllowedPlaces, PlaceRefusedError


def library(folder: Path, max_bytes: int = 1 << 20, *, beside: bool = False) -> ModelLibrary:
    (folder / "incoming").mkdir(exist_ok=True)
    allowed = AllowedPlaces.of([str(folder / "incoming")], [])
    return ModelLibrary(
        FolderPlace(str(folder / "models")), allowed, max_bytes, isolated=False, beside=beside
    )


def noted(
    place: ModelLibrary, folder: Path, version: str, content: bytes = CONTENT, model: str = "fraud"
) -> None:
    """Note a command that loads a version with this content."""
    path = folder / "incoming" / version
    path.write_bytes(content)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    place.note("score", LoadModel(model, version, str(path), sha256, "safetensors"))


def work_off(queue: ModelQueue) -> None:
    deadline = time.monotonic() + 30
    while queue.step():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_version_is_examined_once_and_told(tmp_path: Path) -> None:
    """This holds over restarts; a model that the job no longer declares is left alone."""
    place, notes = library(tmp_path), list[str]()
    queue = ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3)
    noted(place, tmp_path, "1")
    noted(place, tmp_path, "1", model="churn")
    work_off(queue)
    noted(place, tmp_path, "2", b"other")
    work_off(queue)
    assert "Version '1' of the model 'fraud' of step 'score' was fetched and examined" in notes[0]
    # The same content is already there.
    assert "Version '2'" not in "".join(notes)
    work_off(ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3))
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("content", "max_bytes", "said"),
    [(b"other", 1 << 20, "does not have the SHA-256"), (CONTENT, 10, "larger than 10 bytes")],
)
def test_what_cannot_be_fetched_is_told_and_can_be_tried_again(
    content: bytes, max_bytes: int, said: str, tmp_path: Path
) -> None:
    """The validating command reports it and can be repeated; the job continues."""
    place, notes = library(tmp_path, max_bytes, beside=True), list[str]()
    noted(place, tmp_path, "1", content)
    queue = ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3)
    work_off(queue)
    assert said in notes[0]
    assert "validate-model tries it again" in notes[0]
    with pytest.raises(ModelRefusedError, match=f"could not be fetched: .*{said}.*now tries it again"):
        place.check("score", VALIDATE, MODEL.spec)
    (tmp_path / "incoming" / "1").write_bytes(CONTENT)
    work_off(queue)
    assert said in notes[1] if max_bytes == 10 else "was fetched and examined" in notes[1]


VALIDATE = ValidateModel("fraud", "1")


def test_a_command_that_comes_before_the_examination_is_answered_at_once(tmp_path: Path) -> None:
    """No micro-batch waits: the driver examines the version, and the command can be sent again."""
    place, notes = library(tmp_path, beside=True), list[str]()
    noted(place, tmp_path, "1")
    queue = ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3)
    for _ in range(2):
        with pytest.raises(
            ModelRefusedError, match=r"version '1' .* is not examined yet. Send validate-model again"
        ):
            place.check("score", VALIDATE, MODEL.spec)
    assert place.contents() == []
    work_off(queue)
    place.check("score", VALIDATE, MODEL.spec)
    # A removed version's content is deleted; loading the version again fetches it again.
    place.remove_content(hashlib.sha256(CONTENT).hexdigest())
    with pytest.raises(ModelRefusedError, match="is not examined yet"):
        place.check("score", VALIDATE, MODEL.spec)
    work_off(ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3))
    place.check("score", VALIDATE, MODEL.spec)
    assert len(notes) == 2


def test_a_full_disk_delays_an_examination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is retried later, and the run reports the delay."""
    place, notes = library(tmp_path), list[str]()
    noted(place, tmp_path, "1")
    queue = ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3)

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.models.library_places.write_atomically", is_full)
        work_off(queue)
    (note,) = notes
    assert "could not be kept in the checkpoint (No space left on device); this is tried again" in note
    assert len(place.asked()) == 1


def test_content_goes_once_no_retained_micro_batch_knows_a_version_of_it(tmp_path: Path) -> None:
    """A repeated micro-batch deletes the same content; a version that is loaded again gets its content again."""
    place, notes = library(tmp_path), list[str]()
    noted(place, tmp_path, "1")
    queue = ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3)
    work_off(queue)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    known = {"score": {"fraud": {"1": {"sha256": sha256}}}}
    gone: dict[str, Any] = {"score": {"fraud": {}}}
    unused: dict[str, int] = {}
    queue.remove_unused(0, {}, unused)
    assert unused == {}, "the step has not reported yet"
    for batch, versions in enumerate([gone, known, gone, gone, gone, gone]):
        queue.remove_unused(batch, versions, unused)
        queue.remove_unused(batch, versions, unused)
        assert place.contents() == [sha256]
    # The driver may die before or after the file is deleted, before the counts are saved.
    for saved in ({sha256: 2}, {sha256: 2}, {}):
        queue.remove_unused(6, gone, saved)
        assert (place.contents(), saved) == ([], {})
    work_off(queue)
    assert f"The content {sha256[:12]}... of a model ({len(CONTENT)} bytes) was removed" in notes[-1]
    work_off(ModelQueue(place, {"score": {"fraud": MODEL}}, notes.append, 3))
    assert place.contents() == [], "nobody has loaded it again"
    noted(place, tmp_path, "1")
    work_off(queue)
    assert place.contents() == [sha256]


def test_a_place_that_is_not_allowed_is_not_noted(tmp_path: Path) -> None:
    """It is never fetched."""
    place = library(tmp_path)
    with pytest.raises(PlaceRefusedError, match="may not read"):
        place.note("score", LoadModel("fraud", "1", "/etc/hostname", "0" * 64, "onnx"))
    assert place.asked() == []
