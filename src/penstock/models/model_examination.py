"""Examination: try a model before any record depends on it, in a separate process with limited time and memory."""

from __future__ import annotations

import importlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.orders import Sample
from penstock.models.output_columns import conform_outputs
from penstock.models.predictors import open_predictor
from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import Columns, ModelSpec, Predictor, numpy_column

__all__ = ["Findings", "examine", "examine_apart", "is_importable"]

_RECORDS: Final = 1000
_ROUNDS: Final = 5
_TIME_LIMIT_S: Final = 60.0
_MEMORY_BYTES: Final = 2 << 30
# Reading a model and building it takes several times its size.
_MEMORY_FACTOR: Final = 6
_REFUSED: Final = 3
# At low priority before the libraries are imported, since the import takes longer than most models.
_PROGRAM: Final = """
import os, sys
os.nice(10)
from penstock.models.model_examination import main
sys.exit(main())
"""


class Findings(msgspec.Struct, frozen=True):
    """The findings of an examination: why the model is refused, or how long 1,000 records took."""

    refusal: str = ""
    records: int = 0
    ms: float = 0.0


class _Wanted(msgspec.Struct, frozen=True):
    """An examination, as its process reads it."""

    path: str
    format: str
    inputs: bytes
    outputs: bytes
    weights: str
    trusted: tuple[str, ...]
    budget_ms: int | None
    allow_nan: bool
    sample: Sample | None
    import_path: Sequence[str]
    memory_bytes: int
    time_limit_s: float


def examine(content: bytes, form: str, spec: ModelSpec, sample: Sample | None) -> Findings:
    """Load a model, let it score its sample, and measure it. Raises ModelRefusedError with the first fault."""
    try:
        return _examine(content, form, spec, sample)
    except (ModelRefusedError, MemoryError):
        raise
    except Exception as e:  # the library's, or the user's class, which may fail at any call
        raise ModelRefusedError(f"the model fails: {type(e).__name__}: {e}"[:300]) from None


def _examine(content: bytes, form: str, spec: ModelSpec, sample: Sample | None) -> Findings:
    predictor = open_predictor(content, form, spec)
    if sample is not None:
        _check_sample(predictor, spec, sample)
    columns = _records(spec, sample)
    found, _ = _scores(predictor, spec, columns, _RECORDS)
    assert found
    ms = _measure(predictor, columns)
    if spec.budget_ms is not None and ms > spec.budget_ms:
        raise ModelRefusedError(
            f"the model takes {ms:.0f} ms for {_RECORDS:,} records, and its budget is {spec.budget_ms} ms"
        )
    return Findings("", _RECORDS, ms)


def is_importable(kind: type | None) -> bool:
    """Return whether another process of the same import path finds a class by its name."""
    return kind is None or (kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__)


def examine_apart(
    path: Path, form: str, spec: ModelSpec, sample: Sample | None, *, time_limit_s: float = _TIME_LIMIT_S
) -> Findings:
    """Examine a model in another process. Raises ModelRefusedError, also if it takes too long or too much memory."""
    kind = spec.weights
    wanted = _Wanted(
        str(path),
        form,
        spec.inputs.serialize().to_pybytes(),
        spec.outputs.serialize().to_pybytes(),
        "" if kind is None else f"{kind.__module__}:{kind.__qualname__}",
        spec.trusted,
        spec.budget_ms,
        spec.allow_nan,
        sample,
        sys.path,
        _MEMORY_BYTES + _MEMORY_FACTOR * path.stat().st_size,
        time_limit_s,
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=msgspec.msgpack.encode(wanted),
            capture_output=True,
            timeout=time_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelRefusedError(f"the model was not examined within {time_limit_s:.0f} s") from None
    if done.returncode not in (0, _REFUSED):
        raise ModelRefusedError(
            f"the process that examined the model ended with the status {done.returncode}; the model may take more "
            f"than {wanted.memory_bytes >> 20:,} MB of memory"
        )
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Findings)
    if found.refusal:
        raise ModelRefusedError(found.refusal)
    return found


def _check_sample(predictor: Predictor, spec: ModelSpec, sample: Sample) -> None:
    rows = len(next(iter(sample.inputs.values()), ()))
    names = set(spec.inputs.names)
    if set(sample.inputs) != names or any(len(column) != rows for column in sample.inputs.values()):
        raise ModelRefusedError(
            f"the sample has the columns {', '.join(sorted(sample.inputs))}; it needs as many values of each of "
            f"{', '.join(sorted(names))}"
        )
    columns = {field.name: _sample_column(sample, field) for field in spec.inputs}
    found, bad = _scores(predictor, spec, columns, rows)
    if bad.any():
        raise ModelRefusedError(
            f"the model gives a score that is not finite for record {int(np.flatnonzero(bad)[0])} of its sample"
        )
    for name, values in sample.expected.items():
        if name not in found or len(values) != rows:
            raise ModelRefusedError(f"the sample expects {len(values)} values of {name!r} for {rows} records")
        try:
            differs = np.flatnonzero(~_agree(found[name], values, sample.tolerance))
        except (TypeError, ValueError, OverflowError) as e:
            raise ModelRefusedError(
                f"the sample expects values of {name!r} that are not numbers: {e}"
            ) from None
        if len(differs):
            row = int(differs[0])
            raise ModelRefusedError(
                f"the model gives {found[name][row]} as {name!r} for record {row} of its sample, which expects "
                f"{values[row]}"
            )


def _sample_column(sample: Sample, field: pa.Field) -> npt.NDArray[Any]:
    try:
        return numpy_column(sample.inputs[field.name], field.type)
    except (TypeError, ValueError, OverflowError) as e:
        raise ModelRefusedError(
            f"the sample has values of {field.name!r} that are not of type {field.type}: {e}"
        ) from None


def _agree(found: npt.NDArray[Any], expected: Sequence[Any], tolerance: float) -> npt.NDArray[np.bool_]:
    if found.dtype.kind == "f":
        wanted = np.asarray(expected, np.float64)
        close: npt.NDArray[np.bool_] = np.isclose(
            found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True
        )
        return close
    return np.array([one == other for one, other in zip(found.tolist(), expected, strict=True)], np.bool_)


def _scores(
    predictor: Predictor, spec: ModelSpec, columns: Columns, rows: int
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.bool_]]:
    try:
        return conform_outputs(predictor.predict(columns), spec, rows)
    except ModelRefusedError:
        raise
    except Exception as e:  # the library's, or the user's class
        raise ModelRefusedError(f"the model fails: {type(e).__name__}: {e}"[:300]) from None


def _records(spec: ModelSpec, sample: Sample | None) -> Columns:
    """Return records to measure with: those of the sample again and again, or zeros and empty texts."""
    if sample is not None and all(sample.inputs.values()):
        given = {field.name: numpy_column(sample.inputs[field.name], field.type) for field in spec.inputs}
        return {name: np.resize(column, _RECORDS) for name, column in given.items()}
    zero: Any = {True: "", False: 0}
    return {
        field.name: numpy_column(
            pa.array([zero[pa.types.is_string(field.type)]] * _RECORDS, field.type), field.type
        )
        for field in spec.inputs
    }


def _measure(predictor: Predictor, columns: Columns) -> float:
    """Return the time of the fastest of some rounds in milliseconds, since the job works at the same time."""
    taken = []
    for _ in range(_ROUNDS):
        begun_s = time.perf_counter()
        predictor.predict(columns)
        taken.append(time.perf_counter() - begun_s)
    return min(taken) * 1000


def _spec_of(wanted: _Wanted) -> ModelSpec:
    kind: Any = None
    if wanted.weights:
        module, _, name = wanted.weights.partition(":")
        kind = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
    return ModelSpec(
        pa.ipc.read_schema(pa.py_buffer(wanted.inputs)),
        pa.ipc.read_schema(pa.py_buffer(wanted.outputs)),
        kind,
        wanted.trusted,
        wanted.budget_ms,
        wanted.allow_nan,
    )


def _limit_memory(more_bytes: int) -> None:
    """Limit the address space to what it is now and some more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    """Examine the model that standard input describes, and print the findings."""
    wanted = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Wanted)
    sys.path[:] = list(wanted.import_path)
    # Ends this process if the one that started it is gone.
    signal.setitimer(signal.ITIMER_REAL, 2 * wanted.time_limit_s)
    _limit_memory(wanted.memory_bytes)
    try:
        spec = _spec_of(wanted)
        found = examine(Path(wanted.path).read_bytes(), wanted.format, spec, wanted.sample)
    except ModelRefusedError as e:
        found = Findings(str(e))
    except MemoryError:
        found = Findings(f"the model takes more than {wanted.memory_bytes >> 20:,} MB of memory")
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return _REFUSED if found.refusal else 0
