"""Job targets: the requests of verbs to a job, which they reach by its checkpoint or through a server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.commands.receipt_history import CommandHistory
    from penstock.control.commands import Apply
    from penstock.control.receipts import Receipt
    from penstock.queries.locked_engine import QueryLimits
    from penstock.queries.query_answers import AnswerContent
    from penstock.savepoints.state_pages import StoredKey
    from penstock.scaling.advice import Advice
    from penstock.scaling.autoscale_decisions import Decision
    from penstock.scaling.policy import ScalingPolicy
    from penstock.server.service.metrics_resources import Metrics

__all__ = ["CommandDraft", "JobEvent", "JobTarget", "Outcome", "Patience", "ScalingAdvice"]


@dataclass(frozen=True, kw_only=True)
class CommandDraft:
    """A command as it was given on the command line.

    `keys` is a JSON array. A command without an `id` gets `new_id`, which is unique. A server knows who sends the
    command and where the job reads it, so that `issued_by` and `commands_uri` count for a checkpoint only.
    """

    kind: str
    target: str
    keys: str | None
    payload: msgspec.Raw
    id: str | None
    new_id: str
    issued_by: str
    issued_at: dt.datetime
    version: int | None
    effective_at: dt.datetime | None
    expires_at: dt.datetime | None
    apply: Apply
    commands_uri: str | None


@dataclass(frozen=True)
class JobEvent:
    """An event of a job: whole, as JSON, and as columns of text with its details."""

    content: Any
    columns: tuple[str, ...]
    details: dict[str, Any]


@dataclass(frozen=True)
class ScalingAdvice:
    """Advice on a job, and the decision of its scaling policy; `has_policy` tells whether it has one."""

    advice: Advice
    decision: Decision | None
    has_policy: bool


@dataclass(frozen=True)
class Patience:
    """How long to wait for the end of an operation; without `wait` not at all."""

    timeout_s: float = 600.0
    wait: bool = True


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request.

    `details` is None when nobody waited for its end. `ids` names the job and the operation at a server. `notes` are
    lines for people.
    """

    details: Mapping[str, Any] | None
    ids: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {**self.ids, **(self.details or {})}


class JobTarget(Protocol):
    """A job as verbs see it."""

    @property
    def title(self) -> str:
        """The name of the job in tables."""

    def metrics(self, window_s: float) -> Metrics:
        """Return the newest metrics, with rates over a window."""

    def metrics_content(self, window_s: float, *, watch: bool) -> Iterator[Any]:
        """Yield the newest metrics as JSON values; with `watch` then each new micro-batch, without end."""

    def exposition(self) -> str:
        """Return the metrics in Prometheus' text format."""

    def events(
        self, limit: int, show: Callable[[JobEvent], None], *, with_commands: bool, follow: bool
    ) -> None:
        """Show the newest events, oldest first; with `follow` then each new one, without end."""

    def advise(self, window_s: float, cores: int | None, policy: ScalingPolicy | None) -> ScalingAdvice:
        """Return which parallelism, batch interval and cores the job wants."""

    def send(self, draft: CommandDraft) -> dict[str, Any]:
        """Send a command; return it as JSON values, with its `id`."""

    def await_final(
        self, command_id: str, timeout_s: float, show: Callable[[Receipt], None]
    ) -> Receipt | None:
        """Wait for the final receipt of the command just sent, and show each on the way; None after the timeout."""

    def history_of(self, command_id: str) -> CommandHistory | None:
        """Return the history of a command; None while it waits to be read. Raises for an unknown id."""

    def histories(self, step: str | None, kind: str | None, limit: int) -> list[CommandHistory]:
        """Return the newest histories, oldest first."""

    def list_models(self) -> list[dict[str, Any]]:
        """Return the models that the steps declare, each with its versions."""

    def list_states(self) -> list[dict[str, Any]]:
        """Return the steps, each with its states and number of keys."""

    def find_key(self, step: str, key: str, batch: int | None) -> StoredKey | None:
        """Return a key with its state in a step; None if it has none."""

    def dump(self, to: str, form: str, batch: int | None, patience: Patience) -> Outcome:
        """Dump the state; `details` has the place as `uri`."""

    def take_savepoint(self, to: str | None, patience: Patience) -> Outcome:
        """Take a savepoint; `details` has its `id`."""

    def list_savepoints(self, place: str | None) -> list[dict[str, Any]]:
        """Return the savepoints: `id, job, batch, created_at, uri`."""

    def delete_savepoint(self, called: str) -> str:
        """Delete a savepoint by its id or place; return its name, for display."""

    def query(self, sql: str, limits: QueryLimits) -> AnswerContent:
        """Answer a query over the newest committed state."""

    def stop(self, to: str | None, patience: Patience, *, savepoint: bool, drain: bool) -> Outcome:
        """Stop the job; `details` has its last `batch`, if it ran, and the `savepoint`."""

    def rescale(self, parallelism: int, patience: Patience) -> Outcome:
        """Rescale the job; `details` has `before`, `after`, `batch` and `seconds`."""
