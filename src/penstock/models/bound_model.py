"""Bound models: a model at run time, which scores records with the versions in force."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.call_watch import call_watch
from penstock.models.choice import Choice
from penstock.models.library_places import LibraryPlace
from penstock.models.loaded import loaded_models
from penstock.models.model import BatchPlace, Model, RecordPlace
from penstock.models.model_answers import Answer, is_record
from penstock.models.output_columns import conform_outputs
from penstock.models.refusals import ModelError
from penstock.models.scores import Score, Scores
from penstock.models.spec import numpy_column, numpy_value
from penstock.models.suspensions import SlotSuspensions, Suspension
from penstock.models.tallies import Tally
from penstock.models.versions import Cause, Changes, ModelVersion, next_versions
from penstock.state.cursor import Cursor
from penstock.state.history import as_of
from penstock.state.shared import SharedStates
from penstock.state.undo import undo_of

__all__ = ["BoundModel", "ModelPlace"]

# Versions are chosen for all keys, unless there are more than this many times as many keys as records.
_MANY: Final = 4
# A call that takes this many times its budget is slow.
_SLOW: Final = 10

_Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ModelPlace:
    """The place of the models of a step: the library of the job, and the type of the step's keys.

    If `watched`, a call that hangs ends this process.
    """

    library: LibraryPlace | None
    key_type: pa.DataType
    step: str = ""
    watched: bool = False

    @property
    def name(self) -> tuple[str, str]:
        """The library and the step."""
        return "" if self.library is None else self.library.shown, self.step


@dataclass
class _Scored:
    """The result of a version for some records: their scores, the records without one, and the reason."""

    columns: _Arrays
    bad: npt.NDArray[np.bool_]
    reason: str = ""


class BoundModel(Model):
    """A model at run time: its versions in the shared states of a slot, and the contents in a place.

    `suspensions` are those of the slot.
    """

    def __init__(
        self,
        declared: Model,
        states: SharedStates,
        cursor: Cursor,
        place: ModelPlace,
        suspensions: SlotSuspensions,
    ) -> None:
        vars(self).update(vars(declared))
        self._states: Final = states
        self._versions: Final[dict[str, ModelVersion]] = states.mapping(declared.name)
        self._cursor: Final = cursor
        self.place: Final = place
        self._suspensions: Final = suspensions
        self._choice: Choice | None = None
        self._suspended: Mapping[str, str] = {}
        self._predictors: Final[dict[str, Any]] = {}
        self.may_miss = False
        self._missing: npt.NDArray[np.bool_] | None = None
        self.tally: Final = Tally(cursor.undo)

    # -- versions --

    def make_ready(self) -> None:
        """Load the versions that may score. Raises StateError when the checkpoint does not have one any more."""
        found = self._suspensions.at(self._cursor.now_ms, self.model)
        self._suspended = {
            one.version: one.reason
            for one in found
            if one.version in self._versions and self._versions[one.version].command_id == one.command
        }
        needed = self._chosen().needed
        owner = (self.place.name, self.model)
        loaded_models.need(owner, [self._versions[name] for name in needed], self.spec)
        for name in needed:
            self._predictor(name)

    def preload(self, version: str) -> None:
        """Begin to load a version beside the work."""
        loaded_models.preload(self._library, self._versions[version], self.spec)

    @property
    def _library(self) -> LibraryPlace:
        assert self.place.library is not None
        return self.place.library

    def change(self, order: Any, cause: Cause) -> Changes:
        """Carry out an order, and return the changes. Raises ModelRefusedError when the versions do not allow it."""
        changes = next_versions(self._versions, order, cause)
        for name, version in changes.items():
            self._states.note(self._cursor, undo_of(self._versions, name))
            if version is None:
                del self._versions[name]
            else:
                self._versions[name] = version
        self._choice = None
        self._predictors.clear()
        self.__dict__.pop("_counts_scores", None)
        return changes

    @property
    def serving(self) -> str | None:
        """The version that serves, None if none does."""
        return self._chosen().serving

    def get(self, key: str, default: ModelVersion | None = None) -> ModelVersion | None:
        """Return a version, or the default."""
        return self._versions.get(key, default)

    def items(self) -> Any:
        """Return all versions with their names, in the order in which they were loaded."""
        return self._versions.items()

    def __contains__(self, key: object) -> bool:
        return key in self._versions

    def __len__(self) -> int:
        return len(self._versions)

    def _chosen(self) -> Choice:
        if self._choice is None:
            self._choice = Choice.of(self.model, self._versions)
        return self._choice

    @functools.cached_property
    def _counts_scores(self) -> bool:
        """Whether to count scores by size: several versions score, or the policy compares one with that before it."""
        choice = self._chosen()
        if choice.shadows or choice.canary is not None:
            return True
        policy = as_of(self._states.settings[self.policy.name], None)
        found = self.policy.default if policy is None else policy.value
        return found is not None and bool(found.compares_scores)

    @functools.cached_property
    def _inputs(self) -> list[tuple[str, pa.DataType]]:
        return [(field.name, field.type) for field in self.spec.inputs]

    def _predictor(self, version: str) -> Any:
        found = self._predictors.get(version)
        if found is None:
            found = loaded_models.get(self._library, self._versions[version], self.spec)
            self._predictors[version] = found
        return found

    # -- scores --

    def predict(  # type: ignore[override]  # one body for both forms
        self, inputs: Any, ctx: BatchPlace | RecordPlace, rows: npt.NDArray[np.int64] | None = None
    ) -> Scores | Score:
        """Score records; see `Model.predict`."""
        found = self.answer(inputs, ctx, rows)
        if is_record(ctx):
            values = {name: column.tolist()[0] for name, column in found.columns.items()}
            return Score(values, self.model, found.versions[found.by[0]] or "")
        return Scores(found.columns, self.model, found.version_texts)

    def detached(self) -> Self:
        """Return a copy with a separate tally, which another thread may use, and whose answers may have gaps."""
        found = copy.copy(self)
        vars(found)["tally"] = Tally([])
        found.may_miss = True
        return found

    def answer(
        self, inputs: Any, ctx: BatchPlace | RecordPlace, rows: npt.NDArray[np.int64] | None = None
    ) -> Answer:
        """Score records; see `Model.predict`. A single one is a batch of one."""
        if is_record(ctx):
            columns = {name: numpy_value(_value(inputs, name), kind) for name, kind in self._inputs}
            names, codes = self._versions_of_key(ctx.key), np.zeros(1, np.intp)
        else:
            batch = cast("BatchPlace", ctx)
            column_of = inputs.__getitem__ if isinstance(inputs, Mapping) else inputs.column
            columns = {name: numpy_column(column_of(name), kind) for name, kind in self._inputs}
            count = len(next(iter(columns.values())))
            indices = batch.key_indices if rows is None else batch.key_indices[rows]
            if len(indices) != count:
                raise ValueError(
                    f"the model {self.model!r} got {count} records for {len(indices)} rows. Pass the rows to which the "
                    "records belong: predict(records, ctx, rows)"
                )
            names, codes = self._versions_of(batch.keys, indices)
        self._missing = np.zeros(len(codes), np.bool_) if self.may_miss else None
        found, known, by = self._score(columns, names, codes)
        return Answer(found, known, by, self._missing)

    def _versions_of_key(self, key: Any) -> list[str | None]:
        choice = self._chosen()
        if choice.is_by_key and key is not None:
            return choice.versions_of(pa.array([key], self.place.key_type))
        return [choice.serving]

    def _versions_of(
        self, keys: pa.Array, indices: npt.NDArray[np.int64]
    ) -> tuple[list[str | None], npt.NDArray[np.intp]]:
        """Return the versions that score, and for each record the place of its version among them."""
        choice = self._chosen()
        if not choice.is_by_key or keys.null_count:
            return [choice.serving], np.zeros(len(indices), np.intp)
        if len(keys) <= _MANY * len(indices):
            return list(choice.chosen), choice.places_of(keys)[indices]
        present, inverse = np.unique(indices, return_inverse=True)
        return list(choice.chosen), choice.places_of(keys.take(pa.array(present)))[inverse]

    def _score(
        self, columns: _Arrays, names: Sequence[str | None], codes: npt.NDArray[np.intp]
    ) -> tuple[_Arrays, list[str | None], npt.NDArray[np.intp]]:
        """Return the scores of records, the versions that made them, and for each record the place of its version."""
        count = len(codes)
        choice = self._chosen()
        is_alone = not choice.shadows and choice.canary is None and not self._suspended
        if len(names) == 1 and names[0] is not None and is_alone:
            scored = self._run(names[0], columns, count)
            if not scored.bad.any():
                self.tally.add(names[0], "records", count)
                if self._counts_scores:
                    self._add_distribution(names[0], scored)
                return scored.columns, [names[0]], codes
        found = self._empty(count)
        known = list(names)
        by = codes.copy()
        for code, name in enumerate(names):
            rows = np.arange(count) if len(names) == 1 else np.flatnonzero(codes == code)
            self._score_rows(found, by, known, columns, name, rows)
        for shadow in choice.shadows:
            if shadow not in self._suspended:
                self._compare(shadow, columns, found)
        return found, known, by

    def _score_rows(
        self,
        found: _Arrays,
        by: npt.NDArray[np.intp],
        known: list[str | None],
        columns: _Arrays,
        name: str | None,
        rows: npt.NDArray[np.intp],
    ) -> None:
        """Score some rows with a version; those for which it fails, with the version before it."""
        if not len(rows):
            return
        if name is None:
            self._fill_default(found, rows)
            return
        if name in self._suspended:
            self._fall_back(found, by, known, columns, name, rows, self._suspended[name])
            return
        part = columns if len(rows) == len(by) else {key: column[rows] for key, column in columns.items()}
        scored = self._run(name, part, len(rows))
        self.tally.add(name, "records", len(rows))
        for key, column in scored.columns.items():
            found[key][rows] = column
        if self._counts_scores:
            self._add_distribution(name, scored)
        if not scored.bad.any():
            return
        self._fall_back(found, by, known, columns, name, rows[scored.bad], scored.reason)

    def _fall_back(
        self,
        found: _Arrays,
        by: npt.NDArray[np.intp],
        known: list[str | None],
        columns: _Arrays,
        name: str,
        rows: npt.NDArray[np.intp],
        reason: str,
    ) -> None:
        """Score rows for which a version has no usable score with the version before it."""
        self.tally.add(name, "failures", len(rows))
        before = self._chosen().before.get(name)
        if before is None and self._missing is not None:
            self._missing[rows] = True
            return
        if before is None:
            raise ModelError(
                f"Version {name!r} of the model {self.model!r} has no usable score for this record ({reason}), "
                "and no version before it can score it."
            )
        if before not in known:
            known.append(before)
        by[rows] = known.index(before)
        self._score_rows(found, by, known, columns, before, rows)

    def _run(self, name: str, columns: _Arrays, count: int) -> _Scored:
        """Let a version score records. If it raises, halve them until the failing ones are found."""
        if not count:
            return _Scored(self._empty(0), np.zeros(0, np.bool_))
        predictor = self._predictor(name)
        begun_s = time.perf_counter()
        if self.place.watched:
            call_watch.begin(self._library, self._suspension(name), self.limits)
        try:
            found, bad = conform_outputs(predictor.predict(columns), self.spec, count)
            reason = "it is not finite" if bad.any() else ""
            return _Scored(found, bad, reason)
        except Exception as e:  # the library's, or the user's class
            if count == 1:
                return _Scored(self._empty(1), np.ones(1, np.bool_), f"{type(e).__name__}: {e}"[:300])
        finally:
            if self.place.watched:
                call_watch.done()
            self._add_time(name, time.perf_counter() - begun_s, count)
        middle = count // 2
        first = self._run(name, {key: column[:middle] for key, column in columns.items()}, middle)
        last = self._run(name, {key: column[middle:] for key, column in columns.items()}, count - middle)
        joined = {key: np.concatenate([column, last.columns[key]]) for key, column in first.columns.items()}
        return _Scored(joined, np.concatenate([first.bad, last.bad]), first.reason or last.reason)

    def _suspension(self, name: str) -> Suspension:
        """Return the suspension that a call of this version would get if it hung."""
        return Suspension(
            self.place.step,
            self.model,
            name,
            self._versions[name].command_id,
            "",
            self._cursor.now_ms,
            self._suspensions.key_groups[0],
        )

    def _add_time(self, name: str, seconds: float, count: int) -> None:
        self.tally.add_call(name, seconds)
        budget_ms = self.spec.budget_ms
        if budget_ms is not None and seconds > _SLOW * budget_ms * max(1.0, count / 1000) / 1000:
            self.tally.add(name, "slow", count)

    def _compare(self, shadow: str, columns: _Arrays, found: _Arrays) -> None:
        """Let a shadow score the same records, and count how often it agrees."""
        count = len(next(iter(found.values())))
        scored = self._run(shadow, columns, count)
        agrees = ~scored.bad
        for name, column in found.items():
            other = scored.columns[name]
            if column.dtype.kind == "f":
                with np.errstate(invalid="ignore"):
                    agrees &= np.abs(other - column) <= self.tolerance
            else:
                agrees &= np.asarray(other == column, np.bool_)
        self.tally.add(shadow, "records", count)
        self.tally.add(shadow, "compared", count)
        self.tally.add(shadow, "failures", int(scored.bad.sum()))
        self.tally.add(shadow, "agreed", int(agrees.sum()))
        self._add_distribution(shadow, scored)

    def _add_distribution(self, name: str, scored: _Scored) -> None:
        first = next(iter(scored.columns.values()))
        if first.dtype.kind in "fiub":
            self.tally.add_scores(name, first[~scored.bad])

    def _empty(self, count: int) -> _Arrays:
        return {
            field.name: np.empty(count, object)
            if pa.types.is_string(field.type)
            else np.zeros(count, field.type.to_pandas_dtype())
            for field in self.spec.outputs
        }

    def _fill_default(self, found: _Arrays, rows: npt.NDArray[np.intp]) -> None:
        if self.default is None and self._missing is not None:
            self._missing[rows] = True
            return
        if self.default is None:
            raise ModelError(
                f"No version of the model {self.model!r} serves. Load, validate and promote one, or declare a default."
            )
        for name, column in found.items():
            column[rows] = self.default[name]


def _value(record: Any, name: str) -> Any:
    return record[name] if isinstance(record, Mapping) else getattr(record, name)
