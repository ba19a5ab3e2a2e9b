"""Learning in order: many records of many keys at once, with the same bits as one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.learning.learner import Learner, Numbers

__all__ = ["Learned", "learn_in_order", "score_all"]

# With fewer keys at once, single numbers are faster than columns.
_FEW: Final = 16

_Columns = dict[str, npt.NDArray[Any]]


class Learned(NamedTuple):
    """The result of learning: the keys that have learned, their weights, and the score of each record before it."""

    keys: npt.NDArray[np.int64]
    weights: Mapping[str, Any]
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
    *,
    scored: bool = True,
) -> Learned:
    """Let the model of each key score its records and learn them, one after the other.

    The arguments are those of `score_all`; unless `scored`, all scores are NaN. First all keys learn their first record
    at once, then all that have another their second one, and so on.
    """
    known, local = np.unique(keys, return_inverse=True)
    start = learner.start()
    models = _Models(
        learner,
        {
            name: np.where(present[known], column[known], np.asarray(start[name], column.dtype))
            for name, column in weights.items()
        },
        present[known].copy(),
        scored,
    )
    scores = np.full(len(keys), np.nan)
    turn = _turns(local)
    order = np.argsort(turn, kind="stable")
    ends = np.searchsorted(turn[order], np.arange(1, int(turn.max(initial=-1)) + 2))
    begin = 0
    for end in ends:
        rows = order[begin:end]
        if len(rows) < _FEW:
            break
        scores[rows] = models.learn_at_once(local[rows], _rows(records, rows))
        begin = int(end)
    rest = np.sort(order[begin:])
    if len(rest):
        scores[rest] = models.learn_in_turn(local[rest], _rows(records, rest))
    return Learned(known, models.weights, scores)


def _turns(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many records of the same key come before each record."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    sizes = np.diff(np.append(begins, len(ordered)))
    turns = np.empty(len(keys), np.int64)
    turns[order] = np.arange(len(ordered)) - np.repeat(begins, sizes)
    return turns


def _rows(records: Numbers, rows: npt.NDArray[np.int64]) -> _Columns:
    return {name: column[rows] for name, column in records.items()}


@dataclass(frozen=True)
class _Models:
    """The models of some keys: their weights, and whether each has learned anything."""

    learner: Learner
    weights: _Columns
    has_learned: npt.NDArray[np.bool_]
    scored: bool

    def learn_at_once(self, keys: npt.NDArray[np.int64], records: _Columns) -> npt.NDArray[np.float64]:
        """Let different keys learn one record each, and return the scores before."""
        weights = {name: column[keys] for name, column in self.weights.items()}
        scores = np.full(len(keys), np.nan)
        if self.scored:
            found = np.broadcast_to(self.learner.score(weights, records), len(keys))
            scores = np.where(self.has_learned[keys], found, np.nan)
        for name, column in self.learner.learn(weights, records).items():
            self.weights[name][keys] = column
        self.has_learned[keys] = True
        return scores

    def learn_in_turn(self, keys: npt.NDArray[np.int64], records: _Columns) -> npt.NDArray[np.float64]:
        """Let keys learn records in turn, with single numbers, for which NumPy computes the same as for columns."""
        scores = np.full(len(keys), np.nan)
        kinds = {name: column.dtype.type for name, column in self.weights.items()}
        held: dict[int, Numbers] = {}
        for row, key in enumerate(keys.tolist()):
            record = {name: column[row] for name, column in records.items()}
            weights = held.get(key)
            if weights is None:
                weights = {name: column[key] for name, column in self.weights.items()}
            if self.scored and self.has_learned[key]:
                scores[row] = self.learner.score(weights, record)
            found = self.learner.learn(weights, record)
            held[key] = {name: kind(found[name]) for name, kind in kinds.items()}
            self.has_learned[key] = True
        for key, weights in held.items():
            for name, column in self.weights.items():
                column[key] = weights[name]
        return scores
