"""Join cases: random joins, and what Flink emits for them, as the file that the tests of joins read.

`make join-cases` builds the program in `flink_joins`, runs it, and writes the cases. All records come within the
lateness, so what Flink emits does not depend on the order in which it reads them.
"""
# ruff: noqa: S608  # no text in these statements comes from outside

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.contestants import MissingToolError
from penstock.machine.java import find_java

__all__ = ["main"]

_PROJECT: Final = Path(__file__).resolve().parent / "flink_joins"
_CASES: Final = Path(__file__).resolve().parents[2] / "tests" / "data" / "joins" / "flink_cases.json"
_HOWS: Final = ("inner", "left", "right", "full")
_OUTPUT: Final = "l.k, l.v, l.at_ms, r.k, r.v, r.at_ms"
_OPENED: Final = ("lang", "lang.reflect", "util", "util.concurrent", "nio", "net", "io", "time")

Case = dict[str, Any]


def _rows(chance: random.Random, count: int) -> list[list[Any]]:
    """Return records of a key, a value that may be null, and a time, with equal ones among them."""
    return [
        [chance.choice("abcd"), chance.choice([None, 0, 1, 2, 3]), chance.randrange(0, 150)]
        for _ in range(count)
    ]


def _cases(chance: random.Random) -> list[Case]:
    """Return the cases, without what Flink emits."""
    found: list[Case] = []
    for number in range(28):
        lower = chance.randrange(-40, 30)
        found.append(
            {
                "kind": "interval",
                "how": _HOWS[number % 4],
                "lower": lower,
                "upper": lower + chance.randrange(0, 40),
                "condition": chance.choice([None, "<"]),
            }
        )
    found += [{"kind": "as_of", "how": _HOWS[number % 2]} for number in range(16)]
    for number in range(24):
        windows = (["tumble", 20], ["tumble", 35], ["hop", 10, 30], ["hop", 30, 10], ["cumulate", 10, 40])
        found.append(
            {
                "kind": "window",
                "how": _HOWS[number % 4],
                "windows": windows[number % 5],
                "condition": chance.choice([None, "<>"]),
            }
        )
    found += [{"kind": "session", "gap": chance.randrange(3, 15)} for _ in range(8)]
    for case in found:
        case["left"], case["right"] = (_rows(chance, chance.randrange(8, 30)) for _ in range(2))
    return found


def _interval(ms: int) -> str:
    return f"INTERVAL '{abs(ms) / 1000:.3f}' SECOND"


def _plus(ms: int) -> str:
    return f"l.ts {'-' if ms < 0 else '+'} {_interval(ms)}"


def _query(case: Case) -> str:
    """Return the SQL of a case, whose tables are l and r."""
    join = case["how"].upper()
    more = f" AND l.v {case['condition']} r.v" if case.get("condition") else ""
    if case["kind"] == "interval":
        bounds = f"r.ts BETWEEN {_plus(case['lower'])} AND {_plus(case['upper'])}"
        return f"SELECT {_OUTPUT} FROM l {join} JOIN r ON l.k = r.k AND {bounds}{more}"
    if case["kind"] == "as_of":
        versions = (
            "DROP TEMPORARY VIEW IF EXISTS versions;;CREATE TEMPORARY VIEW versions AS SELECT k, v, at_ms, ts FROM "
            "(SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC) AS place FROM r) WHERE place = 1"
        )
        return (
            f"{versions};;SELECT l.k, l.v, l.at_ms, r.k, r.v, r.at_ms FROM l {join} JOIN versions "
            "FOR SYSTEM_TIME AS OF l.ts AS r ON l.k = r.k"
        )
    name, *sizes = case["windows"]
    given = ", ".join(map(_interval, sizes))
    sides = [
        f"(SELECT * FROM TABLE({name.upper()}(TABLE {table}, DESCRIPTOR(ts), {given})))" for table in "lr"
    ]
    bounds = ", ".join(f"CAST(COALESCE(l.{at}, r.{at}) AS STRING)" for at in ("window_start", "window_end"))
    same = "l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end"
    return f"SELECT {_OUTPUT}, {bounds} FROM {sides[0]} l {join} JOIN {sides[1]} r ON {same}{more}"


def _line(case: Case, number: int, folder: Path) -> str:
    """Write the records of a case, and return the line that describes it to the program."""
    files = []
    for side in ("left", "right"):
        files.append(folder / f"{side}-{number}.csv")
        # A view of the latest rows ignores older ones that come later, so versions come in order.
        ordered = sorted(case[side], key=lambda row: row[2]) if case["kind"] == "as_of" else case[side]
        rows = (",".join("null" if one is None else str(one) for one in row) for row in ordered)
        files[-1].write_text("".join(f"{row}\n" for row in rows))
    if case["kind"] == "session":
        return f"{number}\tsession\t{files[0]}\t{files[1]}\t{case['gap']}"
    return f"{number}\tsql\t{files[0]}\t{files[1]}\t{_query(case)}"


def _value(text: str) -> Any:
    """Return a value that Flink wrote: null, a number, a time in milliseconds, or text."""
    if text == "null":
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    if text[:2] in ("19", "20") and ":" in text:
        return round(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000)
    return text


def _rows_of(text: str) -> list[list[Any]]:
    return sorted(([_value(one) for one in row.split(",")] for row in text.split()), key=repr)


def _run(lines: list[str], folder: Path) -> list[str]:
    """Build and run the program, and return its results."""
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolError("Maven is not installed, and builds the program that runs Flink: install mvn.")
    subprocess.run([maven, "--quiet", "--batch-mode", "package"], cwd=_PROJECT, check=True)
    cases, results = folder / "cases.tsv", folder / "results.tsv"
    cases.write_text("".join(f"{line}\n" for line in lines))
    target = _PROJECT / "target"
    command = [str(find_java().java), "-Xmx1g"]
    command += [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
    command += ["-cp", f"{target / 'classes'}:{target / 'libraries'}/*", "penstock.benchmarks.JoinCases"]
    subprocess.run([*command, str(cases), str(results)], check=True)
    return results.read_text().splitlines()


def _add_results(cases: list[Case], results: list[str]) -> None:
    """Put what Flink wrote into the cases, in a fixed order."""
    for case in cases:
        case["expected"] = []
    for result in results:
        number, *values = result.split("\t")
        case = cases[int(number)]
        is_session = case["kind"] == "session"
        case["expected"].append(
            [_rows_of(one) for one in values] if is_session else list(map(_value, values))
        )
    for case in cases:
        case["expected"].sort(key=repr)


def main() -> int:
    """Write the cases with what Flink emits for each of them."""
    cases = _cases(random.Random(17))
    with tempfile.TemporaryDirectory(prefix="penstock-join-cases-") as name:
        folder = Path(name)
        results = _run([_line(case, number, folder) for number, case in enumerate(cases)], folder)
    _add_results(cases, results)
    _CASES.parent.mkdir(parents=True, exist_ok=True)
    _CASES.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
