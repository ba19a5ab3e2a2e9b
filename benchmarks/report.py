"""Reports: measurements as a table for people and as one JSON line for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

__all__ = ["Column", "print_json", "print_markdown", "print_table"]

_WIDTH: Final = 140


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers are right-aligned."""

    name: str
    left: bool = False


def print_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.name, justify="left" if column.left else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Without a terminal Rich uses 80 columns, which is too narrow for the names.
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


def print_markdown(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as Markdown, for the docs."""
    print(f"{title}:\n")
    lines = [[column.name for column in columns], ["---" if one.left else "---:" for one in columns], *rows]
    for line in lines:
        print(f"| {' | '.join(line)} |")
    print()


def print_json(result: dict[str, Any]) -> None:
    """Print an object as one line."""
    print(json.dumps(result), flush=True)
