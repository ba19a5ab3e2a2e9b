"""The library: the models that a job has fetched, beside its checkpoint, each under the hash of its content.

    models/SHA256                                    the content
    models/versions/STEP/MODEL/VERSION.json          what a version refers to
    models/findings/SHA256-DECLARATION.json          what its examination has found
    models/asked/STEP/MODEL/VERSION.json             a version that the driver is to fetch and examine
    models/failures/STEP/MODEL/VERSION.json          why it could not be fetched when that was tried last
    models/answers/STEP/GROUP/...                    what groups took in time, see `kept_answers`
    models/suspended/STEP/MODEL/...                  versions that hung, see `suspensions`

On a cluster that shares only a store, the driver has it in its folder, and tasks reach it by `library_places`.
Nothing in it changes once written, except requests and failures. So the driver and all workers may
write it at the same time, and a replay finds what the first attempt found. Only the driver removes contents, and only
those of versions that no retained micro-batch knows. What a version refers to and what was found on it stay, so a name
never means other content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from penstock.errors import ExternalSystemError
from penstock.models.intact_contents import intact_contents
from penstock.models.library_places import ASKED, FAILURES, FolderPlace, LibraryPlace, ReadPlace
from penstock.models.model_examination import Findings, examine, examine_apart, is_importable
from penstock.models.orders import LoadModel, RemoveModel, RetireModel, RollBackModel, ValidateModel
from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import ModelSpec
from penstock.objects.allowed import AllowedPlaces

__all__ = [
    "DEFAULT_MAX_MODEL_BYTES",
    "MODELS",
    "ModelLibrary",
    "Reference",
    "is_content_intact",
    "is_content_name",
    "is_examined_content",
    "read_failure",
]

MODELS: Final = "models"
"""The name of the library's folder in a checkpoint."""

DEFAULT_MAX_MODEL_BYTES: Final = 512 << 20
"""The default limit of the size of a model."""

_VERSIONS: Final = "versions"
_FINDINGS: Final = "findings"
_SHA256: Final = re.compile("[0-9a-f]{64}$")


class Reference(msgspec.Struct, frozen=True):
    """The reference of a version: the step that declares the model, and the order that loads it."""

    step: str
    order: LoadModel


@dataclass(frozen=True)
class ModelLibrary:
    """The library in a place. Models come from allowed places, up to a size.

    With `isolated` they are examined in processes of their own. With `beside` only the driver fetches and examines
    them, and a request for one that is not examined yet is answered at once.
    """

    place: LibraryPlace
    allowed: AllowedPlaces
    max_bytes: int = DEFAULT_MAX_MODEL_BYTES
    isolated: bool = True
    beside: bool = False

    def check(self, step: str, order: Any, spec: ModelSpec) -> None:
        """Prepare the library for an order, before slots see it. Raises the errors of `note` and `fetch`.

        A version is noted when it is loaded. When it is validated, it must have been examined beside the job, or is
        fetched and examined now. Where a version is to score, its content must be there.
        """
        if isinstance(order, LoadModel):
            self.note(step, order)
            return
        reference = self.reference(step, order.model, order.version)
        if isinstance(order, ValidateModel):
            found = self._found_beside(reference, spec) if self.beside else self.examine(reference, spec)
            if found.refusal:
                raise ModelRefusedError(found.refusal)
        elif not isinstance(order, RetireModel | RollBackModel | RemoveModel):
            if not any(_findings_on(self.place, reference.order.sha256)):
                raise ModelRefusedError(
                    f"version {order.version!r} of the model {order.model!r} is not validated; send validate-model "
                    "first"
                )
            self.check_intact(reference.order.sha256)

    def note(self, step: str, order: LoadModel) -> None:
        """Note the reference of a version, and ask the driver to examine it.

        Raises ModelRefusedError for a version that refers to something else already, and PlaceRefusedError for a place
        that is not allowed.
        """
        self.allowed.check_read(order.uri)
        reference = Reference(step, order)
        name = _version_name(_VERSIONS, step, order.model, order.version)
        known = msgspec.json.decode(
            self.place.keep_first(name, msgspec.json.encode(reference)), type=Reference
        )
        if known != reference:
            raise ModelRefusedError(
                f"version {order.version!r} of the model {order.model!r} was loaded before from another place or with "
                f"other content ({known.order.uri}, {known.order.sha256[:12]}...); give the new one another name"
            )
        self._ask(reference)

    def reference(self, step: str, model: str, version: str) -> Reference:
        """Return the reference of a version. Raises ModelRefusedError if it was never loaded."""
        found = self.place.find(_version_name(_VERSIONS, step, model, version))
        if found is None:
            raise ModelRefusedError(f"the model {model!r} has no version {version!r}; send load-model first")
        return msgspec.json.decode(found, type=Reference)

    def asked(self) -> list[Reference]:
        """Return the versions that wait for the driver to fetch and examine them, in the order of their names."""
        names = [name.partition("/")[2] for name in self.place.names(ASKED)]
        found = [self.place.find(f"{_VERSIONS}/{name}") for name in names]
        return [msgspec.json.decode(one, type=Reference) for one in found if one is not None]

    def answer(self, reference: Reference, failure: str = "") -> None:
        """Note that a version waits no more, since it was examined, or could not be fetched for a reason."""
        self.place.remove([_name_of(reference, ASKED)])
        if failure:
            self.place.put(_name_of(reference, FAILURES), msgspec.json.encode(failure))

    def _ask(self, reference: Reference) -> None:
        self.place.remove([_name_of(reference, FAILURES)])
        self.place.keep_first(_name_of(reference, ASKED), b"")

    def _found_beside(self, reference: Reference, spec: ModelSpec) -> Findings:
        """Return the driver's findings on a version. If there are none, ask for them, and raise ModelRefusedError."""
        found = self.findings(reference, spec)
        if found is not None:
            return found
        order = reference.order
        failure = _failure_in(self.place, reference.step, order.model, order.version)
        self._ask(reference)
        what = f"version {order.version!r} of the model {order.model!r}"
        if failure is None:
            raise ModelRefusedError(
                f"{what} is not examined yet. Send validate-model again when it is; penstock models change JOB "
                f"validate {order.model} {order.version} --wait waits for that"
            )
        raise ModelRefusedError(
            f"{what} could not be fetched: {failure}. The job now tries it again; then send validate-model again"
        )

    def fetch(self, reference: Reference) -> None:
        """Fetch the content of a version, unless it is there.

        Raises ModelRefusedError for other content than that of the hash, or when it cannot be read, and
        PlaceRefusedError.
        """
        order = reference.order
        if self._holds(order.sha256):
            return
        try:
            content = self.allowed.content(order.uri, self.max_bytes)
        except ExternalSystemError as e:
            # Only errors of the model's place: an error of the library's place is a failure of the job.
            raise ModelRefusedError(str(e)) from e
        if hashlib.sha256(content).hexdigest() != order.sha256:
            raise ModelRefusedError(
                f"the content of {order.uri!r} does not have the SHA-256 {order.sha256}: "
                "it was changed or is another file"
            )
        self.place.put(order.sha256, content)

    def contents(self) -> list[str]:
        """Return the hashes of all contents, sorted."""
        return [name for name in self.place.top_names() if is_content_name(name)]

    def remove_content(self, sha256: str) -> int:
        """Remove the content with a hash, if it is there; return its size in bytes."""
        try:
            with self.place.opened(sha256) as path:
                size = path.stat().st_size
        except FileNotFoundError:
            return 0
        self.place.remove([sha256])
        return size

    def _holds(self, sha256: str) -> bool:
        try:
            self.place.identity(sha256)
        except FileNotFoundError:
            return False
        return True

    def check_intact(self, sha256: str) -> None:
        """Raise ModelRefusedError unless the kept content is there and unchanged."""
        try:
            is_intact = is_content_intact(self.place, sha256)
        except FileNotFoundError:
            raise ModelRefusedError(
                f"the checkpoint has lost the content {sha256}; load the model again"
            ) from None
        if not is_intact:
            raise ModelRefusedError(
                f"the checkpoint's content {sha256} is damaged; restore it from a savepoint"
            )

    def examine(self, reference: Reference, spec: ModelSpec) -> Findings:
        """Fetch and examine a version, or return the findings of an earlier examination. Raises as `fetch` does.

        The findings of a model that is refused have the reason.
        """
        known = self.findings(reference, spec)
        if known is not None:
            return known
        self.fetch(reference)
        order = reference.order
        known = self.findings(reference, spec)
        if known is not None:
            # It was good before its content was removed.
            return known
        self.check_intact(order.sha256)
        with self.place.opened(order.sha256) as path:
            try:
                if self.isolated and is_importable(spec.weights):
                    found = examine_apart(path, order.format, spec, order.sample)
                else:
                    found = examine(path.read_bytes(), order.format, spec, order.sample)
            except ModelRefusedError as e:
                found = Findings(str(e))
        kept = self.place.keep_first(_findings_name(reference, spec), msgspec.json.encode(found))
        return msgspec.json.decode(kept, type=Findings)

    def findings(self, reference: Reference, spec: ModelSpec) -> Findings | None:
        """Return the findings of an examination; None without one, or if the content of a good version is missing.

        The content was removed if the version was, and is needed again once it has come back.
        """
        found = self.place.find(_findings_name(reference, spec))
        if found is None:
            return None
        known = msgspec.json.decode(found, type=Findings)
        return known if known.refusal or self._holds(reference.order.sha256) else None


def _findings_name(reference: Reference, spec: ModelSpec) -> str:
    """Return the name of the findings on a version, which depend on what the step declares."""
    kind = spec.weights
    declared = (
        reference.order.format,
        spec.inputs.serialize().to_pybytes(),
        spec.outputs.serialize().to_pybytes(),
        "" if kind is None else f"{kind.__module__}:{kind.__qualname__}",
        spec.trusted,
        spec.budget_ms,
        spec.allow_nan,
        reference.order.sample,
    )
    digest = hashlib.sha256(msgspec.json.encode(declared, order="deterministic")).hexdigest()[:16]
    return f"{_FINDINGS}/{reference.order.sha256}-{digest}.json"


def is_examined_content(folder: Path, sha256: str) -> bool:
    """Return whether the library in a folder has findings on a content, for any declaration, that still count."""
    found = list(_findings_on(FolderPlace(str(folder)), sha256))
    return any(one.refusal for one in found) or (bool(found) and (folder / sha256).exists())


def _findings_on(place: ReadPlace, sha256: str) -> Iterator[Findings]:
    for name in place.names(_FINDINGS):
        found = place.find(name) if name.startswith(f"{_FINDINGS}/{sha256}-") else None
        if found is not None:
            yield msgspec.json.decode(found, type=Findings)


def read_failure(folder: Path, step: str, model: str, version: str) -> str | None:
    """Return why the driver could not fetch a version for the library in a folder; None if it could, or never tried."""
    return _failure_in(FolderPlace(str(folder)), step, model, version)


def _failure_in(place: ReadPlace, step: str, model: str, version: str) -> str | None:
    failure = place.find(_version_name(FAILURES, step, model, version))
    return None if failure is None else msgspec.json.decode(failure, type=str)


def _name_of(reference: Reference, kind: str) -> str:
    order = reference.order
    return _version_name(kind, reference.step, order.model, order.version)


def _version_name(kind: str, step: str, model: str, version: str) -> str:
    return f"{kind}/{quote(step, safe='')}/{quote(model, safe='')}/{version}.json"


def is_content_name(name: str) -> bool:
    """Return whether a name in a library is that of the content of a model.

    >>> is_content_name("0" * 64), is_content_name("asked/score/fraud/1.json")
    (True, False)
    """
    return _SHA256.match(name) is not None


def is_content_intact(place: ReadPlace, sha256: str) -> bool:
    """Return whether the content with a hash is unchanged, which a process reads once. Raises FileNotFoundError."""

    def read() -> str:
        with place.opened(sha256) as path, path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return intact_contents.is_intact(place.identity(sha256), sha256, read)
