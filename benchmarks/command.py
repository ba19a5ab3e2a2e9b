"""Commands: a benchmark as a program whose options are the fields of its sizes."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import tempfile
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import print_json

__all__ = ["option", "run_command"]


def option(default: Any, help_text: str = "", *, choices: Sequence[str] | None = None) -> Any:
    """Return a field of sizes with its `--help` text and its allowed values."""
    return dataclasses.field(default=default, metadata={"help": help_text, "choices": choices})


def run_command(
    sizes: type,
    measure: Callable[..., dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    flags: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read the options, measure in a temporary folder, show the result, and with --json print it.

    Args:
        sizes: a dataclass; each field with a default of a simple type is an option.
        measure: takes the sizes, the folder, and each flag by its name.
        show: prints the measurements for people.
        flags: further options that are on or off, with their `--help` texts.

    """
    module = sys.modules[sizes.__module__]
    file = Path(str(module.__file__))
    # A package is run by its `__main__`.
    name = f"benchmarks.{file.parent.name if file.stem == '__main__' else file.stem}"
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=module.__doc__)
    hints = typing.get_type_hints(sizes)
    for field in dataclasses.fields(sizes):
        many = typing.get_origin(hints[field.name]) is not None and isinstance(field.default, tuple)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_type_of(hints[field.name]),
            nargs="*" if many else None,
            default=field.default,
            help=field.metadata.get("help") or "default: %(default)s",
            choices=field.metadata.get("choices"),
        )
    for flag, help_text in (flags or {}).items():
        parser.add_argument(f"--{flag.replace('_', '-')}", action="store_true", help=help_text)
    parser.add_argument("--json", action="store_true", help="print the result as one line as well")
    parser.add_argument("-o", choices=("text", "json"), default="text", help="json: as --json")
    given = vars(parser.parse_args())
    as_json = bool(given.pop("json")) | (given.pop("o") == "json")
    chosen = {flag: given.pop(flag) for flag in flags or {}}
    # Contestants have sessions of their own, and would stay if this process just ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as work:
        result = measure(sizes(**given), Path(work), **chosen)
    show(result)
    if as_json:
        print_json(result)
    return result


def _type_of(hint: Any) -> type:
    """Return the simple type in a hint: int for `int | None` and `Sequence[int]`."""
    found: type = next((one for one in typing.get_args(hint) if one is not type(None)), hint)
    return found
