"""Loaded models: the models of its job's library that a worker keeps in memory."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.errors import ExternalSystemError, PenstockError, StateError
from penstock.models.intact_contents import intact_contents
from penstock.models.library_places import ReadPlace
from penstock.models.predictors import open_predictor
from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import ModelSpec, Predictor
from penstock.models.versions import ModelVersion

__all__ = ["LoadedModels", "loaded_models"]

_MAX_MORE: Final = 32
# Jobs in one process, such as those of tests, are many and short.
_MAX_OWNERS: Final = 256
_Name: TypeAlias = tuple[str, str, ModelSpec]


@dataclass
class _Loading:
    """A model that is being loaded, or is loaded."""

    done: threading.Event = field(default_factory=threading.Event)
    predictor: Predictor | None = None
    error: PenstockError | None = None


class LoadedModels:
    """The models that a worker has loaded: those that steps need, and some recently used ones.

    A model that a later cut may need is loaded in a thread beside the work, so that the cut does not wait.
    """

    def __init__(self, max_more: int = _MAX_MORE) -> None:
        self._max_more: Final = max_more
        self._needed: Final[OrderedDict[Hashable, frozenset[_Name]]] = OrderedDict()
        self._kept: Final[OrderedDict[_Name, _Loading]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def get(self, place: ReadPlace, version: ModelVersion, spec: ModelSpec) -> Predictor:
        """Return a model, and load it if necessary. Raises StateError when the checkpoint does not have it any more."""
        loading, is_new = self._find(version, spec)
        if is_new:
            self._load(loading, place, version, spec)
        loading.done.wait()
        if loading.error is not None:
            raise loading.error
        assert loading.predictor is not None
        return loading.predictor

    def need(self, owner: Hashable, versions: Iterable[ModelVersion], spec: ModelSpec) -> None:
        """Keep the versions that an owner, the model of a step, needs from now on, whatever other owners use."""
        names = frozenset(_name_of(version, spec) for version in versions)
        with self._lock:
            self._needed[owner] = names
            self._needed.move_to_end(owner)
            while len(self._needed) > _MAX_OWNERS:
                self._needed.popitem(last=False)

    def preload(self, place: ReadPlace, version: ModelVersion, spec: ModelSpec) -> None:
        """Begin to load a model. An error is raised by `get`."""
        loading, is_new = self._find(version, spec)
        if is_new:
            threading.Thread(
                target=self._load, args=(loading, place, version, spec), name="model", daemon=True
            ).start()

    def _find(self, version: ModelVersion, spec: ModelSpec) -> tuple[_Loading, bool]:
        name = _name_of(version, spec)
        with self._lock:
            found = self._kept.get(name)
            if found is not None and found.error is None:
                self._kept.move_to_end(name)
                return found, False
            loading = self._kept[name] = _Loading()
            self._drop(but=name)
            return loading, True

    def _drop(self, but: _Name) -> None:
        """Drop models beyond the limit that no owner needs, the least recently used first."""
        needed = frozenset[_Name]().union(*self._needed.values())
        others = [name for name in self._kept if name not in needed and name != but]
        for name in others[: max(0, len(others) - self._max_more)]:
            del self._kept[name]

    def _load(self, loading: _Loading, place: ReadPlace, version: ModelVersion, spec: ModelSpec) -> None:
        try:
            loading.predictor = open_predictor(_content(place, version), version.format, spec)
        except ModelRefusedError as e:
            loading.error = StateError(
                f"The model {version.sha256} in {place.shown} cannot be loaded any more: {e}. Start the job with "
                "the code and the libraries with which the model was validated."
            )
        except (StateError, ExternalSystemError) as e:
            loading.error = e
        except Exception as e:  # a library's own, or the class of the user
            loading.error = StateError(
                f"The model {version.sha256} in {place.shown} cannot be loaded: {type(e).__name__}: {e}. Start the job "
                "with the code and the libraries with which the model was validated."
            )
            loading.error.__cause__ = e
        finally:
            loading.done.set()


def _name_of(version: ModelVersion, spec: ModelSpec) -> _Name:
    return (version.sha256, version.format, spec)


def _content(place: ReadPlace, version: ModelVersion) -> bytes:
    shown, content = f"{place.shown}/{version.sha256}", b""

    def read() -> str:
        nonlocal content
        with place.opened(version.sha256) as path:
            content = path.read_bytes()
        return hashlib.sha256(content).hexdigest()

    try:
        # The command that lets it score checks this too, and a large file takes long.
        is_intact = intact_contents.is_intact(place.identity(version.sha256), version.sha256, read)
        if is_intact and not content:
            read()
    except OSError as e:
        raise StateError(
            f"The model {shown} cannot be read ({e.strerror or 'it is not there'}). Restore it from a savepoint of the "
            "job, then start again."
        ) from e
    if not is_intact:
        raise StateError(
            f"The model {shown} is damaged. Restore it from a savepoint of the job, then start again."
        )
    return content


loaded_models: Final = LoadedModels()
"""The models of this worker. They are found by their content, so jobs in one process may share them."""
