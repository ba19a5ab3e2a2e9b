"""The checkpoint folder: the job that it belongs to, and the values that are fixed for its life."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.base.durable import make_folder, write_atomically
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.errors import CheckpointError, CheckpointMissingError
from penstock.streams.own_streams import STARTS

__all__ = ["Checkpoint", "Lineage", "Origin", "Outputs"]

OriginKind: TypeAlias = Literal["empty", "savepoint", "dump", "rescale"]

# A job writes these files only when it has a lineage.
_LATER_FILES: Final = ("control.json", "streams.json", "counts.json", "begun.json")


class Origin(msgspec.Struct, frozen=True):
    """The origin of a job: nothing, or a snapshot of a micro-batch, with its kind, id and place, and the reason."""

    kind: OriginKind = "empty"
    id: str = ""
    uri: str = ""
    batch: int = -1
    reason: str = ""

    @property
    def has_state(self) -> bool:
        """Whether the job started with state."""
        return self.kind != "empty"


class Outputs(msgspec.Struct, frozen=True):
    """New outputs that a user has requested: their id in the sinks, and their first micro-batch."""

    id: str
    first_batch: int


class Lineage(msgspec.Struct, frozen=True):
    """The values that are fixed for the life of a checkpoint.

    `id` identifies the checkpoint for its whole life, also in sinks, unless a user has requested new `outputs`.
    `streams` is the order of the sources in Spark's offset log, and `parallelism` the number of state partitions.
    `origin` says what the job started from. `positions` are the start positions of its streams, if not those of
    bindings. `first_batch` is the number of the micro-batch that Spark calls 0.
    """

    id: str
    job: str
    key_groups: int
    parallelism: int
    streams: tuple[str, ...]
    origin: Origin = Origin()
    positions: dict[str, Any] = {}
    first_batch: int = 0
    outputs: Outputs | None = None

    @property
    def output_id(self) -> str:
        """The id of the job's present outputs in the sinks."""
        return self.id if self.outputs is None else self.outputs.id


@dataclass(frozen=True)
class Checkpoint:
    """A job's checkpoint on a local or shared folder; with `stored` it has its home on an object store."""

    folder: Path
    stored: StoredCheckpoint | None = None

    @classmethod
    def open(cls, path: str) -> Checkpoint:
        """Open the checkpoint at a path; create the folder if needed. Raises CheckpointError if it is not writable."""
        folder = Path(path).expanduser().absolute()
        try:
            make_folder(folder)
            probe = folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as e:
            raise CheckpointError(
                f"The checkpoint folder {folder} cannot be written ({e.strerror}). Choose another with --checkpoint."
            ) from e
        return cls(folder)

    def check_there(self) -> None:
        """Raise CheckpointMissingError unless the folder holds anything of the checkpoint, whole or damaged.

        For a job that has run with the checkpoint: with an empty or missing folder it would begin from nothing. Creates
        nothing.
        """
        try:
            # On a share the look-up may fail in other ways than with a missing file.
            found = os.listdir(self.folder)  # noqa: PTH208  # it raises at once
        except FileNotFoundError:
            how = "the folder does not exist"
        except OSError as e:
            how = f"the folder cannot be read ({e.strerror})"
        else:
            if not {self.lineage_file.name, *_LATER_FILES}.isdisjoint(found):
                return
            how = "the folder has nothing of it"
        raise CheckpointMissingError(
            f"The job has run with the checkpoint {self.folder}, and {how}: it would begin from nothing. Mount the "
            "disk or share that holds the checkpoint, or put it back from a copy."
        )

    @property
    def shown(self) -> str:
        """Its place for messages: the folder, or the URI of its home."""
        return str(self.folder) if self.stored is None else self.stored.shown

    @property
    def lineage_file(self) -> Path:
        """The file that says which job the checkpoint belongs to."""
        return self.folder / "lineage.json"

    def lineage(self, wanted: Lineage) -> Lineage:
        """Return the lineage of the checkpoint; a new checkpoint gets the lineage `wanted`.

        Raises CheckpointError when the checkpoint belongs to another job or has other fixed values.
        """
        found = self.stored_lineage()
        if found is None:
            self.begin(wanted)
            return wanted
        self._check_fits(found, wanted)
        return found

    def begin(self, lineage: Lineage) -> None:
        """Write the lineage of the checkpoint, durably."""
        write_atomically(self.lineage_file, msgspec.json.encode(lineage))

    def stored_lineage(self) -> Lineage | None:
        """Return the lineage of the checkpoint, None for a new one.

        Raises CheckpointError when it cannot be read, or is missing although other files exist.
        """
        remedy = "Restore the file from a copy of the checkpoint, or use a new checkpoint."
        try:
            return msgspec.json.decode(self.lineage_file.read_bytes(), type=Lineage)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as e:
            raise CheckpointError(
                f"The checkpoint is damaged: {self.lineage_file} cannot be read ({e}). {remedy}"
            ) from e
        if any((self.folder / name).exists() for name in _LATER_FILES):
            raise CheckpointError(f"The checkpoint is damaged: {self.lineage_file} is missing. {remedy}")
        if any((self.folder / name).exists() for name in ("offsets", "commits", "metadata", "state")):
            raise CheckpointError(
                f"The checkpoint {self.folder} was not made by penstock. Choose an empty folder with --checkpoint."
            )
        return None

    def known_lineage(self) -> Lineage:
        """Return the lineage of a checkpoint that a job has started with. Raises CheckpointError for a new one."""
        found = self.stored_lineage()
        if found is None:
            raise self._not_begun()
        return found

    @property
    def is_begun(self) -> bool:
        """Whether a job has started with it; its contents may be damaged."""
        return self.lineage_file.exists()

    def check_begun(self) -> None:
        """Raise CheckpointError unless a job has started with it; its contents may be damaged."""
        if not self.is_begun:
            raise self._not_begun()

    def _not_begun(self, missing: str = "") -> CheckpointError:
        return CheckpointError(
            f"{self.folder} is not a checkpoint of a job that was started{missing}. Name the folder that penstock run "
            "--checkpoint was given."
        )

    @property
    def spark_folder(self) -> Path:
        """The folder of Spark's part of the checkpoint."""
        return self.folder

    @property
    def spark_location(self) -> str:
        """The same for Spark, which takes a path alone to be on the default file system of Hadoop's settings.

        It is not a URI: Hadoop takes the characters of a path literally.
        """
        return f"file://{self.spark_folder}"

    @property
    def seed(self) -> Path:
        """The folder with the state for the first micro-batch, if the job started with any."""
        return self.folder / "seed"

    @property
    def inputs(self) -> Path:
        """The folder with records from Python that no micro-batch has read yet, by stream."""
        return self.folder / "inputs"

    def _check_fits(self, found: Lineage, wanted: Lineage) -> None:
        advice = "Use the values of the checkpoint, or a new checkpoint."
        if found.job != wanted.job:
            raise CheckpointError(
                f"The checkpoint {self.folder} belongs to the job {found.job!r}, not {wanted.job!r}."
            )
        if found.key_groups != wanted.key_groups:
            raise CheckpointError(
                f"The checkpoint {self.folder} has {found.key_groups} key groups, the job {wanted.key_groups}. {advice}"
            )
        if (STARTS in found.streams) != (STARTS in wanted.streams):
            before, now = ("with", "none") if STARTS in found.streams else ("without", "some")
            raise CheckpointError(
                f"The checkpoint {self.folder} is of a job {before} timers or watermarks, and the job has {now}. Take "
                "a savepoint of the checkpoint with penstock savepoint, and start the job from it with a new "
                "checkpoint and --from-savepoint."
            )
        if found.streams != wanted.streams:
            raise CheckpointError(
                f"The checkpoint {self.folder} reads the streams {', '.join(found.streams)}, the job "
                f"{', '.join(wanted.streams)}. {advice}"
            )

    def load(self, name: str, kind: Any) -> Any:
        """Read a JSON file that the job writes at each start, as a type. Raises CheckpointError."""
        path = self.folder / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_begun(f" ({name} does not exist)") from None
        except (OSError, msgspec.MsgspecError) as e:
            raise CheckpointError(f"{path} cannot be read: {e}. Start the job again to rewrite it.") from e

    def save(self, name: str, content: Any) -> None:
        """Write a JSON file of the checkpoint durably, whole or not at all."""
        write_atomically(self.folder / name, msgspec.json.encode(content))
