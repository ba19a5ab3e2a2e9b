"""Reports: measurements as a table for people and as one JSON line for programs, and progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

__all__ = ["note", "print_facts", "print_json", "print_markdown", "print_table"]

_WIDTH: Final = 140


def note(what: object) -> None:
    """Tell how far a benchmark is, on standard error."""
    print(what, file=sys.stderr, flush=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = ()
) -> None:
    """Print a table. Numbers are right-aligned, and the columns in `left` left-aligned."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Without a terminal Rich uses 80 columns, which is too narrow for the names.
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print a table of measurements by what they are."""
    print_table(title, ("measured", "value"), list(facts.items()), left=("measured",))


def print_markdown(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = ()
) -> None:
    """Print a table as Markdown, for the docs."""
    print(f"{title}:\n")
    for line in [columns, ["---" if one in left else "---:" for one in columns], *rows]:
        print(f"| {' | '.join(line)} |")
    print()


def print_json(result: dict[str, Any]) -> None:
    """Print an object as one line."""
    print(json.dumps(result), flush=True)
