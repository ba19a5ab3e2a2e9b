"""Output of all verbs: results as text or JSON, and errors as sentences."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, get_type_hints

import msgspec
import typer
from rich.console import Console

from penstock.errors import PenstockError, fault_of, system_error_of

__all__ = [
    "Output",
    "OutputOption",
    "errors_as_sentences",
    "escape",
    "print_error",
    "print_json",
    "stderr",
    "stdout",
    "takes_options",
    "with_options",
]

_WIDTH: Final = 200

stderr: Final = Console(stderr=True, highlight=False)
# Without a terminal Rich takes 80 columns, which would cut the output to a pipe or a file.
stdout: Final = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


class Output(enum.StrEnum):
    """How results are printed."""

    text = "text"
    json = "json"


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="Print the result as text or as one JSON line.")
]


@contextmanager
def errors_as_sentences(
    external_code: int = 3, report: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Turn an error of penstock into a sentence, on stderr or for `report`, and an exit code.

    `external_code` is the exit code when an external system does not answer or refuses.
    """
    try:
        yield
    except PenstockError as e:
        (report or print_error)(str(e))
        raise typer.Exit(external_code if fault_of(e) == "external" else e.exit_code) from None
    except OSError as e:
        if system_error_of(e) is None:
            raise
        (report or print_error)(f"The system failed: {e}. Fix that, and try again.")
        raise typer.Exit(external_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def takes_options(options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the fields of a class to a verb as options, which it gets as keyword arguments."""
    return lambda verb: with_options(verb, verb, options)


def with_options(
    command: Callable[..., None], verb: Callable[..., None], options: type
) -> Callable[..., None]:
    """Give a command the parameters that users set: those of a verb, and the fields of a class before `output`."""
    own = [
        parameter
        for parameter in inspect.signature(verb, eval_str=True).parameters.values()
        if parameter.name != "servers" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    named = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, named, default=vars(options)[name], annotation=hint)
        for name, hint in get_type_hints(options, include_extras=True).items()
    ]
    own = [parameter.replace(kind=named) for parameter in own]
    last = [parameter for parameter in own if parameter.name == "output"]
    parameters = [*(parameter for parameter in own if parameter not in last), *more, *last]
    # Typer reads options from the signature.
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def print_error(text: str) -> None:
    """Print an error on stderr."""
    stderr.print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True)


def escape(text: str) -> str:
    """Escape a text so that nothing in it counts as markup."""
    return text.replace("[", r"\[")


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(msgspec.json.encode(value).decode(), flush=True)
