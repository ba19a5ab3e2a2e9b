"""Object source: the objects below a prefix of an object store, as a log that can be replayed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from penstock.bindings.types import ObjectsBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.objects.batch_manifests import manifest_lines, manifest_names, read_manifest
from penstock.objects.object_folder import AT_WORK, IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Patience
from penstock.records.types import RecordType
from penstock.sources.base import SourceChunk, Split
from penstock.sources.file_source import IGNORED_ENDINGS, UNKNOWN_ROWS, FileLog, Keeping, LoggedFile
from penstock.sources.found_files import FoundFiles, Listing, no_fence

__all__ = ["ObjectLog"]

_LOOK_S: Final = 1.0
# The share of the time that full listings may take, and how often growing names are listed.
_LISTING_SHARE: Final = 0.05
_FULL_S: Final = 300.0
_FORGOTTEN_AFTER_S: Final = 24 * 3600


class ObjectLog(FileLog):
    """The objects below a prefix in the order in which they were found; position n is after the first n.

    Objects appear whole, so each is read unless a part of its name begins with `.` or `_`. By `manifests` the log
    consists of the manifests of a sink of penstock, and each stands for the objects that it names. A task copies an
    object to its disk, and reads it as a file.
    """

    def __init__(
        self,
        binding: ObjectsBinding,
        open_folder: Callable[[ObjectsBinding, Patience], ObjectFolder],
        log_path: str | Path,
        keeping: Keeping | None = None,
        fence: Callable[[], None] = no_fence,
    ) -> None:
        assert binding.reading is not None
        self._objects: Final = binding
        self._open_folder: Final = open_folder
        super().__init__(binding.reading, log_path, keeping, fence)

    def _open(self) -> None:
        super()._open()
        self._next_look_s = 0.0
        self._next_full_s = 0.0
        self._names: list[str] = []
        self._newest: dict[str, str] = {}

    def __getstate__(self) -> tuple[Any, ...]:
        return (*super().__getstate__(), self._objects, self._open_folder)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *files, objects, open_folder = state
        self.__dict__.update(_objects=objects, _open_folder=open_folder)
        super().__setstate__(tuple(files))

    def check(self) -> None:
        """Raise BindingError when the bucket cannot be listed, or the binding would misread its objects."""
        found = manifest_lines(self._open_folder(self._objects, IN_HASTE))
        if found and self._objects.names != "manifests":
            raise BindingError(
                f"Stream {self._objects.stream!r}: {self._objects.place} has manifests of a sink of penstock, which "
                "say which objects count. Add names=manifests to the URI, or name another prefix."
            )

    def _discover(self, found: FoundFiles, *, force: bool) -> None:
        now_s = time.monotonic()
        if not force and now_s < self._next_look_s:
            return
        found.take_over()
        folder = self._open_folder(self._objects, AT_WORK)
        if self._objects.names == "manifests":
            new = self._new_manifests(folder, found)
        else:
            new = self._new_objects(folder, found, force=force)
        if new:
            found.append(new)
        took_s = time.monotonic() - now_s
        self._next_look_s = now_s + max(_LOOK_S, took_s / _LISTING_SHARE)

    def _new_objects(self, folder: ObjectFolder, found: FoundFiles, *, force: bool) -> list[LoggedFile]:
        """Return the objects that are not known, in the order of their names."""
        begun_s = time.monotonic()
        is_full = force or not self._names or self._objects.names == "any" or begun_s >= self._next_full_s
        after = "" if is_full else self._names[-1]
        listed = {one.name: one for one in folder.objects(after) if _is_visible(one.name)}
        if is_full:
            self._next_full_s = begun_s + _FULL_S
            self._names = sorted(listed)
        else:
            self._names += sorted(listed)
        return [
            LoggedFile(self._objects.place, name, listed[name].size, listed[name].modified_ns)
            for name in sorted(found.unknown(self._objects.place, listed))
        ]

    def _new_manifests(self, folder: ObjectFolder, found: FoundFiles) -> list[LoggedFile]:
        """Return the manifests of each line after the newest known one, with the total size of their objects."""
        new: list[LoggedFile] = []
        for line in manifest_lines(folder):
            names = manifest_names(folder, line, self._newest.get(line, ""))
            if line not in self._newest:
                unknown = set(found.unknown(self._objects.place, names))
                known = [number for number, name in enumerate(names) if name not in unknown]
                self._newest[line] = names[known[-1]] if known else ""
                names = names[known[-1] + 1 :] if known else names
            for name in names:
                size = sum(file.bytes for file in read_manifest(folder, name).files)
                new.append(LoggedFile(self._objects.place, name, size, 0))
                self._newest[line] = name
        return new

    def _compact(self, found: FoundFiles, upto: int) -> None:
        # A later start asks for manifests after the newest of each line; the others can be forgotten.
        by_manifests = self._objects.names == "manifests"
        names = list(self._newest.values()) if by_manifests else self._names
        after_s = 0 if by_manifests else _FORGOTTEN_AFTER_S
        found.compact(upto, Listing(self._objects.place, names, time.time()), after_s)

    def _cut(self, files: Sequence[LoggedFile], parallelism: int) -> list[Split]:  # noqa: ARG002  # they are not cut
        of_rows = self._objects.format == "parquet"
        if self._objects.names != "manifests":
            return [
                Split(file.partition, file.name, 0, UNKNOWN_ROWS if of_rows else file.size) for file in files
            ]
        folder = self._open_folder(self._objects, AT_WORK)
        return [
            Split(one.name, one.name, 0, one.records if of_rows else one.bytes)
            for file in files
            for one in read_manifest(folder, file.name).files
        ]

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        with (
            self._as_external(split.path),
            tempfile.NamedTemporaryFile(
                prefix="penstock-", suffix="".join(PurePosixPath(split.path).suffixes[-2:])
            ) as file,
        ):
            try:
                self._open_folder(self._objects, AT_WORK).copy(split.path, file)
            except FileNotFoundError:
                if not self._may_miss():
                    raise
                reason = (
                    f"The object {split.path} disappeared after it was found, so its records are missing."
                )
                yield self._bad(split, file.name, reason, split.start, record_type)
                return
            file.flush()
            yield from self._read_file(split, file.name, record_type)

    def _may_miss(self) -> bool:
        return self._binding.missing == "skip"

    def _unreadable(self, path: str, error: OSError | MemoryError) -> ExternalSystemError:
        what = f"Stream {self._objects.stream!r}: the object {path} of {self._objects.place}"
        if isinstance(error, FileNotFoundError):
            return ExternalSystemError(
                f"{what} was found, but disappeared before it was read. Put it back, and start the job again; it "
                "continues where it was. To continue without missing objects, with a dead letter for each, add "
                "missing=skip to the URI."
            )
        return ExternalSystemError(
            f"{what} cannot be read ({error}). It is copied to the folder {tempfile.gettempdir()} first, where there "
            "must be room (TMPDIR of the workers); the job continues where it was when it is started again."
        )


def _is_visible(name: str) -> bool:
    parts = name.split("/")
    return not any(part.startswith((".", "_")) or not part for part in parts) and not name.endswith(
        IGNORED_ENDINGS
    )
