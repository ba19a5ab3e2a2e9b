"""Malformed and hostile statements in SQL: mutations of statements that are right, and attempts to reach out."""
# ruff: noqa: E501  # a statement is one line

from __future__ import annotations

import random
import re

from sql_cases import CASES

ATTEMPTS = [
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM `../secret.jsonl`",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM TABLE(read_parquet('s3://bucket/x'))",
    "SELECT read_text('/etc/passwd') AS t FROM readings",
    "SELECT load_extension('x.so') AS t FROM readings",
    "SELECT getenv('HOME') AS t FROM readings",
    "SELECT pg_read_file('/etc/passwd') AS t FROM readings",
    "SELECT __import__('os') AS t FROM readings",
    "SELECT java_method('java.lang.System', 'exit', 1) AS t FROM readings",
    "SELECT reflect('java.lang.Runtime', 'getRuntime') AS t FROM readings",
    "SELECT now() AS t FROM readings",
    "SELECT random() AS t FROM readings",
    "SELECT ${HOME} AS t FROM readings",
    "SELECT ${limit.__class__} AS t FROM readings",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM readings; DROP TABLE readings",
    "COPY readings TO '/tmp/x'",
    "COPY readings FROM '/etc/passwd'",
    "INSERT INTO out VALUES (1, 2)",
    "INSERT INTO '/tmp/x' SELECT * FROM readings",
    'INSERT INTO "a/b" SELECT * FROM readings',
    "INSERT INTO readings SELECT * FROM readings",
    "INSERT INTO receipts SELECT * FROM readings",
    "INSERT INTO a.b SELECT * FROM readings",
    "INSERT OVERWRITE out SELECT * FROM readings",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT * FROM readings",
    "ATTACH '/tmp/x.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET memory_limit",
    "SET 'x' = (SELECT 1)",
    "SET 'x' = current_user()",
    "SET '__class__' = 1",
    "CALL pragma_version()",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "ADD JAR '/tmp/x.jar'",
    "CREATE FUNCTION f AS 'os:system'",
    "CREATE FUNCTION f AS '../os:system'",
    "CREATE FUNCTION f LANGUAGE PYTHON AS 'x'",
    "CREATE TABLE t AS SELECT * FROM readings",
    "CREATE EXTERNAL TABLE t (a INT) LOCATION '/etc'",
    "CREATE STREAM t (a INT) WITH ('path' = '/etc/passwd')",
    "CREATE STREAM t (a ROW<b INT>)",
    "CREATE STREAM t (a INT, a INT)",
    "CREATE STREAM t (__a INT)",
    "CREATE STREAM readings (a INT)",
    "CREATE STREAM t (a INT, WATERMARK FOR b AS b)",
    "CREATE STREAM t (a STRING, WATERMARK FOR a AS a)",
    "CREATE TABLE t (a INT, WATERMARK FOR a AS a)",
    "CREATE VIEW readings AS SELECT 1",
    "CREATE VIEW v AS SELECT * FROM v",
    "DELETE FROM readings",
    "UPDATE readings SET id = 1",
    "MERGE INTO readings USING visits ON TRUE WHEN MATCHED THEN DELETE",
    "SELECT * FROM readings TABLESAMPLE (10 PERCENT)",
    "SELECT * FROM readings, visits",
    "SELECT * FROM readings LATERAL VIEW explode(note) t AS x",
    "SELECT * FROM readings CROSS JOIN UNNEST(note) AS t",
    "SELECT * FROM readings WHERE id IN (SELECT id FROM visits)",
    "SELECT * FROM readings WHERE EXISTS (SELECT 1 FROM visits)",
    "SELECT (SELECT max(id) FROM visits) AS m FROM readings",
    "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT * FROM t",
    "SELECT * FROM readings PIVOT (SUM(n) FOR room IN ('a'))",
    "SELECT id INTO OUTFILE '/tmp/x' FROM readings",
    "SELECT id FROM readings FOR UPDATE",
    "SELECT COUNT(*) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(note), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT COUNT(*) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '0' MINUTE)) GROUP BY window_start, window_end",
    "SELECT COUNT(*) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '-1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT COUNT(*) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), 5)) GROUP BY window_start, window_end",
    "SELECT COUNT(*) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start",
    "SELECT room FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT SUM(note) AS s FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT SUM(COUNT(*)) AS s FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT COUNT(DISTINCT *) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT COUNT(DISTINCT id, n) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT SUM(DISTINCT note) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT COUNT(DISTINCT split(note, 'a')) AS c FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT * FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE))",
    "SELECT * FROM TABLE(SESSION(TABLE readings, DESCRIPTOR(seen), INTERVAL '1' MINUTE))",
    "SELECT id AS seen FROM readings",
    "SELECT id, id FROM readings",
    "SELECT id + 1 FROM readings WHERE",
    "SELECT id FROM readings UNION SELECT id FROM visits",
    "SELECT id FROM readings INTERSECT SELECT id FROM visits",
    "SELECT id FROM readings UNION ALL SELECT room FROM visits",
    "SELECT id FROM readings UNION ALL SELECT id, room FROM visits",
    "SELECT DISTINCT id FROM readings",
    "SELECT COUNT(DISTINCT *) AS c FROM readings",
    "SELECT r.id FROM readings r JOIN visits v ON r.room = v.room",
    "SELECT r.id FROM readings r JOIN visits v ON r.id > v.id",
    "SELECT r.id FROM readings r JOIN visits v USING (room)",
    "SELECT r.id FROM readings r NATURAL JOIN visits v",
    "SELECT r.id FROM readings r CROSS JOIN visits v",
    "SELECT r.id FROM readings r JOIN readings r ON r.id = r.id",
    "SELECT room FROM readings r JOIN visits v ON r.room = v.room AND v.seen BETWEEN r.seen AND r.seen + INTERVAL '1' HOUR",
    "SELECT r.id FROM readings r JOIN visits v ON r.room = v.room AND v.seen BETWEEN r.seen + INTERVAL '2' HOUR AND r.seen",
    "SELECT r.id FROM readings r JOIN visits FOR SYSTEM_TIME AS OF r.day AS v ON r.room = v.room",
    "SELECT r.id FROM readings r RIGHT JOIN visits FOR SYSTEM_TIME AS OF r.seen AS v ON r.room = v.room",
    "SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS n FROM readings",
    "SELECT id FROM (SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS n FROM readings) t WHERE n > 3",
    "SELECT id FROM (SELECT id, ROW_NUMBER() OVER (ORDER BY celsius) AS n FROM readings) t WHERE n < 3",
    "SELECT id, RANK() OVER (ORDER BY seen) AS n FROM readings",
    "SELECT id, SUM(n) OVER (ORDER BY id) AS n2 FROM readings",
    "SELECT id, SUM(n) OVER (ORDER BY seen ROWS BETWEEN CURRENT ROW AND 3 FOLLOWING) AS n2 FROM readings",
    "SELECT COUNT(*) AS c FROM TABLE(TUMBLE(TABLE g, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
    "SELECT id FROM readings ORDER BY id",
    "SELECT id FROM readings LIMIT 5",
    "EXPLAIN ANALYZE SELECT id FROM readings",
    "EXPLAIN DROP TABLE x",
    "SELECT 1",
    "",
    ";;;",
    "'",
    "/*",
    "\x00",
    "\ud800",
    "SELECT " + "(" * 400 + "1" + ")" * 400 + " AS x FROM readings",
    "SELECT * FROM " + "(SELECT * FROM " * 60 + "readings" + ") t" * 60,
    "SELECT id FROM readings WHERE " + "NOT " * 500 + "ok",
    "SELECT id FROM readings" + " UNION ALL SELECT id FROM readings" * 30 + " UNION SELECT id FROM visits",
    "SELECT " + ", ".join(f"id AS c{n}" for n in range(300)) + ", FROM readings",
    "SELECT id AS " + "x" * 100_000 + " FROM nothing",
    "SELECT " + "9" * 5000 + " AS x FROM nothing",
    "SELECT id FROM TABLE(" + "9" * 5000 + ")",
]  # fmt: skip

WORDS = [
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "UNION", "ALL", "JOIN", "ON", "AS", "(", ")", ",", ";", "*",
    "'", '"', "`", "--", "/*", "${", "}", "${limit}", "TABLE", "TUMBLE", "HOP", "DESCRIPTOR", "INTERVAL", "NULL",
    "'5'", "MINUTE", "OVER", "PARTITION", "ORDER", "LIMIT", "1e999", "9223372036854775808", "readings", "nothing",
    "window_start", "window_time", "COUNT(*)", "SUM(", "CASE", "END", "WITH", "INSERT INTO x", "CREATE VIEW v AS",
    "SET 'x' = 1;", "\\", "\x00", "\n", "::", ":", "?", "@", "$", "=>", "[0]", ".x", "FOR SYSTEM_TIME AS OF",
    "LATERAL", "VALUES (1)", "EXPLAIN", "DISTINCT", "FILTER (WHERE", "CAST(", "ARRAY<", "DECIMAL(99, 98)", "é", "💥",
]  # fmt: skip


def mutated(rng: random.Random) -> str:
    """A statement with a few changes, of which most make it wrong."""
    text = rng.choice(CASES).text() if rng.random() < 0.8 else rng.choice(ATTEMPTS[:90])
    head, _, body = text.rpartition("\n")
    parts = re.findall(r"\s+|\w+|\W", body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(parts) + 1)
        match rng.randrange(6):
            case 0:
                parts[at : at + rng.randint(1, 3)] = []
            case 1:
                parts.insert(at, f" {rng.choice(WORDS)} ")
            case 2 if parts:
                parts[at % len(parts)] = rng.choice(WORDS)
            case 3:
                parts = parts[:at] or [" "]
            case 4 if len(parts) > 2:
                other = rng.randrange(len(parts))
                at %= len(parts)
                parts[at], parts[other] = parts[other], parts[at]
            case _:
                parts[at:at] = parts[at // 2 : at]
    return f"{head}\n{''.join(parts)}" if head else "".join(parts)
