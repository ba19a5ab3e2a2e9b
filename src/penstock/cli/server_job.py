"""Server jobs: a job reached through its server."""

from __future__ import annotations

import dataclasses
import math
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.cli.job_target import CommandDraft, JobEvent, Outcome, Patience, ScalingAdvice
from penstock.cli.output import escape, stderr
from penstock.cli.times import format_milliseconds
from penstock.commands.receipt_history import CommandHistory
from penstock.control.receipts import FINAL, Receipt
from penstock.errors import (
    AlreadyThereError,
    CheckpointError,
    CommandRefusedError,
    PenstockError,
    UnknownIdError,
)
from penstock.server.service.metrics_resources import Metrics

if TYPE_CHECKING:
    from penstock.client.http import Server
    from penstock.queries.locked_engine import QueryLimits
    from penstock.queries.query_answers import AnswerContent
    from penstock.savepoints.state_pages import StoredKey
    from penstock.scaling.policy import ScalingPolicy

__all__ = ["ServerJob", "await_outcome", "show_server_events"]

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_POLL_S: Final = 0.2
_FOLLOW_S: Final = 0.5
_SHOWN_RUNS: Final = 5
# How long a question about state waits for others, and reads state; a query has its own limit beside that.
_READING_S: Final = 90.0


class ServerValueError(PenstockError):
    """A value is too large for a server to send."""

    fault = "user"


class ServerJob:
    """A job that a server manages."""

    def __init__(self, server: Server, job_id: str) -> None:
        self.job_id: Final = job_id
        self._server: Final = server
        self._path: Final = f"/v1/jobs/{job_id}"

    @property
    def title(self) -> str:
        """The id of the job."""
        return self.job_id

    # -- metrics and events --

    def metrics(self, window_s: float) -> Metrics:
        """Get the metrics, also while the server is started again."""
        found = self._server.patient_get(f"{self._path}/metrics", window_s=math.ceil(window_s), limit=1)
        return msgspec.convert(found, Metrics)

    def metrics_content(self, window_s: float, *, watch: bool) -> Iterator[Any]:
        """Yield the metrics, then each micro-batch."""
        path = f"{self._path}/metrics"
        found = self._server.get(path, window_s=math.ceil(window_s), limit=1)
        yield found
        if watch:
            newest = found["batches"][-1]["batch"] if found["batches"] else None
            yield from self._server.stream(f"{path}/stream", after=newest)

    def exposition(self) -> str:
        """Raise CheckpointError: the server exposes all its jobs at once."""
        raise CheckpointError(
            "-o prometheus works with a checkpoint only. A server has the metrics of all its jobs at /metrics."
        )

    def events(
        self,
        limit: int,
        show: Callable[[JobEvent], None],
        *,
        with_commands: bool,  # noqa: ARG002  # as JobTarget
        follow: bool,
    ) -> None:
        """Show the job's part of the server's audit log, which has commands but no receipts."""
        show_server_events(self._server, self.job_id, limit, show, follow=follow)

    def advise(self, window_s: float, cores: int | None, policy: ScalingPolicy | None) -> ScalingAdvice:  # noqa: ARG002  # as JobTarget
        """Get advice, by the policy of the job's definition."""
        from penstock.scaling.advice import Advice
        from penstock.scaling.autoscale_decisions import Decision

        found = self._server.get(f"{self._path}/advice", window_s=math.ceil(window_s), cores=cores)
        decision = msgspec.convert(found["decision"], Decision | None)
        return ScalingAdvice(msgspec.convert(found["advice"], Advice), decision, found["has_policy"])

    # -- commands --

    def send(self, draft: CommandDraft) -> dict[str, Any]:
        """Let the server send the command, in the name of the user who asks."""
        given = {
            "kind": draft.kind,
            "target": draft.target,
            "keys": None if draft.keys is None else _array(draft.keys),
            "payload": msgspec.json.decode(draft.payload),
            "id": draft.id,
            "version": draft.version,
            "effective_at": None if draft.effective_at is None else draft.effective_at.isoformat(),
            "expires_at": None if draft.expires_at is None else draft.expires_at.isoformat(),
            "apply": draft.apply,
        }
        given = {name: value for name, value in given.items() if value is not None}
        sent: dict[str, Any] = self._server.change("POST", f"{self._path}/commands", given)
        return sent

    def await_final(
        self, command_id: str, timeout_s: float, show: Callable[[Receipt], None]
    ) -> Receipt | None:
        """Get the history of the command until it has ended."""
        deadline_s = time.monotonic() + timeout_s
        shown = 0
        while True:
            found = self._server.patient_get(f"{self._path}/commands/{command_id}")
            receipts = [_receipt(plain) for plain in found["receipts"]]
            for receipt in receipts[shown:]:
                show(receipt)
            shown = len(receipts)
            if receipts and receipts[-1].status in FINAL:
                return receipts[-1]
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(min(_POLL_S, max(0.0, deadline_s - time.monotonic())))

    def history_of(self, command_id: str) -> CommandHistory | None:
        """Get the history of the command."""
        receipts = self._server.get(f"{self._path}/commands/{command_id}")["receipts"]
        return CommandHistory(tuple(map(_receipt, receipts))) if receipts else None

    def histories(self, step: str | None, kind: str | None, limit: int) -> list[CommandHistory]:
        """Get the newest histories."""
        page = self._server.get(f"{self._path}/commands", step=step, kind=kind, limit=min(limit, 1000))
        return [CommandHistory(tuple(map(_receipt, one["receipts"]))) for one in page["items"]]

    # -- models and state --

    def list_models(self) -> list[dict[str, Any]]:
        """Get the models and their versions."""
        found: list[dict[str, Any]] = self._server.get(f"{self._path}/models")
        return found

    def list_states(self) -> list[dict[str, Any]]:
        """Get the steps and states."""
        found: list[dict[str, Any]] = self._server.get(f"{self._path}/state")
        return found

    def find_key(self, step: str, key: str, batch: int | None) -> StoredKey | None:
        """Get the page of keys that has this one only."""
        from penstock.savepoints.state_pages import StoredKey

        path, wanted = f"{self._path}/state/keys", {"step": step, "key": key, "batch": batch}
        items = self._server.patient_get(path, timeout_s=_READING_S, **wanted)["items"]
        if not items:
            return None
        found = msgspec.convert(items[0], StoredKey)
        if found.values is None:
            raise ServerValueError(
                f"The key holds {found.bytes:,} bytes, which is more than a server sends. Use penstock state dump."
            )
        return found

    def query(self, sql: str, limits: QueryLimits) -> AnswerContent:
        """Let the server answer."""
        from penstock.queries.query_answers import AnswerContent

        wanted = {"sql": sql, **dataclasses.asdict(limits)}
        patience_s = limits.seconds + _READING_S
        found = self._server.change("POST", f"{self._path}/state/query", wanted, patience_s)
        return msgspec.convert(found, AnswerContent)

    def dump(self, to: str, form: str, batch: int | None, patience: Patience) -> Outcome:
        """Let the server dump the state, fetch it into a new folder here, and delete it there.

        Raises AlreadyThereError for a folder that has something in it.
        """
        folder = Path(to)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise AlreadyThereError(f"{folder} exists and is not empty. Name a new folder.")
        wanted = {"format": form} | ({} if batch is None else {"batch": batch})
        done = self._ask("POST", "/state/dumps", wanted, patience)
        dump_id = done.content["id"]
        with tempfile.TemporaryFile() as file:
            self._server.download(f"/v1/dumps/{dump_id}", file)
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                # It skips entries that would lead out of the folder.
                archive.extractall(folder)
        self._server.change("DELETE", f"/v1/dumps/{dump_id}")
        return Outcome({"job": self.job_id, "id": dump_id, "uri": to})

    def take_savepoint(self, to: str | None, patience: Patience) -> Outcome:  # noqa: ARG002  # as JobTarget
        """Let the server take a savepoint, in its own place."""
        return self._ask("POST", "/savepoints", None, patience)

    def list_savepoints(self, place: str | None) -> list[dict[str, Any]]:  # noqa: ARG002  # as JobTarget
        """Get the savepoints that were taken of this job."""
        from penstock.client.jobs import list_savepoints

        return list_savepoints(self._server, self.job_id)

    def delete_savepoint(self, called: str) -> str:
        """Let the server delete a savepoint, by its id."""
        if not _ID.fullmatch(called):
            raise UnknownIdError(f"{called!r} is not an id. A server takes ids, not places.")
        self._server.change("DELETE", f"/v1/savepoints/{called}")
        return called

    # -- operations --

    def stop(self, to: str | None, patience: Patience, *, savepoint: bool, drain: bool) -> Outcome:  # noqa: ARG002  # as JobTarget
        """Let the server stop the job."""
        return self._ask(
            "PATCH", "", {"desired": "FINISHED", "savepoint": savepoint, "drain": drain}, patience
        )

    def rescale(self, parallelism: int, patience: Patience) -> Outcome:
        """Let the server rescale the job."""
        return self._ask("POST", "/rescale", {"parallelism": parallelism}, patience)

    def set_desired(self, desired: str, patience: Patience) -> Outcome:
        """Set the status that the job should have."""
        return self._ask("PATCH", "", {"desired": desired}, patience)

    def _ask(self, method: str, path: str, content: dict[str, Any] | None, patience: Patience) -> Outcome:
        operation = self._server.change(method, f"{self._path}{path}", content)
        return await_outcome(self._server, operation, patience)

    # -- only at servers --

    def describe(self) -> dict[str, Any]:
        """Return the job with its newest runs, its savepoints, and its plan, which is None before the first start."""
        from penstock.client.http import RefusedError

        found: dict[str, Any] = self._server.get(self._path)
        found["runs"] = self._server.get(f"{self._path}/runs", limit=_SHOWN_RUNS)["items"]
        found["savepoints"] = self.list_savepoints(None)
        try:
            found["plan"] = self._server.get(f"{self._path}/plan")
        except RefusedError as e:
            if e.kind != "checkpoint":
                raise
            found["plan"] = None
        return found

    def log(self, run: int | None, limit_bytes: int, *, follow: bool) -> Iterator[dict[str, Any]]:
        """Yield the end of a run's output; with `follow`, then further output without end.

        Without a number the newest run, and then the next ones as well.
        """
        path = f"{self._path}/log"
        shown = self._server.get(path, run=run, max_bytes=limit_bytes)
        yield shown
        while follow:
            now = self._server.patient_get(path, run=shown["run"] or None, begin=shown["end"])
            if now["text"]:
                yield now
                shown = now
                continue
            newest = self._server.patient_get(self._path)["run"] if run is None else run
            if newest != shown["run"]:
                shown = {"run": newest, "end": 0}
                continue
            time.sleep(_FOLLOW_S)


def await_outcome(server: Server, operation: dict[str, Any], patience: Patience) -> Outcome:
    """Wait for the end of an operation, if the patience allows; a terminal shows its state."""
    ids = {"job": operation["job"], "operation": operation["id"]}
    if not patience.wait:
        return Outcome(None, ids)
    from penstock.client.jobs import await_operation

    name = escape(f"{operation['kind']} of {operation['job']}")
    if stderr.is_terminal:
        with stderr.status(f"{name} ...") as status:
            done = await_operation(
                server,
                operation,
                patience.timeout_s,
                lambda o: status.update(f"{name}: {o['state'].lower()} ..."),
            )
    else:
        done = await_operation(server, operation, patience.timeout_s, lambda _: None)
    return Outcome(done["result"] or {}, ids)


def show_server_events(
    server: Server, job_id: str | None, limit: int, show: Callable[[JobEvent], None], *, follow: bool
) -> None:
    """Show the newest events of a job, or of the whole server; with `follow` then each new one, without end."""
    found = server.events(job=job_id)
    for event in found[len(found) - min(limit, len(found)) :]:
        show(_job_event(event))
    if follow:
        newest = found[-1]["id"] if found else 0
        for event in server.stream("/v1/events/stream", job=job_id, after=newest):
            show(_job_event(event))


def _job_event(event: dict[str, Any]) -> JobEvent:
    columns = (format_milliseconds(event["at_ms"]), event["job_id"] or "-", event["who"], event["what"])
    return JobEvent(event, columns, event["detail"])


def _receipt(plain: dict[str, Any]) -> Receipt:
    """Return a receipt from its JSON values."""
    details = plain["details"]
    text = "" if details is None else msgspec.json.encode(details).decode()
    return msgspec.convert({**plain, "details": text}, Receipt)


def _array(keys: str) -> Any:
    try:
        return msgspec.json.decode(keys)
    except msgspec.DecodeError as e:
        raise CommandRefusedError(
            f"--keys is not valid JSON: {e}. Write an array, such as '[1, 2]'."
        ) from None
