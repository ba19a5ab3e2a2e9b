"""SQL statements: the queries of the benchmark of SQL, for each engine, and for DuckDB, which says what is right."""
# ruff: noqa: S608  # no text in these statements comes from outside

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["QUERIES", "Query", "Source"]

COUNT: Final = 10


@dataclass(frozen=True)
class Source:
    """A table of a query: its columns in penstock's SQL, its event time, its delay, and what identifies a version."""

    columns: str
    time: str = "ms"
    delay_s: int = 2
    versions_of: str | None = None


@dataclass(frozen=True)
class Query:
    """One query in the words of each engine.

    `columns` are those of the result, a kind of change aside. `spark` is a query of streams, or with `spark_batch` one
    of plain tables, where Spark cannot say it of streams; `why_batch` says what it cannot.
    """

    about: str
    sources: Mapping[str, Source]
    columns: str
    penstock: str
    flink: str
    spark: str
    wanted: str
    why_batch: str | None = None
    changes: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns of the result."""
        return [column.split()[0] for column in self.columns.split(", ")]

    def penstock_file(self) -> str:
        """Return the SQL file of penstock."""
        streams = [
            f"CREATE STREAM {name} (\n  {one.columns},\n"
            f"  WATERMARK FOR {one.time} AS {one.time} - INTERVAL '{one.delay_s}' SECOND\n);"
            for name, one in self.sources.items()
        ]
        return "\n".join([*streams, f"INSERT INTO result\n{self.penstock};\n"])


_READINGS: Final = Source("k BIGINT NOT NULL, ms BIGINT NOT NULL, reading DOUBLE NOT NULL")
_AGGREGATES: Final = (
    "COUNT(*) AS n, SUM(reading) AS total, MIN(reading) AS low, MAX(reading) AS high, AVG(reading) AS mean"
)

_TUMBLE: Final = Query(
    about="windows of 10 s: count, sum, minimum, maximum and mean of each key",
    sources={"readings": _READINGS},
    columns="k BIGINT, begun BIGINT, n BIGINT, total DOUBLE, low DOUBLE, high DOUBLE, mean DOUBLE",
    penstock=f"""SELECT k, unix_millis(window_start) AS begun, {_AGGREGATES}
FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ms), INTERVAL '10' SECOND))
GROUP BY k, window_start, window_end""",
    flink=f"""SELECT k, window_start AS begun, {_AGGREGATES}
FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '10' SECOND))
GROUP BY k, window_start, window_end""",
    spark=f"""SELECT k, unix_millis(window.start) AS begun, n, total, low, high, mean FROM (
  SELECT k, window(ts, '10 seconds') AS window, {_AGGREGATES}
  FROM readings GROUP BY k, window(ts, '10 seconds'))""",
    wanted=f"SELECT k, ms - ms % 10000 AS begun, {_AGGREGATES} FROM readings GROUP BY k, begun",
)

_ORDERS: Final = Source("k BIGINT NOT NULL, ms BIGINT NOT NULL, amount DOUBLE NOT NULL")
_PAYMENTS: Final = Source("k BIGINT NOT NULL, ms BIGINT NOT NULL, paid DOUBLE NOT NULL")
_PAIRED: Final = "o.k AS k, o.ms AS ordered, o.amount AS amount, p.ms AS paid_at, p.paid AS paid"

_INTERVAL: Final = Query(
    about="orders with the payments of their key within 10 s",
    sources={"orders": _ORDERS, "payments": _PAYMENTS},
    columns="k BIGINT, ordered BIGINT, amount DOUBLE, paid_at BIGINT, paid DOUBLE",
    penstock=f"""SELECT {_PAIRED}
FROM orders AS o JOIN payments AS p
ON o.k = p.k AND p.ms BETWEEN o.ms AND o.ms + INTERVAL '10' SECOND""",
    flink=f"""SELECT {_PAIRED}
FROM orders AS o JOIN payments AS p
ON o.k = p.k AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '10' SECOND""",
    spark=f"""SELECT {_PAIRED}
FROM orders AS o JOIN payments AS p
ON o.k = p.k AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '10' SECOND""",
    wanted=f"SELECT {_PAIRED} FROM orders AS o JOIN payments AS p "
    "ON o.k = p.k AND p.ms BETWEEN o.ms AND o.ms + 10000",
)

_CLICKS: Final = Source("k BIGINT NOT NULL, ms BIGINT NOT NULL, cost DOUBLE NOT NULL")
_PRICES: Final = Source("k BIGINT NOT NULL, ms BIGINT NOT NULL, price DOUBLE NOT NULL", versions_of="k")
_PRICED: Final = "c.k AS k, c.ms AS ms, c.cost AS cost, p.price AS price"

_AS_OF: Final = Query(
    about="clicks with the price of their key at their time",
    sources={"clicks": _CLICKS, "prices": _PRICES},
    columns="k BIGINT, ms BIGINT, cost DOUBLE, price DOUBLE",
    penstock=f"""SELECT {_PRICED}
FROM clicks AS c LEFT JOIN prices FOR SYSTEM_TIME AS OF c.ms AS p ON c.k = p.k""",
    flink=f"""SELECT {_PRICED}
FROM clicks AS c LEFT JOIN prices FOR SYSTEM_TIME AS OF c.ts AS p ON c.k = p.k""",
    # The usual words for it: prices and clicks in one order, each click after the prices of its time.
    spark="""SELECT k, ms, cost, price FROM (
  SELECT k, ms, cost, is_click,
    LAST_VALUE(price) IGNORE NULLS OVER (PARTITION BY k ORDER BY ms, is_click
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS price
  FROM (SELECT k, ms, cost, CAST(NULL AS DOUBLE) AS price, TRUE AS is_click FROM clicks
    UNION ALL SELECT k, ms, NULL, price, FALSE FROM prices)) WHERE is_click""",
    wanted=f"SELECT {_PRICED} FROM clicks AS c ASOF LEFT JOIN prices AS p ON c.k = p.k AND c.ms >= p.ms",
    why_batch="streams have no as-of join",
)

_FIRST: Final = f"""SELECT k, ms, reading FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY reading DESC, ms) AS place FROM readings)
WHERE place <= {COUNT}"""

_TOP: Final = Query(
    about=f"the {COUNT} largest readings of each key",
    sources={"readings": _READINGS},
    columns="k BIGINT, ms BIGINT, reading DOUBLE",
    penstock=_FIRST,
    flink=_FIRST,
    spark=_FIRST,
    wanted=_FIRST,
    why_batch="streams have no windows that are not of time",
    changes=True,
)

QUERIES: Final[Mapping[str, Query]] = {
    "tumble": _TUMBLE,
    "interval": _INTERVAL,
    "as_of": _AS_OF,
    "top": _TOP,
}
"""The queries by name."""
