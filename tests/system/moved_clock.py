"""A wall clock that a test moves for processes started with its environment.

It affects only times that they get from the C library: waits and file times are unchanged.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["MovedClock"]

_FILE = "PENSTOCK_TEST_CLOCK"
_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *moved_s;

__attribute__((constructor)) static void map_file(void) {
    const char *name = getenv("PENSTOCK_TEST_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED) moved_s = at;
}

static long long moved(void) { return moved_s ? *moved_s : 0; }

int clock_gettime(clockid_t clock, struct timespec *found) {
    int result = syscall(SYS_clock_gettime, clock, found);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += moved();
    return result;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, found, zone);
    if (result == 0 && found) found->tv_sec += moved();
    return result;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


class MovedClock:
    """A clock that may be moved at any time; the test is skipped where there is no C compiler.

    Args: folder: the place of the library and of the file with the seconds.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("A clock is moved by a small library in C, and there is no compiler (cc).")
        source, library = folder / "moved_clock.c", folder / "moved_clock.so"
        source.write_text(_SOURCE)
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        self._file = folder / "moved_s"
        self._file.write_bytes(bytes(8))
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), _FILE: str(self._file)}

    def move(self, seconds: int) -> None:
        """Set the clock's offset from the machine's, in seconds."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))
