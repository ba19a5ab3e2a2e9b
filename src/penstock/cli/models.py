"""The command line of models: `penstock models` and its commands. None of them needs Spark."""

from __future__ import annotations

import enum
import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from penstock.cli.job_target import JobTarget, Patience
from penstock.cli.output import Output, OutputOption, escape, print_json, stderr, stdout, takes_options
from penstock.cli.sent_commands import NOT_SENT_CODE, WaitOption, new_draft, send_and_wait
from penstock.cli.target import JobArgument, Servers, TimeoutOption, asks_server
from penstock.errors import CommandRefusedError, JobDefinitionError
from penstock.models.model_policy import policy_setting

__all__ = ["models_app"]

models_app = typer.Typer(
    help="List the models of jobs, and bring versions of them in.", no_args_is_help=True, add_completion=False
)


class ModelFormat(enum.StrEnum):
    """The formats of models."""

    onnx = "onnx"
    skops = "skops"
    safetensors = "safetensors"
    arrow = "arrow"


class Change(enum.StrEnum):
    """The steps in the life of a version."""

    validate = "validate"
    shadow = "shadow"
    canary = "canary"
    promote = "promote"
    roll_back = "roll-back"
    pin = "pin"
    retire = "retire"
    remove = "remove"


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The name of the model.")]
_LOOK_EVERY_S: Final = 0.2
_COLUMNS: Final = (
    "step",
    "model",
    "version",
    "status",
    "MB",
    "records",
    "failures",
    "slow",
    "ms/1000",
    "p99 ms",
    "agreement",
    "drift",
    "KS",
    "changed by",
)


class _CommandOptions:
    """The options of verbs that send a command on a model."""

    step: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="The step, if several declare a model of that name."),
    ] = None
    wait: WaitOption = False
    timeout: TimeoutOption = 60.0
    output: OutputOption = Output.text


@dataclass(frozen=True)
class _Sending:
    """The same options as given."""

    step: str | None
    wait: bool
    timeout: float
    output: Output

    @property
    def patience(self) -> Patience:
        """How long to wait for a receipt."""
        return Patience(self.timeout, wait=self.wait)


@models_app.command("list")
@asks_server()
def list_command(
    servers: Servers,
    job: JobArgument,
    output: OutputOption = Output.text,
) -> None:
    """List the models of a job with their versions, and what these have scored.

    Records, failures and slow ones are since the checkpoint began, the rest is within the window of the policy.
    """
    with servers.job(job) as target:
        found = target.list_models()
    if output is Output.json:
        print_json(found)
        return
    table = Table(*_COLUMNS)
    for model in found:
        for one in model["versions"] or [None]:
            table.add_row(escape(model["step"]), escape(model["model"]), *_format_version(one))
    stdout.print(table)


def _format_version(version: dict[str, Any] | None) -> list[str]:
    if version is None:
        return []
    status, recent = version["status"], version["recent"] or version
    if version["share"]:
        status += f" {version['share']:.0%}"
    if version["pinned"]:
        status += f" +{version['pinned']} pinned"
    return [
        escape(version["version"]),
        status,
        "" if version["content_bytes"] is None else f"{version['content_bytes'] / 1e6:,.1f}",
        f"{version['records']:,}",
        f"{version['failures']:,}",
        f"{version['slow']:,}",
        _number(recent["ms"], ".2f"),
        _number(recent["p99_ms"], ".2f"),
        _number(recent["agreement"], ".2%"),
        _number(recent["drift"], ".3f"),
        _number(recent["ks"], ".3f"),
        escape(version["changed_by"]),
    ]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


@models_app.command()
@asks_server(NOT_SENT_CODE)
@takes_options(_CommandOptions)
def load(
    servers: Servers,
    job: JobArgument,
    model: ModelArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The name of the new version.")],
    uri: Annotated[str, typer.Argument(metavar="URI", help="A file or object that the job may read.")],
    form: Annotated[ModelFormat, typer.Option("--format", help="The format of the model.")],
    sha256: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The SHA-256 of the content. Default: that of the file here."),
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="What to keep with the version: a JSON object.")
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON file with inputs and expected outputs, by column."),
    ] = None,
    **options: Any,
) -> None:
    """Load a version of a model into a job. The job fetches and examines it beside its work.

    With --wait, this waits for that, too, so that no micro-batch waits for it when the version is validated.

    Exit codes as for penstock control send.
    """
    payload: dict[str, Any] = {"version": version, "uri": uri, "format": form.value}
    path = Path(uri)
    if "://" not in uri:
        payload["uri"] = str(path.absolute())
    if sha256 is None:
        if "://" in uri or not path.is_file():
            raise CommandRefusedError(
                f"{uri} is not a file on this machine: give the hash of its content with --sha256."
            )
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    payload["sha256"] = sha256
    if metadata is not None:
        payload["metadata"] = _object("--metadata", metadata.encode())
    if sample is not None:
        payload["sample"] = _object(f"--sample {sample}", _content(sample))
    with servers.job(job) as target:
        sending = _Sending(**options)
        ends_s = time.monotonic() + sending.timeout
        try:
            _send(target, "load-model", model, payload, sending)
        except typer.Exit as e:
            if e.exit_code == 0:
                _await_loaded(target, model, version, sending, ends_s)
            raise


@models_app.command()
@asks_server(NOT_SENT_CODE)
@takes_options(_CommandOptions)
def change(
    servers: Servers,
    job: JobArgument,
    what: Annotated[Change, typer.Argument(metavar="CHANGE", help=", ".join(Change))],
    model: ModelArgument,
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="The version; roll-back and pin may go without."),
    ] = None,
    share: Annotated[
        float | None, typer.Option(metavar="SHARE", help="canary: the share of the keys, above 0 up to 1.")
    ] = None,
    keys: Annotated[str | None, typer.Option(metavar="JSON", help="pin: the keys as a JSON array.")] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="roll-back: why.")] = None,
    **options: Any,
) -> None:
    """Change the status of a version of a model: a step in its life.

    With --wait, validate waits until the job has examined the version, and then for the receipt.

    Exit codes as for penstock control send.
    """
    needs: dict[Change, tuple[str, Any]] = {
        Change.canary: ("share", share),
        Change.pin: ("keys", keys),
        Change.roll_back: ("reason", reason),
    }
    payload: dict[str, Any] = {} if version is None else {"version": version}
    for one, (name, value) in needs.items():
        if value is not None and one is not what:
            raise JobDefinitionError(f"--{name} goes with {one.value} only, not with {what.value}.")
        if one is what and value is not None:
            payload[name] = msgspec.json.decode(value) if one is Change.pin and _is_json(value) else value
    if version is None and what not in (Change.roll_back, Change.pin):
        raise JobDefinitionError(f"{what.value} needs a VERSION.")
    sending = _Sending(**options)
    with servers.job(job) as target:
        ends_s = time.monotonic() + sending.timeout
        if (
            what is Change.validate
            and sending.wait
            and _find_version(target, model, version, sending) is not None
        ):
            _await_examination(target, model, version, sending, ends_s)
            sending = replace(sending, timeout=max(1.0, ends_s - time.monotonic()))
        _send(target, f"{what.value}-model", model, payload, sending)


@models_app.command()
@asks_server(NOT_SENT_CODE)
@takes_options(_CommandOptions)
def policy(
    servers: Servers,
    job: JobArgument,
    model: ModelArgument,
    bounds: Annotated[
        str | None,
        typer.Argument(
            metavar="POLICY", help="The new policy: a JSON object with the fields of ps.ModelPolicy, or {}."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Show the policy of a model, or set it. Fields that are left out have their defaults.

    Exit codes as for penstock control send.
    """
    sending = _Sending(**options)
    with servers.job(job) as target:
        found = _step_of(target, model, sending.step)
        if bounds is not None:
            new = _object("POLICY", bounds.encode())
            payload = msgspec.Raw(msgspec.json.encode({policy_setting(model): new}))
            send_and_wait(target, new_draft("set", found, payload), sending.patience, sending.output)
            return
        shown = next(
            one["policy"] for one in target.list_models() if (one["step"], one["model"]) == (found, model)
        )
    if sending.output is Output.json:
        print_json(shown)
        return
    table = Table("bound", "value")
    for name, value in (shown or {}).items():
        table.add_row(escape(name), "" if value is None else escape(str(value)))
    stdout.print(table)


def _send(target: JobTarget, kind: str, model: str, payload: dict[str, Any], sending: _Sending) -> None:
    found = _step_of(target, model, sending.step)
    whole = msgspec.Raw(msgspec.json.encode({"model": model, **payload}))
    send_and_wait(target, new_draft(kind, found, whole), sending.patience, sending.output)


def _await_loaded(target: JobTarget, model: str, version: str, sending: _Sending, ends_s: float) -> None:
    """Wait until a version that was loaded is examined, until a time; say so if it was not, or cannot be."""
    found = _await_examination(target, model, version, sending, ends_s)
    if found is None:
        said = "The job has not examined version {} yet; see its log. validate-model needs that first."
        stderr.print(said.format(escape(version)), soft_wrap=True)
    elif found["failure"] is not None:
        said = "Version {} could not be fetched: {}. validate-model tries it again."
        stderr.print(said.format(escape(version), escape(found["failure"])), soft_wrap=True)


def _await_examination(
    target: JobTarget, model: str, version: str | None, sending: _Sending, ends_s: float
) -> dict[str, Any] | None:
    """Wait until a version is examined or could not be fetched, and return it; None if that takes too long."""
    while True:
        found = _find_version(target, model, version, sending)
        if found is not None and (found["is_examined"] or found["failure"] is not None):
            return found
        if time.monotonic() > ends_s:
            return None
        time.sleep(_LOOK_EVERY_S)


def _find_version(
    target: JobTarget, model: str, version: str | None, sending: _Sending
) -> dict[str, Any] | None:
    """Return a version as the list shows it, None if it is not in the list."""
    step = _step_of(target, model, sending.step)
    versions = next(
        one["versions"] for one in target.list_models() if (one["step"], one["model"]) == (step, model)
    )
    return next((dict(one) for one in versions if one["version"] == version), None)


def _step_of(target: JobTarget, model: str, step: str | None) -> str:
    """Return the step that declares a model. Raises CommandRefusedError unless it is one."""
    models = target.list_models()
    steps = [found["step"] for found in models if found["model"] == model and step in (None, found["step"])]
    if len(steps) != 1:
        known = ", ".join(f"{found['model']} of {found['step']}" for found in models) or "none"
        what = "several steps declare" if steps else "no step declares"
        raise CommandRefusedError(f"{what.capitalize()} a model {model!r}; the job has {known}. See --step.")
    return str(steps[0])


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CommandRefusedError(f"--sample {path} cannot be read ({e.strerror or e}).") from None


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.MsgspecError:
        raise CommandRefusedError(f"--keys is not a JSON array: {text}") from None
    return True


def _object(name: str, data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as e:
        raise CommandRefusedError(f"{name} is not a JSON object ({e}).") from None
