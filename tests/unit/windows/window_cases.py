"""Cases of windowing: loads them, and compares what comes out with what Flink emitted."""

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

    Tags tell what cannot be compared: `order_sensitive` if an evictor goes by the order of the records of merged
    sessions, which is chance in Flink; `harness_artifact` if a window of processing time closes and opens again within
    one instant.
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
    """Load what Flink emitted in a case."""
    return read_lines(DATA / "expected" / f"{case_id}.jsonl")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with a JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(case: Case, emitted: Iterable[Emission], expected: Iterable[Emission]) -> None:
    """Fail unless what was emitted is what was expected, but for what is chance.

    Panes that timers of one time fire may come in any order; everything else comes in order. The values of sessions
    may be in any order. What panes have to tell of their `cause`, `time` and `seq` is compared if they tell it.
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
        # A pane tells no more of itself than the emitted one in its place.
        told = got[0] if got else {}
        theirs = [comparable(case, emission, told) for emission in group]
        if group[0].get("cause", "element") != "element":
            ours, theirs = sorted(ours), sorted(theirs)
        assert ours == theirs, told_difference(case, got, group)
    assert position == len(emitted), told_difference(case, emitted[position:], [])


def groups(expected: Iterable[Emission]) -> Iterator[list[Emission]]:
    """Emissions for the same reason at the same time."""
    for _, group in groupby(expected, key=lambda e: (e["at"], e.get("cause"), e.get("time"))):
        yield list(group)


def comparable(case: Case, emission: Emission, told: Emission) -> str:
    """What is compared of an emission, in a form that has an order."""
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
    """The values that each window has emitted, in any number of panes, and the late records."""
    found: dict[Any, list[float]] = {}
    for emission in emissions:
        if "late" in emission:
            found.setdefault(("late", emission["late"]["key"]), []).append(float(emission["late"]["v"]))
        else:
            window = (emission["key"], emission["start"], emission["end"])
            found.setdefault(window, []).extend(float(value) for value in emission["values"])
    return {window: sorted(values) for window, values in found.items()}


def told_difference(case: Case, emitted: Sequence[Emission], expected: Sequence[Emission]) -> str:
    """A case and the first place where it differs, for people."""
    lines = [f"Case {case.id}: {case.description}", f"  of {case.spec}", "expected"]
    lines += [f"  {emission}" for emission in expected] or ["  nothing more"]
    lines.append("but emitted were")
    lines += [f"  {emission}" for emission in emitted] or ["  nothing more"]
    return "\n".join(lines)
