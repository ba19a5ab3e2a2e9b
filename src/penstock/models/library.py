"""The library: the models that a job has fetched, beside its checkpoint, each under the hash of its content.

    models/SHA256                                    the content
    models/versions/STEP/MODEL/VERSION.json          what a version refers to
    models/findings/SHA256-DECLARATION.json          what its examination has found
    models/asked/STEP/MODEL/VERSION.json             a version that the driver is to fetch and examine
    models/failures/STEP/MODEL/VERSION.json          why it could not be fetched when that was tried last
    models/answers/STEP/GROUP/...                    what groups took in time, see `kept_answers`
    models/suspended/STEP/MODEL/...                  versions that hung, see `suspensions`

Nothing in it changes once it is there, except what is asked and what has failed. So the driver and all workers may
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

from penstock.base.durable import write_atomically, write_once
from penstock.models.intact_contents import intact_contents
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
    "is_examined_content",
    "read_failure",
]

MODELS: Final = "models"
"""The name of the library's folder in a checkpoint."""

DEFAULT_MAX_MODEL_BYTES: Final = 512 << 20
"""The default limit of the size of a model."""

_VERSIONS: Final = "versions"
_FINDINGS: Final = "findings"
_ASKED: Final = "asked"
_FAILURES: Final = "failures"
_SHA256: Final = re.compile("[0-9a-f]{64}$")


class Reference(msgspec.Struct, frozen=True):
    """What a version refers to: the step that declares the model, and the order that loads it."""

    step: str
    order: LoadModel


@dataclass(frozen=True)
class ModelLibrary:
    """The library in a folder. Models come from allowed places, up to a size.

    With `isolated` they are examined in processes of their own. With `beside` only the driver fetches and examines
    them, and whoever asks for one that is not examined yet gets an answer at once.
    """

    folder: str
    allowed: AllowedPlaces
    max_bytes: int = DEFAULT_MAX_MODEL_BYTES
    isolated: bool = True
    beside: bool = False

    def check(self, step: str, order: Any, spec: ModelSpec) -> None:
        """Do what an order needs of the library, before slots see it. Raises as `note` and `fetch` do.

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
            if not any(_findings_on(Path(self.folder), reference.order.sha256)):
                raise ModelRefusedError(
                    f"version {order.version!r} of the model {order.model!r} is not validated; send validate-model "
                    "first"
                )
            self.check_intact(reference.order.sha256)

    def note(self, step: str, order: LoadModel) -> None:
        """Note what a version refers to, and ask the driver to examine it.

        Raises ModelRefusedError for a version that refers to something else already, and PlaceRefusedError for a place
        that is not allowed.
        """
        self.allowed.check_read(order.uri)
        reference = Reference(step, order)
        path = self._reference_path(step, order.model, order.version)
        write_once(path, msgspec.json.encode(reference))
        known = msgspec.json.decode(path.read_bytes(), type=Reference)
        if known != reference:
            raise ModelRefusedError(
                f"version {order.version!r} of the model {order.model!r} was loaded before from another place or with "
                f"other content ({known.order.uri}, {known.order.sha256[:12]}...); give the new one another name"
            )
        self._ask(reference)

    def reference(self, step: str, model: str, version: str) -> Reference:
        """Return what a version refers to. Raises ModelRefusedError if it was never loaded."""
        path = self._reference_path(step, model, version)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Reference)
        except FileNotFoundError:
            raise ModelRefusedError(
                f"the model {model!r} has no version {version!r}; send load-model first"
            ) from None

    def asked(self) -> list[Reference]:
        """Return the versions that wait for the driver to fetch and examine them, in the order of their names."""
        folder = Path(self.folder)
        names = sorted(path.relative_to(folder / _ASKED) for path in (folder / _ASKED).glob("*/*/[!.]*.json"))
        return [
            msgspec.json.decode((folder / _VERSIONS / name).read_bytes(), type=Reference) for name in names
        ]

    def answer(self, reference: Reference, failure: str = "") -> None:
        """Note that a version waits no more, since it was examined, or could not be fetched for a reason."""
        self._path_of(reference, _ASKED).unlink(missing_ok=True)
        if failure:
            write_atomically(self._path_of(reference, _FAILURES), msgspec.json.encode(failure))

    def _ask(self, reference: Reference) -> None:
        self._path_of(reference, _FAILURES).unlink(missing_ok=True)
        write_once(self._path_of(reference, _ASKED), b"")

    def _found_beside(self, reference: Reference, spec: ModelSpec) -> Findings:
        """Return what the driver has found on a version. If there is nothing, ask it, and raise ModelRefusedError."""
        found = self.findings(reference, spec)
        if found is not None:
            return found
        order = reference.order
        failure = read_failure(Path(self.folder), reference.step, order.model, order.version)
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

    def path(self, sha256: str) -> Path:
        """Return where the content with a hash is, once it was fetched."""
        return Path(self.folder) / sha256

    def fetch(self, reference: Reference) -> Path:
        """Fetch the content of a version, unless it is there; return its path.

        Raises ModelRefusedError for other content than that of the hash, PlaceRefusedError and ExternalSystemError when
        it cannot be read.
        """
        order, path = reference.order, self.path(reference.order.sha256)
        if path.exists():
            return path
        content = self.allowed.content(order.uri, self.max_bytes)
        if hashlib.sha256(content).hexdigest() != order.sha256:
            raise ModelRefusedError(
                f"the content of {order.uri!r} has not the SHA-256 {order.sha256}: it was changed or is another file"
            )
        write_atomically(path, content)
        return path

    def contents(self) -> list[str]:
        """Return the hashes of all contents, sorted."""
        try:
            return sorted(path.name for path in Path(self.folder).iterdir() if _SHA256.match(path.name))
        except FileNotFoundError:
            return []

    def remove_content(self, sha256: str) -> int:
        """Remove the content with a hash, if it is there; return its size in bytes."""
        path = self.path(sha256)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size

    def check_intact(self, sha256: str) -> None:
        """Raise ModelRefusedError unless the kept content is there and unchanged."""
        try:
            is_intact = intact_contents.is_intact(self.path(sha256), _hash_of)
        except FileNotFoundError:
            raise ModelRefusedError(
                f"the checkpoint has lost the content {sha256}; load the model again"
            ) from None
        if not is_intact:
            raise ModelRefusedError(
                f"the checkpoint's content {sha256} is damaged; restore it from a savepoint"
            )

    def examine(self, reference: Reference, spec: ModelSpec) -> Findings:
        """Fetch and examine a version, or return what an earlier examination has found. Raises as `fetch` does.

        The findings of a model that is refused have the reason.
        """
        kept = self._findings_path(reference, spec)
        known = self.findings(reference, spec)
        if known is not None:
            return known
        path, order = self.fetch(reference), reference.order
        known = self.findings(reference, spec)
        if known is not None:
            # It was good before its content was removed.
            return known
        self.check_intact(order.sha256)
        try:
            if self.isolated and is_importable(spec.weights):
                found = examine_apart(path, order.format, spec, order.sample)
            else:
                found = examine(path.read_bytes(), order.format, spec, order.sample)
        except ModelRefusedError as e:
            found = Findings(str(e))
        write_once(kept, msgspec.json.encode(found))
        return msgspec.json.decode(kept.read_bytes(), type=Findings)

    def findings(self, reference: Reference, spec: ModelSpec) -> Findings | None:
        """Return what an examination has found; None without one, or if the content of a good version is not there.

        The content was removed if the version was, and is needed again once it has come back.
        """
        try:
            known = msgspec.json.decode(self._findings_path(reference, spec).read_bytes(), type=Findings)
        except FileNotFoundError:
            return None
        return known if known.refusal or self.path(reference.order.sha256).exists() else None

    def _reference_path(self, step: str, model: str, version: str) -> Path:
        return _version_path(Path(self.folder), _VERSIONS, step, model, version)

    def _path_of(self, reference: Reference, kind: str) -> Path:
        order = reference.order
        return _version_path(Path(self.folder), kind, reference.step, order.model, order.version)

    def _findings_path(self, reference: Reference, spec: ModelSpec) -> Path:
        """Return where the findings on a version are, which depend on what the step declares."""
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
        return Path(self.folder) / _FINDINGS / f"{reference.order.sha256}-{digest}.json"


def is_examined_content(folder: Path, sha256: str) -> bool:
    """Return whether the library in a folder has findings on a content, for any declaration, that still count."""
    found = list(_findings_on(folder, sha256))
    return any(one.refusal for one in found) or (bool(found) and (folder / sha256).exists())


def _findings_on(folder: Path, sha256: str) -> Iterator[Findings]:
    for path in (folder / _FINDINGS).glob(f"{sha256}-*.json"):
        yield msgspec.json.decode(path.read_bytes(), type=Findings)


def read_failure(folder: Path, step: str, model: str, version: str) -> str | None:
    """Return why the driver could not fetch a version for the library in a folder; None if it could, or never tried."""
    try:
        failure = _version_path(folder, _FAILURES, step, model, version).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(failure, type=str)


def _version_path(folder: Path, kind: str, step: str, model: str, version: str) -> Path:
    return folder / kind / quote(step, safe="") / quote(model, safe="") / f"{version}.json"


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
