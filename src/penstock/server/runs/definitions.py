"""Definitions: the jobs that can be submitted, defined by files in allow-listed folders. Clients name them by id."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import msgspec
import pydantic
import yaml
from pydantic import AfterValidator, Field, StringConstraints

from penstock.base.durations import milliseconds
from penstock.errors import JobDefinitionError, PenstockError, UnknownIdError
from penstock.jobs.settings import RunSettings
from penstock.scaling.policy import policy_of
from penstock.server.lifecycle.restarts import DEFAULT_STRATEGY, parse_strategy, strategy_text
from penstock.server.resource import Resource

__all__ = [
    "Catalog",
    "Changes",
    "DefinitionProblem",
    "JobDefinition",
    "JobSettings",
    "Parallelism",
    "Text",
    "apply_changes",
]

_SUFFIXES: Final = (".yaml", ".yml")
_ID: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LARGEST_BYTES: Final = 1 << 20
_Model = TypeVar("_Model", bound=pydantic.BaseModel)


class JobSettings(pydantic.BaseModel):
    """The settings of a job, as a definition may contain them. The names are those of `penstock run`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    bindings: dict[str, str] = {}
    bounded: bool = False
    parallelism: int | None = None
    batch_interval: str = "0s"
    checkpoint_interval: str = "0s"
    master: str = "local[*]"
    strict: bool = False
    max_command_bytes: int = RunSettings.max_command_bytes
    max_model_mb: int = RunSettings.max_model_mb
    max_held_bytes: int = RunSettings.max_held_bytes
    state_memory_mb: int = RunSettings.state_memory_mb
    memory_mb: int | None = None
    receipts_mb: int = RunSettings.receipts_mb
    metrics_mb: int = RunSettings.metrics_mb
    log_mb: int = RunSettings.log_mb
    retained_batches: int = RunSettings.retained_batches
    allow_read: list[str] = []
    allow_write: list[str] = []
    lock_timeout: str = "60s"
    spark: dict[str, str] = {}
    from_savepoint: str | None = None
    from_dump: str | None = None
    keep_positions: bool | None = None
    allow_non_restored_state: bool = False
    new_outputs_from: int | None = None
    replan: int | None = None
    restart: str = strategy_text(DEFAULT_STRATEGY)
    scaling: dict[str, Any] | None = None

    @pydantic.field_validator("restart", mode="before")
    @classmethod
    def _strategy(cls, given: Any) -> Any:
        try:
            return strategy_text(parse_strategy(given)) if isinstance(given, str | dict) else given
        except JobDefinitionError as e:
            raise ValueError(str(e)) from None

    @pydantic.field_validator("scaling")
    @classmethod
    def _policy(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            if given is not None:
                policy_of(given)
        except JobDefinitionError as e:
            raise ValueError(str(e)) from None
        return given

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        # Check here all that can be checked before a run.
        try:
            settings = RunSettings(**self.run_settings(checkpoint=""))
        except JobDefinitionError as e:
            raise ValueError(str(e)) from None
        if settings.checkpoint_interval_ms and self.scaling is not None:
            raise ValueError(
                "A job in real time (checkpoint_interval) is rescaled by hand, since its load is not measured. "
                "Leave out scaling."
            )
        return self

    def run_settings(self, checkpoint: str) -> dict[str, Any]:
        """Return the fields of RunSettings for a run on a checkpoint."""
        otherwise = {"batch_interval", "checkpoint_interval", "lock_timeout", "spark", "restart", "scaling"}
        plain = self.model_dump(include=set(JobSettings.model_fields) - otherwise)
        return {
            **plain,
            "batch_interval_ms": milliseconds(self.batch_interval, "batch_interval"),
            "checkpoint_interval_ms": milliseconds(self.checkpoint_interval, "checkpoint_interval"),
            "lock_timeout_s": milliseconds(self.lock_timeout, "lock_timeout") / 1000,
            "spark_settings": dict(self.spark),
            "checkpoint": checkpoint,
        }


def _check_storable(text: str) -> str:
    """Return text that every store can keep: no control characters or lone surrogates. Raises ValueError for others."""
    if not text.isprintable():
        raise ValueError("must have only printable characters")
    return text


Text = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_check_storable)]
Parallelism = Annotated[int, Field(strict=True, ge=1, le=32768)]


class Changes(pydantic.BaseModel):
    """The settings that a client may change in a definition: none that name a file or address."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    parallelism: Parallelism | None = Field(
        default=None, description="The number of tasks that share each keyed step."
    )
    batch_interval: Text | None = Field(
        default=None, description="The minimum time between the starts of micro-batches, such as 500ms."
    )
    checkpoint_interval: Text | None = Field(
        default=None,
        description="Run in real time with checkpoints this far apart, such as 5s; 0s: micro-batches.",
    )
    restart: Text | None = Field(
        default=None, description="The restart strategy, such as fixed-delay:attempts=3,delay=10s."
    )
    keep_positions: pydantic.StrictBool | None = Field(
        default=None,
        description="Whether sources resume at the snapshot's positions. Default: for a savepoint, not for a dump.",
    )
    allow_non_restored_state: pydantic.StrictBool | None = Field(
        default=None, description="Whether to drop the state of steps that the job no longer has."
    )
    new_outputs_from: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None,
        description="Restart the outputs with this micro-batch, if sinks are ahead of the checkpoint. Applies once.",
    )
    replan: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None,
        description="Plan this unfinished micro-batch again, with the current ends of the sources. Applies once.",
    )
    scaling: Literal["off", "dry-run"] | None = Field(
        default=None,
        description="Ignore the scaling policy of the definition (`off`), or only report its decisions (`dry-run`).",
    )


class _File(JobSettings):
    """The contents of a file that defines a job: `job: FILE[:ATTR]`, or `entry_point: NAME`, and settings."""

    job: str | None = None
    entry_point: str | None = None
    name: str | None = None


class JobDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A job that can be submitted. `file` is FILE[:ATTR]; `folder` is the base of its relative paths."""

    id: str
    name: str
    folder: str
    file: str | None
    entry_point: str | None
    settings: dict[str, Any]


class DefinitionProblem(Resource):
    """A file that fails to define a job, and why."""

    path: str
    problem: str


class Catalog:
    """The definitions in some folders. They are read each time, so that a new file is available at once.

    A file is a definition if it ends in .yaml or .yml and has `job` or `entry_point`. The id of the definition is the
    path of the file in the folder, with dots, without the suffix. `built_in` adds definitions. No code of a job runs
    here.
    """

    def __init__(self, folders: Sequence[Path], built_in: Sequence[JobDefinition] = ()) -> None:
        self._built_in: Final = {definition.id: definition for definition in built_in}
        self._folders: Final = tuple(folder.expanduser().resolve() for folder in folders)
        for folder in self._folders:
            if not folder.is_dir():
                raise JobDefinitionError(
                    f"The folder {folder} with definitions of jobs does not exist. Create it, or correct --jobs."
                )

    def definitions(self) -> tuple[dict[str, JobDefinition], list[DefinitionProblem]]:
        """Return the definitions by id, and the problems of files that fail to define a job."""
        found: dict[str, JobDefinition] = dict(self._built_in)
        twice: set[str] = set()
        problems = []
        for root in self._folders:
            for path in _files(root):
                try:
                    definition = _read_definition(root, path)
                except PenstockError as e:
                    problems.append(DefinitionProblem(path=str(path), problem=str(e)))
                    continue
                if definition is None:
                    continue
                if definition.id in found:
                    twice.add(definition.id)
                    why = f"Another file has the same id {definition.id!r}. Rename one of them."
                    problems.append(DefinitionProblem(path=str(path), problem=why))
                found[definition.id] = definition
        return {name: value for name, value in sorted(found.items()) if name not in twice}, problems

    def definition(self, definition_id: str) -> JobDefinition:
        """Return the definition with an id. Raises UnknownIdError, with the reason if its file is broken."""
        found, problems = self.definitions()
        if definition_id not in found:
            broken = [problem for problem in problems if _id_of(problem.path, self._folders) == definition_id]
            why = (
                f" {broken[0].problem}"
                if broken
                else f" Available definitions: {', '.join(found) or 'none'}."
            )
            raise UnknownIdError(f"There is no definition {definition_id!r}.{why}")
        return found[definition_id]


def apply_changes(settings: Mapping[str, Any], changes: Changes) -> JobSettings:
    """Return the settings of a definition with the changes of a client. Raises JobDefinitionError if invalid."""
    given = changes.model_dump(include=set(Changes.model_fields), exclude_none=True)
    scaling = given.pop("scaling", None)
    if scaling == "off":
        given["scaling"] = None
    elif scaling == "dry-run":
        given["scaling"] = {**(settings.get("scaling") or {}), "dry_run": True}
    return _validate(JobSettings, {**settings, **given}, "The settings")


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        # Kubernetes mounts files of a ConfigMap as links into hidden folders, which would have them a second time.
        is_hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if path.suffix in _SUFFIXES and path.is_file() and not is_hidden:
            yield path


def _id_of(path: str, folders: Sequence[Path]) -> str | None:
    for root in folders:
        if Path(path).is_relative_to(root):
            return ".".join(Path(path).relative_to(root).with_suffix("").parts)
    return None


def _read_definition(root: Path, path: Path) -> JobDefinition | None:
    _check_inside(root, path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return None
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as e:
        raise JobDefinitionError(f"{path.name} cannot be read: {' '.join(str(e).split())}") from e
    if not isinstance(content, dict) or not {"job", "entry_point"} & content.keys():
        return None
    definition_id = _id_of(str(path), (root,)) or ""
    if not _ID.fullmatch(definition_id):
        raise JobDefinitionError(
            f"The path of {path.name} is not a valid id. Use letters, digits, - and _ in the names of "
            "folders and files."
        )
    found = _validate(_File, content, path.name)
    if (found.job is None) == (found.entry_point is None):
        raise JobDefinitionError(f"{path.name} must have either job or entry_point, not both or neither.")
    settings = found.model_dump(exclude={"job", "entry_point", "name"})
    return JobDefinition(
        id=definition_id,
        name=found.name or definition_id,
        folder=str(path.parent),
        file=None if found.job is None else _job_file(root, path, found.job),
        entry_point=found.entry_point,
        settings=settings,
    )


def _job_file(root: Path, path: Path, named: str) -> str:
    """Return the job file that a definition names. Raises JobDefinitionError unless it is in the folder `root`."""
    name, _, attribute = named.partition(":")
    file = path.parent / name
    _check_inside(root, file)
    if not file.is_file():
        raise JobDefinitionError(
            f"{path.name} names the job file {name}, which does not exist. Correct its path, which is relative to the "
            "definition's folder."
        )
    return f"{file.resolve()}{f':{attribute}' if attribute else ''}"


def _check_inside(root: Path, path: Path) -> None:
    if not path.resolve().is_relative_to(root):
        raise JobDefinitionError(
            f"{path.name} is outside the folder {root}, which is not allowed. Move it there, or start the server with "
            "its folder as another --jobs."
        )


def _validate(model: type[_Model], content: Mapping[str, Any], what: str) -> _Model:
    try:
        return model.model_validate(dict(content))
    except pydantic.ValidationError as e:
        # Leave out the input, which may contain a secret.
        errors = [
            _describe_error(model, error["type"], ".".join(map(str, error["loc"])), error["msg"])
            for error in e.errors(include_input=False, include_url=False)
        ]
        raise JobDefinitionError(f"{what}: {'; '.join(errors)}") from None


def _describe_error(model: type[pydantic.BaseModel], kind: str, field: str, message: str) -> str:
    """Describe an error of a field for the author of the file."""
    if kind != "extra_forbidden":
        return f"{field}: {message}".removeprefix(": ")
    near = difflib.get_close_matches(field, model.model_fields, 1)
    return f"{field} is not a field{f'; perhaps you mean {near[0]}' if near else ''}"
