"""What the system has caused is nobody's mistake, whatever was tried when it came."""

from __future__ import annotations

import errno
import os

import pytest

from penstock.errors import (
    BindingError,
    CheckpointError,
    CheckpointInUseError,
    Fault,
    JobDefinitionError,
    JobFailedError,
    PenstockError,
    SnapshotError,
    custom_error_in,
    fault_of,
    is_retryable,
    system_error_in,
    system_error_of,
)
from penstock.server.runs.driver import _kind_of


def caused(error: PenstockError, *causes: BaseException) -> PenstockError:
    """An error with the chain of its causes."""
    outer: BaseException = error
    for cause in causes:
        outer.__cause__ = cause
        outer = cause
    return error


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


PASSING = [
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.ENOMEM,
    errno.EMFILE,
    errno.EROFS,
    errno.ETIMEDOUT,
]
LASTING = [errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EADDRINUSE, errno.ENAMETOOLONG]


@pytest.mark.parametrize("kind", [CheckpointError, BindingError, SnapshotError, JobDefinitionError])
def test_an_error_of_the_system_is_not_the_user_s(kind: type[PenstockError]) -> None:
    """As far as it may pass by itself, and however deep in the chain it stands; a wrong name stays the user's."""
    for number in PASSING:
        for error in (caused(kind("x"), system(number)), caused(kind("x"), ValueError(), system(number))):
            assert (fault_of(error), is_retryable(error), error.exit_code) == ("external", True, 3)
            assert _kind_of(error) == "hindered"
    for cause in (*map(system, LASTING), OSError("without a number"), ValueError()):
        error = caused(kind("x"), cause)
        assert (fault_of(error), is_retryable(error), error.exit_code) == ("user", False, 2)
        assert _kind_of(error) == "refused"
    assert _kind_of(caused(kind("x"), MemoryError())) == "hindered"


@pytest.mark.parametrize(
    ("error", "fault", "retryable"),
    [
        (CheckpointInUseError("x"), "user", True),
        (JobFailedError("x"), "internal", False),
        (OSError(), "internal", None),
    ],
)
def test_without_such_a_cause_the_class_says_it(
    error: Exception, fault: Fault, retryable: bool | None
) -> None:
    """As before."""
    assert fault_of(error) == fault
    if isinstance(error, PenstockError):
        assert is_retryable(error) == retryable
        assert _kind_of(error) == "failed"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("OSError: [Errno 28] No space left on device: '/x'", errno.ENOSPC),
        ("pyarrow.lib.ArrowIOError: it. Detail: [errno 5] Input/output error", errno.EIO),
        ("org.rocksdb.RocksDBException: No space left on device: While appending", errno.ENOSPC),
        ("java.io.IOException: Disk quota exceeded", errno.EDQUOT),
        (
            "[Errno 2] No such file\n...\n[Errno 116] Stale file handle\n[Errno 13] Permission denied",
            errno.ESTALE,
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory", None),
        ("ValueError: nothing", None),
    ],
)
def test_it_is_found_in_what_other_processes_tell(text: str, number: int | None) -> None:
    """Python's workers and Spark's JVM alike."""
    found = system_error_in(text)
    assert (None if found is None else found.errno) == number
    own = custom_error_in(
        f"{text}\npenstock.errors.BindingError: the folder cannot be written", JobFailedError
    )
    assert type(own) is BindingError
    assert (system_error_of(own) is not None) == (number is not None)
