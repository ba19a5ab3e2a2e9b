"""Results of the conformance kit, as lines of JSON, and the tables in docs/connectors.md made from them.

Tests call `note_conformance`, which writes when PENSTOCK_CONFORMANCE_RESULTS names a file. `make conformance` runs them
and renders the page.
"""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.testing.connectors import SINK_CHECKS, SOURCE_CHECKS, Conformance, Outcome

__all__ = [
    "PAGE",
    "RESULTS",
    "WHEN_RECORDING",
    "is_recording",
    "missing",
    "note_conformance",
    "rendered",
    "results_in",
]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "connectors" / "conformance.jsonl"
PAGE = ROOT / "docs" / "connectors.md"
_BEGIN = "<!-- conformance: made by `make conformance` -->\n"
_END = "<!-- end of conformance -->\n"


def is_recording() -> Path | None:
    """The file to write results to, if there is one."""
    named = os.environ.get("PENSTOCK_CONFORMANCE_RESULTS")
    return Path(named) if named else None


WHEN_RECORDING = pytest.mark.skipif(
    is_recording() is None,
    reason="it takes half a minute, and another test tries the same code; see make conformance",
)
"""For a connector that is held to the kit only by `make conformance`."""


def note_conformance(found: Conformance, file: Path | None = None) -> None:
    """Require that a connector conforms, and write what came of its checks, in place of what came of them before."""
    found.require()
    file = file or is_recording()
    if file is None:
        return
    known = results_in(file) if file.exists() else []
    kept = [one for one in known if (one.role, one.system) != (found.role, found.system)]
    ordered = sorted([*kept, found], key=lambda one: (one.role, one.system))
    file.write_text("".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in ordered))


def results_in(file: Path) -> list[Conformance]:
    """All results of a file."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [Conformance(**{**row, "outcomes": [Outcome(**one) for one in row["outcomes"]]}) for row in rows]


def rendered(page: str, results: Sequence[Conformance]) -> str:
    """The page with the tables in their place."""
    head, _, rest = page.partition(_BEGIN)
    tables = [
        *_table("sink", ("promise", *SINK_CHECKS), results),
        *_table("source", ("promise", *SOURCE_CHECKS), results),
        "A dash stands for a check that does not apply:\n",
        *_reasons(results),
        "",
    ]
    return f"{head}{_BEGIN}{chr(10).join(tables)}{_END}{rest.partition(_END)[2]}"


def _table(role: str, columns: Sequence[str], results: Sequence[Conformance]) -> list[str]:
    rows = [one.row() for one in results if one.role == role]
    return [f"| {' | '.join((role, *columns))} |", "|---" * (len(columns) + 1) + "|", *rows, ""]


def _reasons(results: Sequence[Conformance]) -> list[str]:
    """Each reason once, with the checks and the connectors that it is for."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in results:
        for outcome in one.outcomes:
            if outcome.verdict == "not applicable":
                names = found.setdefault((outcome.check, outcome.detail), [])
                names += [one.system] if one.system not in names else []
    return [
        textwrap.fill(
            f"- {check}: {reason} ({'; '.join(names)}).",
            100,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for (check, reason), names in sorted(found.items())
    ]


def missing(page: str, results: Sequence[Conformance]) -> list[str]:
    """The rows of the page's tables whose connectors have no results: their tests were skipped, or are gone."""
    tables = page.partition(_BEGIN)[2].partition(_END)[0]
    found = {f"{one.role} {one.system}" for one in results}
    named, role = [], ""
    for line in tables.splitlines():
        system = line.removeprefix("| ").partition(" |")[0]
        if system in ("sink", "source"):
            role = system
        elif line.startswith("| "):
            named.append(f"{role} {system}")
    return [name for name in named if name not in found]


def main() -> None:
    """Render the page, unless connectors that it has are missing."""
    page, results = PAGE.read_text(), results_in(RESULTS)
    absent = missing(page, results)
    if absent:
        raise SystemExit(
            f"{PAGE.relative_to(ROOT)} has connectors that no test has tried this time: {', '.join(absent)}. "
            "See which tests were skipped, and why. If a connector is gone, delete its row."
        )
    PAGE.write_text(rendered(page, results))


if __name__ == "__main__":
    main()
