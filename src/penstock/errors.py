"""Errors: messages say what happened, to what, and what to do next.

Every error that penstock raises on purpose derives from `PenstockError`. `fault` says who must act (the user, an
external system, or penstock itself), and `retryable` whether the same call may succeed later. An operating system
error, such as a full disk, is nobody's mistake, whatever operation it interrupted, so `fault_of` and `is_retryable`
also consider the cause of an error.
"""

from __future__ import annotations

import errno
import os
import re
from typing import ClassVar, Final, Literal

Fault = Literal["user", "external", "internal"]

# These errors mean that a name or its permissions are wrong, which a user must fix. All others may be temporary.
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
# The form of system errors in Python and Arrow. Java leaves the number out, so those are found by their text.
_NUMBERED: Final = re.compile(r"\[[Ee]rrno (\d+)\]")
_OWN: Final = re.compile(r"penstock\.(?:\w+\.)*(\w+Error): (.*)")
_BY_TEXT: Final = {
    os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
}


class PenstockError(Exception):
    """The base class of all errors that penstock raises."""

    fault: ClassVar[Fault] = "internal"
    retryable: ClassVar[bool] = False

    @property
    def exit_code(self) -> int:
        """The exit code of the command line for this error; see docs/cli.md."""
        return {"internal": 1, "user": 2, "external": 3}[fault_of(self)]


def fault_of(error: BaseException) -> Fault:
    """Return who must act: "external" if a system error is the cause of a user error, else the fault of its class."""
    if isinstance(error, PenstockError):
        return "external" if error.fault == "user" and system_error_of(error) else error.fault
    return "internal"


def is_retryable(error: PenstockError) -> bool:
    """Return whether the same call may succeed later."""
    return error.retryable or system_error_of(error) is not None


def system_error_of(error: BaseException | None) -> OSError | MemoryError | None:
    """Return the temporary system error that caused an error, such as a full disk or no memory, or None.

    Wrong names and missing permissions do not count.
    """
    while error is not None:
        if isinstance(error, MemoryError) or (
            isinstance(error, OSError) and (error.errno or 0) > 0 and error.errno not in _OF_NAMES
        ):
            return error
        error = error.__cause__
    return None


def custom_error_in(text: str, otherwise: type[PenstockError]) -> PenstockError | None:
    """Return the penstock error at the end of another process's traceback, with its cause, or None.

    If its class is not in this module, the error is of the class `otherwise`.
    """
    for name, message in reversed(_OWN.findall(text)):
        kind = globals().get(name, otherwise)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            error = kind(message)
            error.__cause__ = system_error_in(text)
            return error
    return None


def system_error_in(text: str) -> OSError | None:
    """Return the system error in the traceback of another process, or None."""
    for found in reversed(_NUMBERED.findall(text)):
        if int(found) not in _OF_NAMES:
            return OSError(int(found), os.strerror(int(found)))
    for message, number in _BY_TEXT.items():
        if message in text:
            return OSError(number, message)
    return None


class JobDefinitionError(PenstockError):
    """The job definition is invalid."""

    fault = "user"


class SchemaError(JobDefinitionError):
    """A schema is invalid, or two schemas are incompatible."""


class ExpressionError(JobDefinitionError):
    """An expression cannot be read, or does not fit the records. The message has the position, with a caret."""


class QueryError(PenstockError):
    """A query cannot be answered. If a part of its text is at fault, the message has the position, with a caret."""

    fault = "user"


class BindingError(PenstockError):
    """A binding (`-D name=URI`) is missing, malformed or of the wrong kind."""

    fault = "user"


class PlaceMissingError(BindingError):
    """The topic, queue or stream that a binding names does not exist."""


class CheckpointError(PenstockError):
    """A checkpoint cannot be used: not writable, in use, damaged, or of another job."""

    fault = "user"


class CheckpointInUseError(CheckpointError):
    """Another run uses the checkpoint; it may have ended by the next attempt."""

    retryable = True


class CheckpointMissingError(CheckpointError):
    """The checkpoint of a job that has run is missing, such as on a disk that is not mounted; it may come back."""

    retryable = True


class CheckpointMovedError(CheckpointError):
    """The checkpoint is not where it was created, and Spark finds a part of it only there."""


class FencedError(CheckpointError):
    """Another run has taken over the checkpoint, so this one has ended without writing more."""


class CommandRefusedError(PenstockError):
    """A command is refused before it is sent, because it is malformed or the job cannot take it."""

    fault = "user"


class StrictModeError(PenstockError):
    """A record could not be processed, and the job runs with `--strict`."""

    fault = "user"


class ExternalSystemError(PenstockError):
    """An external system (a broker, a server) does not answer, or refuses."""

    fault = "external"
    retryable = True


class RecordsLostError(ExternalSystemError):
    """A system beside penstock has deleted records that the job has not read yet."""


class StoreError(ExternalSystemError):
    """The store of the job manager cannot be reached, refuses, or has another version."""


class JobFailedError(PenstockError):
    """The job stopped because something inside it failed."""


class StateError(PenstockError):
    """Stored state and declared state are incompatible, or state was used incorrectly."""

    fault = "user"


class StateMismatchError(StateError):
    """Stored state does not fit the states that the job declares; raised before any data is read."""


class UnstorableValueError(StateError):
    """A state was set to a value that cannot be stored; the record that caused it becomes a dead letter."""


class UnknownIdError(PenstockError):
    """An id or name is unknown: of a job, definition, operation, savepoint, stream, step or sink."""

    fault = "user"


class JobStateError(PenstockError):
    """A request conflicts with the state of a job, or with an earlier request."""

    fault = "user"


class IdempotencyError(PenstockError):
    """A request has the idempotency key of a different request."""

    fault = "user"


class JobChangedError(PenstockError):
    """A job was changed by another client since it was read; read it again."""

    retryable = True


class LeadershipLostError(PenstockError):
    """Another manager is the leader, so this one has changed nothing."""


class SnapshotError(PenstockError):
    """A snapshot (a dump or a savepoint) cannot be written, read or used."""

    fault = "user"


class AlreadyThereError(SnapshotError):
    """A file of a snapshot exists already; files of snapshots are never overwritten."""


class NotThereError(SnapshotError):
    """A snapshot, or a file of one, does not exist."""


class DamagedSnapshotError(SnapshotError):
    """A file of a snapshot differs from what was written."""
