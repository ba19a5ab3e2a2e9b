"""Table cases: random changes of a table, and what Flink makes of them, as the file that the tests of tables read.

`make table-cases` builds the program in `flink_tables`, runs it, and writes the cases. Each has the rows that are left
when all changes have come.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.contestants import MissingToolError
from penstock.machine.java import find_java

__all__ = ["main"]

_PROJECT: Final = Path(__file__).resolve().parent / "flink_tables"
_CASES: Final = Path(__file__).resolve().parents[2] / "tests" / "data" / "tables" / "flink_cases.json"
_OPENED: Final = ("lang", "lang.reflect", "util", "util.concurrent", "nio", "net", "io", "time")
_AGGREGATES: Final = (
    "COUNT(*), COUNT(v), SUM(v), MIN(v), MAX(v), COUNT(DISTINCT v), SUM(DISTINCT v), AVG(CAST(v AS DOUBLE)), "
    "COUNT(*) FILTER (WHERE v > 1), SUM(v) FILTER (WHERE at_ms > 50)"
)

Case = dict[str, Any]


def _changes(chance: random.Random, *, only_inserts: bool) -> list[list[Any]]:
    """Return changes of rows that all differ: kind, key, a value that may be null, and a time."""
    rows: list[list[Any]] = []
    found = []
    # Flink takes a row of the time 0 for a late one.
    times = chance.sample(range(1, 101), 60)
    for at in times[: chance.randrange(15, 60)]:
        kind = (
            "insert" if only_inserts or not rows else chance.choice(["insert", "insert", "update", "delete"])
        )
        if kind != "insert":
            gone = rows.pop(chance.randrange(len(rows)))
            found.append(["-U" if kind == "update" else "-D", *gone])
        if kind != "delete":
            rows.append([chance.choice("abc"), chance.choice([None, 0, 1, 2, 3]), at])
            found.append(["+U" if kind == "update" else "+I", *rows[-1]])
    return found


def _cases(chance: random.Random) -> list[Case]:
    """Return the cases, without what Flink makes of them."""
    found: list[Case] = [{"kind": "aggregate", "changes": number % 3 > 0} for number in range(12)]
    found += [{"kind": "counts of counts", "changes": number % 2 > 0} for number in range(4)]
    found += [
        {"kind": "top", "changes": number % 2 > 0, "count": 2 + number % 3, "descending": number % 3 > 0}
        for number in range(12)
    ]
    found += [
        {"kind": "deduplicate", "changes": False, "keep": ("first", "last")[number % 2]}
        for number in range(6)
    ]
    frames: tuple[Case, ...] = ({"rows": 2}, {"range": 20}, {}, {"rows": 0}, {"range": 7}, {"rows": 5})
    found += [{"kind": "over", "changes": False, **frame} for frame in frames * 2]
    for case in found:
        case["given"] = _changes(chance, only_inserts=not case["changes"])
    return found


def _query(case: Case) -> str:
    kind = case["kind"]
    if kind == "aggregate":
        return f"SELECT k, {_AGGREGATES} FROM c GROUP BY k"
    if kind == "counts of counts":
        return "SELECT n, COUNT(*) FROM (SELECT k, COUNT(*) AS n FROM c GROUP BY k) GROUP BY n"
    if kind == "top":
        order = f"v {'DESC' if case['descending'] else 'ASC'}, at_ms"
        ranked = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order}) AS place FROM c"
        return f"SELECT k, v, at_ms, place FROM ({ranked}) WHERE place <= {case['count']}"
    if kind == "deduplicate":
        order = "ASC" if case["keep"] == "first" else "DESC"
        ranked = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts {order}) AS place FROM c"
        return f"SELECT k, v, at_ms FROM ({ranked}) WHERE place = 1"
    frame = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    if "rows" in case:
        frame = f"ROWS BETWEEN {case['rows']} PRECEDING AND CURRENT ROW"
    elif "range" in case:
        frame = f"RANGE BETWEEN INTERVAL '0.{case['range']:03d}' SECOND PRECEDING AND CURRENT ROW"
    return (
        "SELECT k, v, at_ms, COUNT(*) OVER w, SUM(v) OVER w, MIN(v) OVER w, MAX(v) OVER w FROM c "
        f"WINDOW w AS (PARTITION BY k ORDER BY ts {frame})"
    )


def _line(case: Case, number: int, folder: Path) -> str:
    """Write the changes of a case, and return the line that describes it to the program."""
    path = folder / f"{number}.csv"
    rows = (",".join("null" if one is None else str(one) for one in change) for change in case["given"])
    path.write_text("".join(f"{row}\n" for row in rows))
    return f"{number}\t{'changes' if case['changes'] else 'rows'}\t{path}\t{_query(case)}"


def _value(text: str) -> Any:
    """Return a value that Flink wrote."""
    if text == "null":
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    return float(text) if "." in text else text


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
    command += ["-cp", f"{target / 'classes'}:{target / 'libraries'}/*", "penstock.benchmarks.TableCases"]
    subprocess.run([*command, str(cases), str(results)], check=True)
    return results.read_text().splitlines()


def main() -> int:
    """Write the cases with the rows that Flink has at the end of each."""
    cases = _cases(random.Random(19))
    with tempfile.TemporaryDirectory(prefix="penstock-table-cases-") as name:
        folder = Path(name)
        results = _run([_line(case, number, folder) for number, case in enumerate(cases)], folder)
    tables: list[Counter[tuple[Any, ...]]] = [Counter() for _ in cases]
    for result in results:
        number, kind, *values = result.split("\t")
        tables[int(number)][tuple(map(_value, values))] += 1 if kind in ("+I", "+U") else -1
    for case, table in zip(cases, tables, strict=True):
        case["expected"] = sorted((+table).elements(), key=repr)
    _CASES.parent.mkdir(parents=True, exist_ok=True)
    _CASES.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
