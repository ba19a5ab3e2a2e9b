"""Memory shares: how a job on this machine divides its memory among its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from penstock.errors import JobDefinitionError
from penstock.machine.limits import cores

__all__ = ["MemoryShares", "is_frugal"]

# Measured with nothing to do, each page counted once: the driver, the server that workers are forked from, and the
# JVM's code and classes; then a worker with its readers.
_BASE_MB: Final = 400
_WORKER_MB: Final = 100
# Spark does not start with less than 450 MiB, without the part of the heap that its collector copies to.
_MIN_HEAP_MB: Final = 512
_MIN_WORKER_MB: Final = 64
# In real time records do not pass through the JVM.
_HEAP_SHARE: Final = {True: 0.2, False: 0.4}
_MAX_HEAP_MB: Final = {True: 768, False: 2048}
_STATE_SHARE: Final = 0.5
# On up to this many cores, a collector with threads of its own takes more from the workers than it gains.
_FEW_CORES: Final = 4


def is_frugal(memory_mb: int | None, checkpoint_interval_ms: int) -> bool:
    """Return whether the JVM should use little memory, and a collector that is best on few cores."""
    is_asked = memory_mb is not None or bool(checkpoint_interval_ms)
    return is_asked or cores().usable <= _FEW_CORES


@dataclass(frozen=True)
class MemoryShares:
    """The shares of a job's memory, in MiB: the JVM's heap, and in each worker its state and the records it holds."""

    heap_mb: int
    state_mb: int
    records_mb: int

    @classmethod
    def of(cls, memory_mb: int, parallelism: int, *, in_real_time: bool) -> Self:
        """Divide the memory of a job. Raises JobDefinitionError when it is too little.

        >>> MemoryShares.of(2000, 2, in_real_time=True)
        MemoryShares(heap_mb=512, state_mb=222, records_mb=111)
        """
        fixed = _BASE_MB + parallelism * _WORKER_MB
        least = fixed + _MIN_HEAP_MB + parallelism * _MIN_WORKER_MB
        if memory_mb < least:
            raise JobDefinitionError(
                f"The memory is {memory_mb:,} MiB; a job with a parallelism of {parallelism} needs at least "
                f"{least:,} MiB. Give it more memory, or lower the parallelism."
            )
        free = memory_mb - fixed
        heap = min(max(_MIN_HEAP_MB, int(free * _HEAP_SHARE[in_real_time])), _MAX_HEAP_MB[in_real_time])
        worker = (free - heap) // parallelism
        state = int(worker * _STATE_SHARE)
        return cls(heap, state, (worker - state) // 2)
