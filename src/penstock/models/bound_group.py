"""Bound groups: a group of models at run time, which lets all score and decides between their answers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.bound_model import BoundModel
from penstock.models.group import ModelGroup
from penstock.models.kept_answers import KeptAnswers
from penstock.models.model import BatchPlace, RecordPlace
from penstock.models.model_answers import Answer, is_record
from penstock.models.refusals import ModelError
from penstock.models.scores import Score, Scores

__all__ = ["BoundGroup"]

_Arrays = dict[str, npt.NDArray[Any]]


class _Race:
    """One call of all models, each in a thread; answers after the decision count only in the statistics."""

    def __init__(self) -> None:
        self.answered: Final[queue.SimpleQueue[tuple[int, BoundModel, Answer | Exception]]] = (
            queue.SimpleQueue()
        )
        self.at_work: Final[set[int]] = set()

    def start(self, place: int, model: BoundModel, inputs: Any, ctx: Any, rows: Any) -> None:
        """Let a model answer."""

        def answer() -> None:
            try:
                found: Answer | Exception = model.answer(inputs, ctx, rows)
            except Exception as e:  # raised by whoever takes the answer
                found = e
            self.answered.put((place, model, found))

        self.at_work.add(place)
        threading.Thread(target=answer, name=f"model {model.model}", daemon=True).start()

    def take(self, timeout_s: float | None) -> tuple[int, BoundModel, Answer | Exception] | None:
        """Return the next answer; None if there is none in time."""
        try:
            found = self.answered.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self.at_work.discard(found[0])
        return found


class _Late:
    """The races of this worker in which models are still at work, by group. Such a model gets no second call."""

    def __init__(self) -> None:
        self._races: Final[dict[tuple[str, ...], list[_Race]]] = {}
        self._lock: Final = threading.Lock()

    def add(self, name: tuple[str, ...], race: _Race) -> None:
        """Keep a race until all have answered."""
        with self._lock:
            self._races.setdefault(name, []).append(race)

    def collect(self, name: tuple[str, ...], models: Sequence[BoundModel]) -> set[int]:
        """Add late answers to the tallies of the models; return the places of those that are still at work."""
        with self._lock:
            left = []
            for race in self._races.pop(name, []):
                while race.at_work and (found := race.take(0.0)) is not None:
                    models[found[0]].tally.absorb(found[1].tally)
                if race.at_work:
                    left.append(race)
            if left:
                self._races[name] = left
            return {place for race in left for place in race.at_work}


_late: Final = _Late()


class BoundGroup(ModelGroup):
    """A group at run time. `models` are its models at run time, and `kept` the answers that repeated work reuses."""

    def __init__(self, declared: ModelGroup, models: Sequence[BoundModel], kept: KeptAnswers) -> None:
        super().__init__(*models, decide=declared.decide)
        vars(self).update(name=declared.name, deadline_s=declared.deadline_s)
        self._bound: Final = models
        self._kept: Final = kept

    def predict(  # type: ignore[override]  # one body for both forms
        self, inputs: Any, ctx: BatchPlace | RecordPlace, rows: npt.NDArray[np.int64] | None = None
    ) -> Scores | Score:
        """Score records; see `ModelGroup.predict`."""
        answers = self._answers(inputs, ctx, rows)
        count = len(next(iter(answers.values())).by)
        chosen = self._vote(answers, count) if self.decide == "vote" else self._pick(answers, count)
        columns, versions = chosen
        if is_record(ctx):
            values = {name: column.tolist()[0] for name, column in columns.items()}
            return Score(values, self.name, versions[0].as_py())
        return Scores(columns, self.name, lambda: versions)

    # -- the models that answer --

    def _answers(self, inputs: Any, ctx: Any, rows: Any) -> dict[int, Answer]:
        """Return the answers that count, in the order in which they are preferred."""
        if not self.is_timed:
            return {place: self._answer(place, inputs, ctx, rows) for place in range(len(self._bound))}
        taken = self._kept.next(self.name)
        if taken is None:
            answers = self._race(inputs, ctx, rows)
        else:
            answers = {place: self._answer(place, inputs, ctx, rows) for place in taken}
        answers = self._order_answers(answers)
        self._kept.note(self.name, list(answers))
        return answers

    def _answer(self, place: int, inputs: Any, ctx: Any, rows: Any) -> Answer:
        model = self._bound[place]
        found = model.detached()
        answer = found.answer(inputs, ctx, rows)
        model.tally.absorb(found.tally)
        return answer

    def _race(self, inputs: Any, ctx: Any, rows: Any) -> dict[int, Answer]:
        """Let all models answer at the same time; return the first answer, or those before the deadline."""
        name = (*self._bound[0].place.name, self.name)
        busy = _late.collect(name, self._bound)
        race = _Race()
        ends_s = None if self.deadline_s is None else time.monotonic() + self.deadline_s
        for place, model in enumerate(self._bound):
            # If all are too slow, this work waits for all.
            if place not in busy or len(busy) == len(self._bound):
                race.start(place, model.detached(), inputs, ctx, rows)
        answers: dict[int, Answer] = {}
        while race.at_work and not (answers and self.decide == "first"):
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            # Some answer must be taken, even after the deadline.
            found = race.take(left_s or None if not answers else left_s)
            if found is None and answers:
                break
            if found is None:
                continue
            place, model, answer = found
            self._bound[place].tally.absorb(model.tally)
            if isinstance(answer, Exception):
                raise answer
            if answer.missing is None or not answer.missing.all() or not race.at_work:
                answers[place] = answer
        if race.at_work:
            _late.add(name, race)
        return answers

    def _order_answers(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """Note which models are late, and return the answers: best model first, unless the first answer counts."""
        count = len(next(iter(answers.values())).by)
        for place, model in enumerate(self._bound):
            if place not in answers and self.decide != "first":
                model.tally.add(model.serving or "", "late", count)
        return answers if self.decide == "first" else dict(sorted(answers.items()))

    # -- the answer that counts --

    def _pick(self, answers: dict[int, Answer], count: int) -> tuple[_Arrays, pa.StringArray]:
        """Return for each record the score of the first answer that has one."""
        open_rows = np.arange(count)
        columns: _Arrays = {}
        texts = np.full(count, "", object)
        for place, answer in answers.items():
            has = open_rows
            if answer.missing is not None and answer.missing.any():
                has = open_rows[~answer.missing[open_rows]]
            model = self._bound[place]
            if len(has) == count and not columns:
                self._count_chosen(model, answer, has)
                return dict(answer.columns), answer.version_texts(f"{model.model}/")
            for name, column in answer.columns.items():
                columns.setdefault(name, np.zeros(count, column.dtype))[has] = column[has]
            texts[has] = np.array(answer.version_texts(f"{model.model}/"), object)[has]
            self._count_chosen(model, answer, has)
            open_rows = np.setdiff1d(open_rows, has, assume_unique=True)
        self._check_all_scored(open_rows)
        return columns, pa.array(texts, pa.string())

    def _vote(self, answers: dict[int, Answer], count: int) -> tuple[_Arrays, pa.StringArray]:
        """Return for each record the median of numbers with fractions, and the most frequent of other values."""
        has = np.array(
            [
                np.ones(count, np.bool_) if answer.missing is None else ~answer.missing
                for answer in answers.values()
            ]
        )
        self._check_all_scored(np.flatnonzero(~has.any(axis=0)))
        columns = {}
        for name, first in next(iter(answers.values())).columns.items():
            votes = np.array([answer.columns[name] for answer in answers.values()])
            columns[name] = (
                _median(votes, has) if first.dtype.kind == "f" else _most_frequent(votes, has, first.dtype)
            )
        texts = np.full(count, "", object)
        for row, (place, answer) in enumerate(answers.items()):
            model = self._bound[place]
            mine = np.flatnonzero(has[row])
            said = np.array(answer.version_texts(f"{model.model}/"), object)
            texts[mine] = np.where(texts[mine] == "", said[mine], texts[mine] + " " + said[mine])
            self._count_chosen(model, answer, mine)
        return columns, pa.array(texts, pa.string())

    def _check_all_scored(self, rows: npt.NDArray[np.intp]) -> None:
        if len(rows):
            raise ModelError(
                f"No model of the group {self.name!r} has a usable score for this record. Load, validate and promote "
                "a version of one, or declare a default."
            )

    def _count_chosen(self, model: BoundModel, answer: Answer, rows: npt.NDArray[np.intp]) -> None:
        counts = np.bincount(answer.by[rows], minlength=len(answer.versions))
        for version, count in zip(answer.versions, counts.tolist(), strict=True):
            model.tally.add(version or "", "chosen", count)


def _median(votes: npt.NDArray[Any], has: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    masked: npt.NDArray[Any] = np.nanmedian(np.where(has, votes, np.nan), axis=0)
    return masked.astype(votes.dtype)


def _most_frequent(votes: npt.NDArray[Any], has: npt.NDArray[np.bool_], dtype: Any) -> npt.NDArray[Any]:
    """Return the most frequent value of each column; the first of equally frequent ones."""
    frequent = np.array([((votes == vote) & has).sum(axis=0) for vote in votes])
    best = np.where(has, frequent, 0).argmax(axis=0)
    found: npt.NDArray[Any] = votes[best, np.arange(votes.shape[1])]
    return found.astype(dtype)
