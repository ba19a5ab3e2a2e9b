"""Command validation: the commands that a step accepts, and whether a command is one of them. Needs no state."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.control.admitted_commands import AdmittedCommand
from penstock.control.commands import Command, CommandError, DumpRequest, short_reason
from penstock.control.receipts import RecordPosition
from penstock.models.model import Model
from penstock.models.model_policy import ModelPolicy
from penstock.models.orders import MODEL_ORDERS, PinModel
from penstock.operators.handlers import BUILT_IN_KINDS, Handler
from penstock.state.history import TemporalState
from penstock.state.key_groups import key_groups
from penstock.state.key_index import key_values
from penstock.state.plain_values import PlainValues
from penstock.state.shared import Setting
from penstock.state.state_spec import fill_defaults
from penstock.state.values import KeyedState

__all__ = [
    "AcceptedStep",
    "Accepting",
    "are_same_in_json",
    "key_array",
    "named_keys",
    "payload_decoder",
    "payload_of",
]

_SCOPES: Final[Mapping[str, tuple[str, ...]]] = {
    "set": ("key", "keys", "all", "step"),
    "reload-config": ("step",),
    "clear-cache": ("step", "job"),
    "pause": ("step", "job"),
    "resume": ("step", "job"),
    "trace": ("step", "job"),
    "dump-state": ("job",),
}
_HANDLER_SCOPES: Final = {"key": ("key", "keys", "all"), "step": ("step", "job")}
# Errors raised when an invalid key is converted to a column.
_NOT_A_KEY: Final = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    pa.ArrowException,
    msgspec.ValidationError,
)
# The kinds on models that choose by key.
_BY_KEY: Final = ("canary-model", "pin-model")


@dataclass(frozen=True)
class AcceptedStep:
    """The commands that one step accepts.

    `models` are those that it declares, by the name that commands use. If `timed`, its records have an event time, so a
    command may be effective at an event time; with `has_watermarks` event time also moves. A step without a key has the
    key type null, and no states that a command can set.
    """

    step: str
    key_type: pa.DataType
    handlers: Mapping[str, Handler]
    states: Mapping[str, KeyedState]
    settings: Mapping[str, Setting[Any]]
    timed: bool
    has_cache: bool
    has_watermarks: bool
    models: Mapping[str, Model] = field(default_factory=dict)

    @functools.cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The kinds of commands that the step accepts, with their scopes."""
        found = dict(_SCOPES)
        if not self.settings:
            found["set"] = ("key", "keys", "all")
            del found["reload-config"]
        if not self.states:
            found["set"] = tuple(scope for scope in found["set"] if scope == "step")
        if not self.has_cache:
            del found["clear-cache"]
        if self.models:
            found |= dict.fromkeys(MODEL_ORDERS, ("step",))
        if pa.types.is_null(self.key_type):
            found = {kind: scopes for kind, scopes in found.items() if kind not in _BY_KEY}
        for handler in self.handlers.values():
            found[handler.kind] = _HANDLER_SCOPES[handler.scope]
        return {kind: scopes for kind, scopes in found.items() if scopes}


@dataclass(frozen=True)
class Accepting:
    """The commands that the steps of a job accept."""

    steps: Mapping[str, AcceptedStep]
    key_groups: int

    def admit(self, commands: Sequence[tuple[RecordPosition, Command]]) -> list[AdmittedCommand]:
        """Validate commands; those that no step accepts get a refusal."""
        checked = [(place, command, self._refusal(command)) for place, command in commands]
        good = [command for _, command, refusal in checked if not refusal]
        try:
            groups = self._key_groups(good)
        except _NOT_A_KEY:
            return [self._order(place, command, refusal) for place, command, refusal in checked]
        left = iter(groups)
        return [
            self.refuse(place, command, refusal)
            if refusal
            else AdmittedCommand(place, command, command.target.step, "", next(left))
            for place, command, refusal in checked
        ]

    def _order(self, place: RecordPosition, command: Command, refusal: str) -> AdmittedCommand:
        """Admit one command whose keys are not checked yet."""
        if not refusal:
            try:
                (groups,) = self._key_groups([command])
            except _NOT_A_KEY as e:
                kind = self.steps[command.target.step].key_type
                refusal = f"the target has a key that is not of type {kind}: {e}"
            else:
                return AdmittedCommand(place, command, command.target.step, "", groups)
        return self.refuse(place, command, refusal)

    def refuse(self, place: RecordPosition, command: Command, refusal: str) -> AdmittedCommand:
        """Return a command with a refusal."""
        judge = command.target.step if command.target.step in self.steps else next(iter(self.steps))
        # Steps do not need the payload of a refused command.
        short = msgspec.structs.replace(command, payload=msgspec.Raw(b"null"))
        return AdmittedCommand(place, short, judge, refusal)

    def _key_groups(self, commands: Sequence[Command]) -> list[list[int]]:
        """Return for each command the key groups of its keys. All keys of a step are hashed at once."""
        found: list[list[int]] = [[] for _ in commands]
        places: dict[str, list[int]] = {}
        keys: dict[str, list[Any]] = {}
        for place, command in enumerate(commands):
            target = command.target
            named = [target.key] if target.key is not None else target.keys
            if named is not None:
                places.setdefault(target.step, []).extend([place] * len(named))
                keys.setdefault(target.step, []).extend(named)
        for step, named in keys.items():
            groups = key_groups(key_array(named, self.steps[step].key_type), self.key_groups).tolist()
            for place, group in zip(places[step], groups, strict=True):
                found[place].append(group)
        return found

    def _refusal(self, command: Command) -> str:
        """Return why a command is refused regardless of its keys; empty if it is accepted."""
        if command.kind == "set" and command.target.key is not None and self._is_plain_set(command):
            return ""
        try:
            self._check(command)
        except CommandError as e:
            return str(e)
        except Exception as e:  # the class of a payload is the user's and may raise anything
            return f"the payload does not fit: {short_reason(e)}"
        return ""

    def _is_plain_set(self, command: Command) -> bool:
        """Return whether a `set` of a key surely passes all checks: a shortcut for thousands of commands a second."""
        plain = self._plain_values.get(command.target.step)
        return plain is not None and command.effective_at is None and plain.read(command.payload) is not None

    @functools.cached_property
    def _plain_values(self) -> dict[str, PlainValues]:
        """The fast payload readers of the steps that accept `set` for keys and have no handler for it."""
        return {
            name: PlainValues(step.states)
            for name, step in self.steps.items()
            if "key" in step.kinds.get("set", ()) and not any(h.kind == "set" for h in step.handlers.values())
        }

    def refuse_malformed(self, error: CommandError, place: RecordPosition) -> AdmittedCommand:
        """Return a refusal for a record that is not a valid command."""
        command_id = error.id or f"{place.stream}/{place.partition}/{place.offset}"
        return AdmittedCommand(place, Command(id=command_id, kind=""), next(iter(self.steps)), str(error))

    def takers(self, command: Command) -> list[str]:
        """Return the steps that a command is for."""
        if command.target.step:
            return [command.target.step]
        return [name for name, step in self.steps.items() if "job" in step.kinds.get(command.kind, ())]

    def _check(self, command: Command) -> None:
        target = command.target
        if not target.step:
            self._check_for_job(command)
            return
        step = self.steps.get(target.step)
        if step is None:
            raise CommandError(f"the job has no step {target.step!r}; it has {', '.join(self.steps)}")
        scopes = step.kinds.get(command.kind)
        if scopes is None:
            raise CommandError(_unknown(command.kind, f"the step {step.step!r}", step.kinds))
        if target.scope not in scopes:
            raise CommandError(
                f"{command.kind!r} is for {' or '.join(scopes)}, but the target {str(target)!r} is for {target.scope}"
            )
        self._check_payload(command, step)
        self._check_time(command, step)

    def _check_for_job(self, command: Command) -> None:
        takers = self.takers(command)
        if not takers:
            kinds = {kind: scopes for step in self.steps.values() for kind, scopes in step.kinds.items()}
            if command.kind in kinds:
                raise CommandError(f"{command.kind!r} is for {' or '.join(kinds[command.kind])}; name a step")
            raise CommandError(_unknown(command.kind, "the job", kinds))
        for taker in takers:
            self._check_payload(command, self.steps[taker])
            self._check_time(command, self.steps[taker])

    def _check_payload(self, command: Command, step: AcceptedStep) -> None:
        handler = step.handlers.get(command.kind)
        if handler is not None:
            payload_of(command, handler.payload_type)
        elif command.kind == "set":
            self._check_values(command, step)
        elif command.kind == "reload-config":
            self._check_read(command, step)
        elif command.kind == "dump-state":
            payload_of(command, DumpRequest)
        elif command.kind in MODEL_ORDERS:
            self._check_order(command, step)

    def _check_order(self, command: Command, step: AcceptedStep) -> None:
        order = payload_of(command, MODEL_ORDERS[command.kind])
        if order.model not in step.models:
            raise CommandError(
                f"the step {step.step!r} has no model {order.model!r}; it has {', '.join(step.models)}"
            )
        if isinstance(order, PinModel):
            try:
                key_array(order.keys, step.key_type)
            except _NOT_A_KEY as e:
                raise CommandError(f"a key to pin is not of type {step.key_type}: {e}") from None

    def _check_read(self, command: Command, step: AcceptedStep) -> None:
        """Check values read from a file like those of a sender, but never quote the file: it may be confidential."""
        read = payload_decoder(dict[str, msgspec.Raw]).decode(command.payload)
        unknown = len(read.keys() - step.settings.keys())
        if unknown:
            raise CommandError(
                f"{unknown} of the {len(read)} names that were read are not settings of the step {step.step!r}; it has "
                f"{', '.join(step.settings)}"
            )
        for name, raw in read.items():
            try:
                step.settings[name].value_of(raw)
            except Exception:  # the class of a setting is the user's and may raise anything
                raise CommandError(f"the value read for the setting {name!r} does not fit its type") from None
        self._check_values(command, step)

    def _check_values(self, command: Command, step: AcceptedStep) -> None:
        values = payload_decoder(dict[str, msgspec.Raw]).decode(command.payload)
        shared = command.target.scope == "step"
        known: Mapping[str, Any] = step.settings if shared else step.states
        for name, raw in values.items():
            if name not in known:
                what = "setting" if shared else "state"
                raise CommandError(
                    f"the step {step.step!r} has no {what} {name!r}; it has {', '.join(known) or 'none'}"
                )
            declared = known[name]
            temporal = (
                declared.has_history if isinstance(declared, Setting) else isinstance(declared, TemporalState)
            )
            if command.effective_at is not None and not temporal:
                raise CommandError(
                    f"the {'setting' if shared else 'state'} {name!r} has no history, so a command cannot be effective "
                    "at a time"
                )
            value = declared.value_of(raw)
            if isinstance(value, ModelPolicy) and value.time == "event" and not step.has_watermarks:
                raise CommandError(
                    f"the step {step.step!r} has no watermarks, so the policy {name!r} would never decide by event "
                    'time; set "time": "processing", or declare watermarks on its data stream (watermarks=)'
                )
        if not values:
            raise CommandError("the payload names nothing to set")

    def _check_time(self, command: Command, step: AcceptedStep) -> None:
        if command.effective_at is None:
            return
        is_built_in = command.kind in BUILT_IN_KINDS or (
            command.kind in MODEL_ORDERS and command.kind not in step.handlers
        )
        if is_built_in and command.kind not in ("set", "reload-config"):
            raise CommandError(f"{command.kind!r} takes effect at the cut, not at an event time")
        if not step.timed:
            raise CommandError(
                f"the records of step {step.step!r} have no event time; declare event_time= on its data stream"
            )
        if not step.settings and not any(isinstance(s, TemporalState) for s in step.states.values()):
            raise CommandError(
                f"the step {step.step!r} has no setting and no temporal state, so no command can be effective at a time"
            )


def _unknown(kind: str, who: str, kinds: Mapping[str, Any]) -> str:
    if kind in MODEL_ORDERS:
        return f"{who} declares no ps.Model that takes {kind!r}, and has no handler for it (on_command({kind!r}))"
    return f"{who} takes no command {kind!r}; it takes {', '.join(kinds)}"


def payload_of(command: Command, payload_type: Any) -> Any:
    """Decode a command's payload. Raises msgspec.DecodeError if it is not of the type."""
    return fill_defaults(payload_decoder(payload_type).decode(command.payload))


@functools.lru_cache(maxsize=256)
def payload_decoder(payload_type: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder for payloads of a type."""
    return msgspec.json.Decoder(payload_type)


def key_array(keys: Sequence[Any], key_type: pa.DataType) -> pa.Array:
    """Convert keys from a command's JSON to a column of the step's key type.

    Raises ValueError, TypeError, an Arrow error or a msgspec error for a key that does not fit.
    """
    if pa.types.is_struct(key_type):
        parts = [f.type for f in key_type]
        rows = msgspec.convert(keys, list[list[Any]])
        if any(len(row) != len(parts) for row in rows):
            raise ValueError(f"a key has {len(parts)} parts")
        values = list(zip(*rows, strict=True)) if rows else [()] * len(parts)
        columns = [_column(column, kind) for column, kind in zip(values, parts, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(key_type))
    return _column(keys, key_type)


def named_keys(keys: Sequence[Any], key_type: pa.DataType) -> list[Any]:
    """Convert accepted keys from a command's JSON to those that user code sees."""
    return list(keys) if are_same_in_json(key_type) else key_values(key_array(keys, key_type))


def are_same_in_json(key_type: pa.DataType) -> bool:
    """Return whether accepted keys of a type are the same in JSON and in Python, like those of the common types."""
    return bool(pa.types.is_integer(key_type) or pa.types.is_string(key_type))


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(msgspec.convert(list(values), list[_python_type(kind)]), kind)  # type: ignore[misc]  # the type is made at run time


def _python_type(kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_string(kind):
        return str
    if pa.types.is_date(kind):
        return dt.date
    if pa.types.is_timestamp(kind):
        return dt.datetime
    return bytes
