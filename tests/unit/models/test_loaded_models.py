"""Loaded models: a worker caches what its steps need, and any error is attributed to the model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from model_parts import Linear, weights

from penstock.errors import StateError
from penstock.models import loaded
from penstock.models.intact_contents import IntactContents
from penstock.models.library import is_content_intact
from penstock.models.library_places import FolderPlace
from penstock.models.loaded import LoadedModels
from penstock.models.spec import ModelSpec
from penstock.models.versions import ModelVersion

SPEC = ModelSpec(pa.schema([("amount", pa.float64())]), pa.schema([("score", pa.float64())]), Linear)


def version(folder: Path, factor: float) -> ModelVersion:
    """A version whose content is in the folder."""
    content = weights(factor)
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / sha256).write_bytes(content)
    return ModelVersion("SERVING", "safetensors", sha256, "")


def test_what_steps_need_is_kept_however_much_it_is(tmp_path: Path) -> None:
    """Of other versions it keeps the most recently used ones."""
    models = LoadedModels(max_more=2)
    needed = [version(tmp_path, factor) for factor in range(1, 41)]
    others = [version(tmp_path, factor) for factor in range(100, 105)]
    models.need("step", needed, SPEC)
    first = [models.get(FolderPlace(str(tmp_path)), one, SPEC) for one in [*needed, *others]]
    for path in tmp_path.iterdir():
        path.unlink()
    again = [models.get(FolderPlace(str(tmp_path)), one, SPEC) for one in [*needed, *others[-2:]]]
    assert again == [*first[:40], *first[-2:]]
    models.need("step", needed[:1], SPEC)
    with pytest.raises(StateError, match="cannot be read"):
        models.get(FolderPlace(str(tmp_path)), others[0], SPEC)
    with pytest.raises(StateError, match="cannot be read"):
        models.get(FolderPlace(str(tmp_path)), needed[1], SPEC)


def test_any_error_says_which_model_and_is_raised_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes errors that no library should raise, and those of a thread that preloads."""

    def fails(*_: object) -> None:
        raise RuntimeError("the library is confused")

    monkeypatch.setattr(loaded, "open_predictor", fails)
    models, one = LoadedModels(), version(tmp_path, 2.0)
    models.preload(FolderPlace(str(tmp_path)), one, SPEC)
    for _ in range(2):
        with pytest.raises(StateError, match=rf"{one.sha256}.*RuntimeError: the library is confused"):
            models.get(FolderPlace(str(tmp_path)), one, SPEC)


def test_a_content_is_hashed_once_in_a_process_until_it_changes(tmp_path: Path) -> None:
    """A cut at which a large version starts to serve does not wait for hashing."""
    sha256, read = version(tmp_path, 2.0).sha256, list[str]()
    place, path = FolderPlace(str(tmp_path)), tmp_path / sha256

    def hash_of() -> str:
        read.append(sha256)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    known = IntactContents()

    def is_intact() -> bool:
        return known.is_intact(place.identity(sha256), sha256, hash_of)

    assert [is_intact() for _ in range(3)] == [True] * 3
    assert len(read) == 1
    path.write_bytes(weights(3.0) + b" ")
    assert [is_intact() for _ in range(2)] == [False] * 2
    path.write_bytes(weights(2.0))
    assert is_intact()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        is_content_intact(place, sha256)
