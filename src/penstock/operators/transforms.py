"""Stateless functions on single records: map, filter and flat_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from penstock.errors import SchemaError
from penstock.operators.error_reasons import misfit_reason, reason_of
from penstock.operators.record_blocks import DeadLetter, Records
from penstock.records.types import RecordType

__all__ = ["apply_transform"]


def apply_transform(
    kind: Literal["map", "filter", "flat_map"],
    function: Callable[[Any], Any],
    records: Records,
    input_type: RecordType,
    output_type: RecordType,
    name: str,
) -> tuple[Records, list[DeadLetter]]:
    """Apply a function to each record. A record for which it raises, or whose result does not fit, is a dead letter."""
    call = {"map": _map, "filter": _filter, "flat_map": _flat_map}[kind]
    results: list[Any] = []
    rows: list[int] = []
    letters: list[DeadLetter] = []
    columns = [f.to_python(records.batch.column(f.name)) for f in input_type.fields]
    objects = map(input_type.python_class, *columns)
    for row in range(len(records)):
        try:
            made = call(function, next(objects))
        except Exception as e:  # user code may raise anything
            letters.append(records.dead_letter(row, reason_of(e), input_type, name))
            continue
        results += made
        rows += [row] * len(made)
    picked = np.array(rows, np.int64)
    if kind == "filter":
        return records.take(picked), letters
    try:
        batch = output_type.batch(results)
    except SchemaError:
        results, picked = _keep_fitting(results, picked, records, input_type, output_type, name, letters)
        batch = output_type.batch(results)
    return records.take(picked, batch), letters


def _map(function: Callable[[Any], Any], record: Any) -> list[Any]:
    result = function(record)
    if result is None:
        raise ValueError("the map function returned None; use filter or flat_map to drop records")
    return [result]


def _filter(function: Callable[[Any], Any], record: Any) -> list[Any]:
    return [record] if function(record) else []


def _flat_map(function: Callable[[Any], Any], record: Any) -> list[Any]:
    return list(function(record) or ())


def _keep_fitting(
    results: list[Any],
    rows: Any,
    records: Records,
    input_type: RecordType,
    output_type: RecordType,
    name: str,
    letters: list[DeadLetter],
) -> tuple[list[Any], Any]:
    """Return the results that fit the output type, with their rows, and add the others to the dead letters."""
    kept: list[int] = []
    for place, result in enumerate(results):
        try:
            output_type.batch([result])
            kept.append(place)
        except SchemaError as e:
            reason = misfit_reason(result, output_type, e, "the result")
            letters.append(records.dead_letter(int(rows[place]), reason, input_type, name))
    return [results[place] for place in kept], rows[kept]
