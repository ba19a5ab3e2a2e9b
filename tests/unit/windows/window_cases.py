"""Loads the cases of windowing, and compares output with Flink's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

__all__ = ["SESSIONS", "Case", "WindowFunction", "case_ids", "check", "load_case", "load_expected"]

DATA = Path(__file__).parents[2] / "data" / "windows"
SESSIONS = frozenset({"session", "dynamic_session", "pt_session"})
ABOUT = {"id", "desc"}
SPEC = ("assigner", "trigger", "evictor", "lateness", "late_output")

Emission = dict[str, Any]
WindowFunction = Callable[[dict[str, Any], Sequence[dict[str, Any]]], Iterable[Emission]]
"""Runs elements through the windows of a spec, and returns the panes and late records in order."""


@dataclass(frozen=True)
class Case:
    """Windows and a stream for them.

    Tags name what cannot be compared: `order_sensitive` if an evictor depends on the order of records in
    merged sessions, which is random in Flink; `harness_artifact` if a processing-time window closes and
    reopens within one instant.
    """

    id: str
    description: str
    spec: dict[str, Any]
    elements: tuple[dict[str, Any], ...]
    tags: frozenset[str] = frozenset()


def case_ids() -> list[str]:
    """The ids of all cases, in order."""
    return sorted(path.stem for path in (DATA / "cases").glob("*.jsonl"))


def load_case(case_id: str) -> Case:
    """Load a case."""
    head, *elements = read_lines(DATA / "cases" / f"{case_id}.jsonl")
    about = head["case"]
    return Case(
        id=about["id"],
        description=about["desc"],
        spec={name: about[name] for name in SPEC},
        elements=tuple(elements),
        tags=frozenset(name for name, value in about.items() if name not in {*ABOUT, *SPEC} and value),
    )


def load_expected(case_id: str) -> list[Emission]:
    """Load Flink's output for a case."""
    return read_lines(DATA / "expected" / f"{case_id}.jsonl")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON Lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(case: Case, emitted: Iterable[Emission], expected: Iterable[Emission]) -> None:
    """Fail unless the output is as expected, except for what is random in Flink.

    Panes fired by timers of one time may be in any order; everything else is in order. The values of sessions
    may be in any order. The fields `cause`, `time` and `seq` of panes are compared where present.
    """
    emitted, expected = list(emitted), list(expected)
    if "harness_artifact" in case.tags:
        assert all_values(emitted) == all_values(expected), f"Case {case.id}: {case.description}"
        return
    position = 0
    for group in groups(expected):
        got = emitted[position : position + len(group)]
        position += len(group)
        ours = [comparable(case, emission, emission) for emission in got]
        # Drop fields that the emitted pane in the same place does not have.
        told = got[0] if got else {}
        theirs = [comparable(case, emission, told) for emission in group]
        if group[0].get("cause", "element") != "element":
            ours, theirs = sorted(ours), sorted(theirs)
        assert ours == theirs, told_difference(case, got, group)
    assert position == len(emitted), told_difference(case, emitted[position:], [])


def groups(expected: Iterable[Emission]) -> Iterator[list[Emission]]:
    """Group emissions with the same cause and time."""
    for _, group in groupby(expected, key=lambda e: (e["at"], e.get("cause"), e.get("time"))):
        yield list(group)


def comparable(case: Case, emission: Emission, told: Emission) -> str:
    """Return what is compared of an emission, in sortable form."""
    if "late" in emission:
        late = {**emission["late"], "v": float(emission["late"]["v"])}
        return json.dumps({"late": late, "at": emission["at"]}, sort_keys=True)
    compared = {name: emission[name] for name in ("key", "start", "end", "ts", "at")}
    compared |= {name: emission.get(name) for name in ("cause", "time") if name in told}
    if "order_sensitive" not in case.tags:
        in_order = sorted if case.spec["assigner"]["type"] in SESSIONS else list
        compared["values"] = in_order(float(value) for value in emission["values"])
        if "seq" in told:
            compared["seq"] = in_order(emission["seq"])
    return json.dumps(compared, sort_keys=True)


def all_values(emissions: Iterable[Emission]) -> dict[Any, list[float]]:
    """Return the values that each window has emitted, in any number of panes, and the late records."""
    found: dict[Any, list[float]] = {}
    for emission in emissions:
        if "late" in emission:
            found.setdefault(("late", emission["late"]["key"]), []).append(float(emission["late"]["v"]))
        else:
            window = (emission["key"], emission["start"], emission["end"])
            found.setdefault(window, []).extend(float(value) for value in emission["values"])
    return {window: sorted(values) for window, values in found.items()}


def told_difference(case: Case, emitted: Sequence[Emission], expected: Sequence[Emission]) -> str:
    """Return a case and its first difference, readable for people."""
    lines = [f"Case {case.id}: {case.description}", f"  of {case.spec}", "expected"]
    lines += [f"  {emission}" for emission in expected] or ["  nothing more"]
    lines.append("but emitted were")
    lines += [f"  {emission}" for emission in emitted] or ["  nothing more"]
    return "\n".join(lines)
