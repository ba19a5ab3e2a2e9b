"""Learning in order: many records of many keys, to the bit as one after the other."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.learning.learner import Learner, Numbers

__all__ = ["Learned", "learn_in_order", "score_all"]

# Below so many keys at once, single numbers are faster than columns.
_FEW: Final = 16

_Columns = dict[str, npt.NDArray[Any]]


class Learned(NamedTuple):
    """What records have taught: the keys that have learned, their weights, and the score of each record before it."""

    keys: npt.NDArray[np.int64]
    weights: _Columns
    scores: npt.NDArray[np.float64]


def score_all(
    learner: Learner,
    present: npt.NDArray[np.bool_],
    weights: Numbers,
    keys: npt.NDArray[np.int64],
    records: Numbers,
) -> npt.NDArray[np.float64]:
    """Return the score of each record by the model of its key, NaN where that has learned nothing.

    `present` and `weights` have an entry for each key, `keys` and `records` one for each record.
    """
    scores = np.full(len(keys), np.nan)
    known = np.flatnonzero(present[keys])
    if len(known):
        found = {name: column[keys[known]] for name, column in weights.items()}
        scores[known] = learner.score(found, {name: column[known] for name, column in records.items()})
    return scores


def learn_in_order(
    learner: Learner,
    present: npt.NDArray[np.bool_],
    weights: Numbers,
    keys: npt.NDArray[np.int64],
    records: Numbers,
) -> Learned:
    """Let the model of each key score its records and learn them, one after the other.

    The arguments are those of `score_all`. First all keys learn their first record at once, then all that have another
    their second one, and so on.
    """
    known, local = np.unique(keys, return_inverse=True)
    start = learner.start()
    models = {
        name: np.where(present[known], column[known], np.asarray(start[name], column.dtype))
        for name, column in weights.items()
    }
    has_learned = present[known].copy()
    scores = np.full(len(keys), np.nan)
    turn = _turns(local)
    order = np.argsort(turn, kind="stable")
    ends = np.searchsorted(turn[order], np.arange(1, int(turn.max(initial=-1)) + 2))
    begin = 0
    for end in ends:
        rows = order[begin:end]
        if len(rows) < _FEW:
            break
        _learn_columns(learner, models, has_learned, local[rows], records, rows, scores)
        begin = int(end)
    rest = np.sort(order[begin:])
    if len(rest):
        _learn_one_by_one(learner, models, has_learned, local, records, rest, scores)
    return Learned(known, models, scores)


def _turns(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many records of the same key come before each record."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    sizes = np.diff(np.append(begins, len(ordered)))
    turns = np.empty(len(keys), np.int64)
    turns[order] = np.arange(len(ordered)) - np.repeat(begins, sizes)
    return turns


def _learn_columns(
    learner: Learner,
    models: _Columns,
    has_learned: npt.NDArray[np.bool_],
    keys: npt.NDArray[np.int64],
    records: Numbers,
    rows: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float64],
) -> None:
    """Let different keys learn one record each."""
    weights = {name: column[keys] for name, column in models.items()}
    values = {name: column[rows] for name, column in records.items()}
    found = np.broadcast_to(learner.score(weights, values), len(rows))
    scores[rows] = np.where(has_learned[keys], found, np.nan)
    for name, column in learner.learn(weights, values).items():
        models[name][keys] = column
    has_learned[keys] = True


def _learn_one_by_one(
    learner: Learner,
    models: _Columns,
    has_learned: npt.NDArray[np.bool_],
    keys: npt.NDArray[np.int64],
    records: Numbers,
    rows: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float64],
) -> None:
    """Let keys learn records in turn, with single numbers, which NumPy computes as it does columns."""
    single = {name: list(column[rows]) for name, column in records.items()}
    kinds = {name: column.dtype.type for name, column in models.items()}
    held: dict[int, Numbers] = {}
    for place, (row, key) in enumerate(zip(rows.tolist(), keys[rows].tolist(), strict=True)):
        values = {name: column[place] for name, column in single.items()}
        weights = held.get(key)
        if weights is None:
            weights = {name: column[key] for name, column in models.items()}
        if has_learned[key]:
            scores[row] = learner.score(weights, values)
        found = learner.learn(weights, values)
        held[key] = {name: kind(found[name]) for name, kind in kinds.items()}
        has_learned[key] = True
    for key, weights in held.items():
        for name, column in models.items():
            column[key] = weights[name]
