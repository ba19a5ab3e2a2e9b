"""Deterministic replacements for threads, processes and gauges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from spark_model import ModelSpark

import penstock.errors
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.machine.memory import MemoryUse
from penstock.savepoints.snapshot_capture import Capture, capture

__all__ = ["DumpProcess", "LastMoment", "NoGauge", "keep", "nothing"]


class DumpProcess:
    """A dumping process, simulated without one."""

    returncode = 0

    def __init__(self, spark: ModelSpark, checkpoint: Checkpoint, wanted: Any) -> None:
        form: Any = wanted.format
        try:
            manifest = capture(
                spark,
                checkpoint,
                Capture("dump", wanted.to, form, batch=wanted.batch),  # type: ignore[arg-type]
            )
            self._said = json.dumps({"rows": sum(table.rows for table in manifest.tables)}), ""
        except penstock.errors.PenstockError as e:
            self.returncode = 2
            self._said = "", str(e)

    def poll(self) -> int:
        return self.returncode

    def wait(self) -> int:
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        return self._said

    def kill(self) -> None:
        """Mark it as ended."""


class LastMoment:
    """Replaces threads: work is done only when somebody waits for it, which is the worst moment."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def submit(self, function: Callable[..., Any], *args: Any) -> _Waiting:
        return _Waiting(lambda: function(*args))

    def map(self, function: Callable[[Any], Any], args: Iterable[Any]) -> Iterator[Any]:
        return map(function, args)

    def shutdown(self) -> None:
        """Do nothing: no work is running."""


class _Waiting:
    """Pending work."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self._do = do
        self._is_done = False

    def result(self) -> Any:
        if not self._is_done:
            self._is_done = True
            return self._do()
        return None


class NoGauge:
    """Reports no memory."""

    def __init__(self, session: Any) -> None:
        pass

    def sample(self) -> MemoryUse:
        return MemoryUse()


def nothing(*_: Any) -> None:
    """Do nothing: this is left to Spark."""


def keep(self: Any, value: Any) -> None:
    """Replaces sealing."""
    self._value = value
