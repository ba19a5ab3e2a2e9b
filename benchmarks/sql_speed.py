"""SQL: a window, an interval join, an as-of join and Top-N, as SQL of penstock, Flink and Spark, on the same files.

Each contestant is a process that reads bounded Parquet files, computes one query and writes its result. They run in
turns. A run on a hundredth of the rows comes first: its time is the start, and the steady rate is that of the further
rows. All results are compared with DuckDB's by count and checksum. The files of a table are like partitions of a topic,
each in the order of time. Their last record is a day later, so that windows end in Spark, too, which waits for a
later record; its results are left out.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.command import option, run_command
from benchmarks.peers.contestants import build_flink
from benchmarks.processes import ContestantError, Spent, binding_options, run_to_end
from benchmarks.report import note, print_markdown
from benchmarks.sql_statements import QUERIES, Query
from penstock.machine.java import find_java

__all__ = ["Checksum", "Sizes", "measure", "result_of", "show", "wanted_of", "write_input"]

_PROJECT: Final = Path(__file__).resolve().parent / "peers" / "flink_sql"
_SHOWN: Final = {
    "penstock": "penstock",
    "flink": "Flink, state on the heap",
    "spark": "Spark, streams",
    "spark_batch": "Spark, one batch",
}
_FILES: Final = 2
_GROUP_ROWS: Final = 131_072
_LAST: Final = -1
_DAY_MS: Final = 86_400_000
_BEGIN_MS: Final = 1_700_000_000_000
_NULL: Final = np.iinfo(np.int64).min
_START_PART: Final = 100
_HEAP: Final = "4g"
_OPENED: Final = ("lang", "lang.reflect", "util", "util.concurrent", "nio", "net", "io", "time")
# What a change of a row does, by Flink's numbers: +I, -U, +U, -D.
_SIGNS: Final = {0: 1, 1: -1, 2: 1, 3: -1}


@dataclass(frozen=True)
class Sizes:
    """What is measured. Joins have half of the rows on each side, the as-of join a fifth of them in prices."""

    rows: int = 4_000_000
    rows_per_ms: int = 10
    keys: int = 1_000
    join_keys: int = 100_000
    rounds: int = 3
    cores: int = 2
    queries: Sequence[str] = option(tuple(QUERIES), "default: all", choices=tuple(QUERIES))
    contestants: Sequence[str] = option(tuple(_SHOWN), "default: all", choices=tuple(_SHOWN))


class Checksum(NamedTuple):
    """How many rows a result has, and a sum of hashes of its rows, which does not depend on their order."""

    rows: int
    total: int

    @classmethod
    def of(cls, columns: Sequence[npt.NDArray[np.int64]]) -> Checksum:
        """Return that of the bits of columns."""
        hashed = np.zeros(len(columns[0]), np.uint64)
        for column in columns:
            hashed = _mixed(hashed ^ column.view(np.uint64))
        return cls(len(hashed), int(hashed.sum(dtype=np.uint64)))


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread each number over all bits (the finaliser of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def write_input(query: str, folder: Path, sizes: Sizes, rows: int) -> None:
    """Write the tables of a query, of so many rows in all, each as a folder."""
    random = np.random.default_rng(7)
    shares = {"orders": 0.5, "payments": 0.5, "clicks": 0.8, "prices": 0.2}
    span_ms = max(1, rows // sizes.rows_per_ms)
    keys = sizes.keys if query in ("tumble", "top") else sizes.join_keys
    for name, source in QUERIES[query].sources.items():
        count = round(rows * shares.get(name, 1.0))
        # Out of order by up to two seconds.
        at = np.arange(count) * span_ms // count + random.integers(-1000, 1000, count)
        value = random.integers(0, 1_000_000, count) / 4
        chosen = random.integers(0, keys, count)
        if source.versions_of is not None:
            # A version of a key at a time, so that only one is in force.
            pairs = np.unique(np.column_stack([at, chosen]), axis=0)
            at, chosen, value = pairs[:, 0], pairs[:, 1], value[: len(pairs)]
        names = [column.split()[0] for column in source.columns.split(", ")]
        columns = dict(zip(names, (chosen, at + _BEGIN_MS + 1000, value), strict=True))
        _write(folder / name, columns, _BEGIN_MS + span_ms + _DAY_MS)


def _write(folder: Path, columns: Mapping[str, np.ndarray], last_ms: int) -> None:
    """Write each second row to each of two files, and a last record of a key that results leave out."""
    folder.mkdir(parents=True)
    for number in range(_FILES):
        ends = (_LAST, last_ms, 0.0)
        part = {
            name: np.append(column[number::_FILES], end)
            for (name, column), end in zip(columns.items(), ends, strict=True)
        }
        pq.write_table(pa.table(part), folder / f"{number}.parquet", row_group_size=_GROUP_ROWS)


def _bits(columns: Sequence[pa.ChunkedArray]) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of columns as they are stored, one for null."""
    found = []
    for column in columns:
        values = column.combine_chunks()
        numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        numbers = np.ascontiguousarray(numbers, np.float64 if pa.types.is_floating(values.type) else np.int64)
        found.append(np.where(values.is_null().to_numpy(zero_copy_only=False), _NULL, numbers.view(np.int64)))
    return found


def wanted_of(query: Query, data: Path) -> Checksum:
    """Return the checksum of DuckDB's result on the tables of a folder."""
    with duckdb.connect() as database:
        for name in query.sources:
            rows = database.read_parquet(f"{data / name}/*.parquet").filter(f"k <> {_LAST}")
            rows.create_view(name)
        table = database.sql(query.wanted).arrow().read_all()
    columns = [
        table.column(name).cast(pa.int64())
        if not pa.types.is_floating(table.column(name).type)
        else table[name]
        for name in query.names
    ]
    return Checksum.of(_bits(columns))


def result_of(contestant: str, query: Query, out: Path) -> Checksum:
    """Return the checksum of what a contestant has written."""
    signs = None
    if contestant == "flink":
        numbers = np.concatenate([np.fromfile(path, ">i8") for path in sorted(out.glob("*.bin"))])
        rows = numbers.astype(np.int64).reshape(-1, len(query.names) + 1)
        signs = np.array([_SIGNS[kind] for kind in range(4)])[rows[:, 0]]
        bits = [np.ascontiguousarray(rows[:, place]) for place in range(1, rows.shape[1])]
    else:
        table = pa.concat_tables(
            [pq.read_table(path, partitioning=None) for path in sorted(out.rglob("*.parquet"))]
        )
        bits = _bits([table.column(name) for name in query.names])
        if "_change" in table.column_names:
            adds = pc.is_in(table.column("_change"), pa.array(["+I", "+U"])).to_numpy()
            signs = np.where(adds, 1, -1)
    kept = bits[0] != _LAST
    bits = [column[kept] for column in bits]
    if query.changes and signs is not None:
        bits = _after_changes(bits, signs[kept])
    return Checksum.of(bits)


def _after_changes(bits: Sequence[np.ndarray], signs: np.ndarray) -> list[np.ndarray]:
    """Return the rows that are there after all changes."""
    rows, places = np.unique(np.column_stack(bits), axis=0, return_inverse=True)
    counts = np.bincount(places.ravel(), weights=signs, minlength=len(rows)).astype(int)
    left = np.repeat(rows, np.maximum(counts, 0), axis=0)
    return [np.ascontiguousarray(left[:, place]) for place in range(left.shape[1])]


def _command(contestant: str, name: str, data: Path, work: Path, cores: int) -> list[str]:
    """Return the command that runs a query; its results go to the folder `out`."""
    query, out, checkpoint = QUERIES[name], work / "out", work / "checkpoint"
    out.mkdir(parents=True)
    if contestant == "penstock":
        file = work / f"{name}.sql"
        file.write_text(query.penstock_file())
        program = Path(sys.executable).with_name("penstock")
        command = [str(program), "sql", str(file), "--bounded", "--checkpoint", str(checkpoint)]
        command += ["--master", f"local[{cores}]"]
        places = {source: f"parquet:{data / source}" for source in query.sources}
        return command + binding_options({**places, "result": f"parquet:{out}"})
    if contestant == "flink":
        checkpoint.mkdir()
        text = work / "query.sql"
        text.write_text(query.flink)
        command = [str(find_java().java), f"-Xmx{_HEAP}"]
        command += [f"--add-opens=java.base/java.{one}=ALL-UNNAMED" for one in _OPENED]
        libraries = _PROJECT / "target" / "libraries"
        command += ["-cp", f"{_PROJECT / 'target' / 'classes'}:{libraries}/*"]
        command += ["penstock.benchmarks.SqlStatements", str(text), str(cores), str(checkpoint), str(out)]
        command.append("changes" if query.changes else "rows")
        for source, one in query.sources.items():
            command += [source, str(data / source), one.time, str(one.delay_s), one.versions_of or "-"]
        return command
    command = [sys.executable, "-m", "benchmarks.sql_peer", name, "--data", str(data), "--output", str(out)]
    command += ["--checkpoint", str(checkpoint), "--cores", str(cores)]
    return [*command, "--batch"] if contestant == "spark_batch" else command


def _run(contestant: str, name: str, data: Path, work: Path, cores: int) -> tuple[Spent, Checksum]:
    spent = run_to_end(_command(contestant, name, data, work, cores), work / "log")
    found = result_of(contestant, QUERIES[name], work / "out")
    shutil.rmtree(work)
    return spent, found


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure each query with each contestant, in turns. Raises ContestantError if a result is wrong."""
    if "flink" in sizes.contestants:
        build_flink(_PROJECT)
    small = max(1, sizes.rows // _START_PART)
    runs: list[dict[str, Any]] = []
    for name in sizes.queries:
        query = QUERIES[name]
        for part, rows in (("whole", sizes.rows), ("start", small)):
            write_input(name, work / part / name, sizes, rows)
        wanted = wanted_of(query, work / "whole" / name)
        note(f"{name}: {wanted.rows:,} rows are wanted")
        for number in range(sizes.rounds):
            for contestant in sizes.contestants:
                if contestant == "spark" and query.why_batch is not None:
                    continue
                place = work / f"{contestant}-{name}-{number}"
                start, _ = _run(contestant, name, work / "start" / name, place, sizes.cores)
                spent, found = _run(contestant, name, work / "whole" / name, place, sizes.cores)
                if found != wanted:
                    raise ContestantError(f"{contestant} has {found} for {name}, and DuckDB {wanted}.")
                # On a busy machine the whole run can take less than the start did.
                steady_s = spent.seconds - start.seconds
                runs.append(
                    {
                        "query": name,
                        "round": number,
                        "contestant": contestant,
                        "start_s": round(start.seconds, 1),
                        "whole_s": round(spent.seconds, 1),
                        "steady_per_s": round((sizes.rows - small) / steady_s) if steady_s > 0 else None,
                        "start_cpu_s": round(start.cpu_s, 1),
                        "steady_cpu_s": round(spent.cpu_s - start.cpu_s, 1),
                        "memory_mb": spent.memory_mb,
                    }
                )
                note(runs[-1])
        shutil.rmtree(work / "whole" / name)
    return {"rows": sizes.rows, "cores": sizes.cores, "rounds": sizes.rounds, "runs": runs}


def show(result: dict[str, Any]) -> None:
    """Print a table of each query: medians of the rounds, and how many times as fast penstock was in them."""
    measured = ["steady rows/s", "ratio", "CPU, steady", "ratio", "start", "its CPU", "whole", "memory"]
    for name in dict.fromkeys(run["query"] for run in result["runs"]):
        query = QUERIES[name]
        runs = [run for run in result["runs"] if run["query"] == name]
        own = {run["round"]: run for run in runs if run["contestant"] == "penstock"}
        rows = []
        for contestant in dict.fromkeys(run["contestant"] for run in runs):
            some = [run for run in runs if run["contestant"] == contestant]
            pairs = [(own[run["round"]], run) for run in some if run["round"] in own]
            is_peer = contestant != "penstock"
            rows.append(
                [
                    _SHOWN[contestant],
                    _middle([run["steady_per_s"] for run in some], "{:,.0f}"),
                    _middle([_ratio(mine, run, "steady_per_s") for mine, run in pairs if is_peer], "{:.1f}x"),
                    _middle([run["steady_cpu_s"] for run in some], "{:.1f} s"),
                    _middle([_ratio(run, mine, "steady_cpu_s") for mine, run in pairs if is_peer], "{:.1f}x"),
                    _middle([run["start_s"] for run in some], "{:.0f} s"),
                    _middle([run["start_cpu_s"] for run in some], "{:.0f} s"),
                    _middle([run["whole_s"] for run in some], "{:.0f} s"),
                    _middle([run["memory_mb"] / 1000 for run in some], "{:.1f} GB"),
                ]
            )
        reason = "" if query.why_batch is None else f"; in Spark {query.why_batch}"
        print_markdown(f"{query.about} ({result['rows']:,} rows{reason})", ["", *measured], rows, left=("",))


def _ratio(one: Mapping[str, Any], other: Mapping[str, Any], what: str) -> float | None:
    return one[what] / other[what] if one[what] and other[what] else None


def _middle(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(statistics.median(known)) if known else ""


if __name__ == "__main__":
    run_command(Sizes, measure, show)
