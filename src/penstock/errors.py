"""Errors: what happened, to what, and what to do next.

Every error that penstock raises on purpose derives from `PenstockError`. `fault` says whose turn it is
(the user, an external system, or penstock itself) and `retryable` whether the same call may succeed later. What an
error of the system has caused, a full disk, say, is nobody's mistake, whatever was tried when it came: `fault_of` and
`is_retryable` judge by the cause.
"""

from __future__ import annotations

import errno
import os
import re
from typing import ClassVar, Final, Literal

Fault = Literal["user", "external", "internal"]

# These say that a name or its rights are wrong, which somebody must change; all others may pass by themselves.
_OF_NAMES: Final = frozenset(
    {
        errno.EACCES,
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.EEXIST,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EXDEV,
    }
)
# As Python and Arrow put an error of the system, and as Java does, which leaves its number out.
_NUMBERED: Final = re.compile(r"\[[Ee]rrno (\d+)\]")
_OWN: Final = re.compile(r"penstock\.(?:\w+\.)*(\w+Error): (.*)")
_BY_TEXT: Final = {
    os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
}


class PenstockError(Exception):
    """Base of all errors raised by penstock."""

    fault: ClassVar[Fault] = "internal"
    retryable: ClassVar[bool] = False

    @property
    def exit_code(self) -> int:
        """The exit code of the command line for this error (see docs/cli.md)."""
        return {"internal": 1, "user": 2, "external": 3}[fault_of(self)]


def fault_of(error: BaseException) -> Fault:
    """Whose turn it is: that of a system beside penstock where one is the cause, else what the error's class says."""
    if isinstance(error, PenstockError):
        return "external" if error.fault == "user" and system_error_of(error) else error.fault
    return "internal"


def is_retryable(error: PenstockError) -> bool:
    """Whether the same call may succeed later."""
    return error.retryable or system_error_of(error) is not None


def system_error_of(error: BaseException | None) -> OSError | MemoryError | None:
    """The error of the system that has caused an error, and that may pass by itself: a full disk, say, or no memory.

    A name that is wrong, or rights that are missing, are none.
    """
    while error is not None:
        if isinstance(error, MemoryError) or (
            isinstance(error, OSError) and (error.errno or 0) > 0 and error.errno not in _OF_NAMES
        ):
            return error
        error = error.__cause__
    return None


def own_error_in(text: str, otherwise: type[PenstockError]) -> PenstockError | None:
    """The error of penstock's own that the traceback of another process ends with, with the error that caused it.

    One of a class that is not in this module is `otherwise`.
    """
    for name, message in reversed(_OWN.findall(text)):
        kind = globals().get(name, otherwise)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            error = kind(message)
            error.__cause__ = system_error_in(text)
            return error
    return None


def system_error_in(text: str) -> OSError | None:
    """The error of the system that the traceback of another process tells of."""
    for found in reversed(_NUMBERED.findall(text)):
        if int(found) not in _OF_NAMES:
            return OSError(int(found), os.strerror(int(found)))
    for told, number in _BY_TEXT.items():
        if told in text:
            return OSError(number, told)
    return None


class JobDefinitionError(PenstockError):
    """The job file describes something that cannot run."""

    fault = "user"


class SchemaError(JobDefinitionError):
    """A schema cannot be used, or two schemas do not fit each other."""


class BindingError(PenstockError):
    """A binding (`-D name=URI`) is missing, malformed or of the wrong kind."""

    fault = "user"


class PlaceMissingError(BindingError):
    """The topic, queue or stream that a binding names does not exist."""


class CheckpointError(PenstockError):
    """A checkpoint cannot be used: not writable, in use, damaged, or of another job."""

    fault = "user"


class CheckpointInUseError(CheckpointError):
    """Another run uses the checkpoint; it may have ended when it is tried again."""

    retryable = True


class CheckpointMissingError(CheckpointError):
    """The checkpoint of a job that has run is not there, such as on a disk that is not mounted; it may come back."""

    retryable = True


class CheckpointMovedError(CheckpointError):
    """The checkpoint is not where it was made, and Spark finds a part of it only there."""


class FencedError(CheckpointError):
    """Another run has taken over the checkpoint; this one has ended before it wrote more."""


class CommandRefusedError(PenstockError):
    """A command is refused before it is sent, since the job cannot take it, or is malformed."""

    fault = "user"


class StrictModeError(PenstockError):
    """A record could not be processed and the job runs with `--strict`."""

    fault = "user"


class ExternalSystemError(PenstockError):
    """A system beside penstock (a broker, a server) does not answer or refuses."""

    fault = "external"
    retryable = True


class RecordsLostError(ExternalSystemError):
    """A system beside penstock has deleted records that the job has not read yet."""


class StoreError(ExternalSystemError):
    """The store of the job manager cannot be reached, refuses, or is of another version."""


class JobFailedError(PenstockError):
    """The job stopped because something inside it failed."""


class StateError(PenstockError):
    """Stored state and declared state do not fit, or state was used wrongly."""

    fault = "user"


class StateMismatchError(StateError):
    """Stored state does not fit what the job declares; told before any data is read."""


class UnstorableValueError(StateError):
    """A state was set to a value that cannot be stored; the record that did it becomes a dead letter."""


class UnknownIdError(PenstockError):
    """There is nothing of an id: no job, definition, operation or savepoint."""

    fault = "user"


class JobStateError(PenstockError):
    """What is asked of a job does not go with what it is, or with what was asked before."""

    fault = "user"


class IdempotencyError(PenstockError):
    """A request has the idempotency key of another one."""

    fault = "user"


class JobChangedError(PenstockError):
    """A job was changed by somebody else since it was looked at; look again."""

    retryable = True


class LeadershipLostError(PenstockError):
    """Another manager leads, so this one has changed nothing."""


class SnapshotError(PenstockError):
    """A snapshot (a dump or a savepoint) cannot be written, read or used."""

    fault = "user"


class AlreadyThereError(SnapshotError):
    """A file of a snapshot exists already; files of snapshots are never written over."""


class NotThereError(SnapshotError):
    """A snapshot, or a file of one, does not exist."""


class DamagedSnapshotError(SnapshotError):
    """A file of a snapshot is not what was written."""
