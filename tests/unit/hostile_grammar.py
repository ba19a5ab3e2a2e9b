"""A grammar of SQL that a job may not say, or says wrongly: joins, windows, parameters, views, functions, files."""
# ruff: noqa: E501  # a rule is one line

from __future__ import annotations

import random
import re

__all__ = ["statement"]

_DEPTH = 5
_RULES = {
    "statement": """
        <select> | <select> | <select> | <select> | <select> | <view>; SELECT * FROM w | SET <setting>; <select>
        | CREATE FUNCTION <function>; <select> | CREATE <declaration>; <select> | INSERT <insertion> | <words>
        | EXPLAIN <explained> | <deep> | <deep>
    """,
    "select": """
        SELECT <item> FROM <table> | SELECT <item>, <item> FROM <table> <join> | SELECT <item> FROM <table> <clause>
        | SELECT <item> FROM <table> <join> <join> | SELECT <item> FROM <table> <join> <clause>
        | SELECT <modifier> <item> FROM <table> | SELECT <item>, COUNT(*) AS c FROM <window> <grouping> <clause>
        | SELECT <item> FROM <window> r <kind> JOIN <window> v ON <pairs> | WITH w AS (<select>) SELECT * FROM w
        | SELECT <item> FROM (SELECT *, ROW_NUMBER() <over> AS k FROM <table>) t WHERE <value> | <select> <union> <select>
    """,
    "item": "<value> AS a | <value> | <value> AS b | <column> | * | <value> AS <odd name>",
    "odd name": "__x | seen | window_start | `é` | \"a b\" | 'x' | 1 | _change | select | a.b",
    "modifier": "DISTINCT | ALL | TOP 5 | STRAIGHT_JOIN | /*+ x */ | DISTINCT ON (id) | HIGH_PRIORITY",
    "column": """
        id | room | sensor | celsius | amount | n | note | ok | day | seen | minutes | nothing | window_start | window_end
        | window_time | r.id | v.id | r.seen | v.seen | r.room | v.room | r.* | x.* | __class__ | _change | r | `room`
        | "seen" | "a b" | é | r\u043eom | a.b.c.d | a.b.c.d.e | readings.id | id.x | k
    """,
    "literal": """
        1 | 0 | -1 | 1e999 | <nines> | 'x' | '' | NULL | TRUE | 1.5 | 0x10 | 1_000 | X'00' | <time span> | <time span>
        | TIMESTAMP 'x' | TIMESTAMP '2024-01-01' | DATE '2024-13-01' | DATE '0000-00-00' | '2024-01-01' | ${limit}
        | ${wanted} | ${nope} | ${ | ${limit.__class__} | ARRAY[1, 2] | MAP['a', 1] | (SELECT 1) | PROCTIME()
        | CURRENT_TIMESTAMP | <long text> | '\u202eabc' | '\x00' | '\ud800' | \U0001d7d9 | \uff11 | '\u200b' | ? | :x | @x | $1
    """,
    "time span": """
        INTERVAL '5' MINUTE | INTERVAL '10' MINUTE | INTERVAL '0' SECOND | INTERVAL '-5' MINUTE | INTERVAL '1' MONTH
        | INTERVAL '1' YEAR | INTERVAL 'x' MINUTE | INTERVAL '1.5' SECOND | INTERVAL '1:2' MINUTE TO SECOND
        | INTERVAL '99999999999' DAY | INTERVAL <value> SECOND | INTERVAL '5' MINUTE | INTERVAL 5 MINUTE | INTERVAL '' DAY
    """,
    "value": """
        <column> | <column> | <column> | <literal> | <literal> | <value> <operator> <value> | <called>(<value>)
        | <called>(<value>, <value>) | <called>() | <called>(DISTINCT <value>) | <called>(<value>) FILTER (WHERE <value>)
        | <called>(<value>) <over> | CAST(<value> AS <type>) | CASE WHEN <value> THEN <value> END | (<value>)
        | CASE <value> WHEN <value> THEN <value> ELSE <value> END | <value> BETWEEN <value> AND <value>
        | <value> IN (<value>, <value>) | <value> IN (<select>) | EXISTS (<select>) | <value> IS NOT NULL | <value>[<value>]
        | <value>.x | NOT <value> | - <value> | COUNT(*) | EXTRACT(<column> FROM <value>)
    """,
    "operator": "+ | - | * | / | % | DIV | || | = | <> | < | >= | <=> | AND | OR | LIKE | RLIKE | :: | -> | @> | ^ | & | COLLATE | IS DISTINCT FROM | AT TIME ZONE",
    "called": """
        COUNT | SUM | AVG | MIN | MAX | ABS | UPPER | SPLIT | COALESCE | TUMBLE | ROW_NUMBER | RANK | LAG | UNNEST
        | DESCRIPTOR | FIRST_VALUE | LISTAGG | STDDEV | NTILE | DATE_TRUNC | REGEXP_REPLACE | NAMED_STRUCT | NULLIF | IF
        | ARRAY_AGG | ANY_VALUE | read_csv | read_text | getenv | load_extension | f | a.f | f.g.h | system | eval
    """,
    "type": "INT | DOUBLE | STRING | DECIMAL(99, 98) | DECIMAL(10, 2) | ARRAY<INT> | ROW<a INT> | x | TIMESTAMP | JSON | VARCHAR(5) | VARIANT | MAP<INT> | STRUCT<> | DECIMAL(-1)",
    "over": """
        OVER (PARTITION BY <column> ORDER BY <column>) | OVER (ORDER BY <value> DESC) | OVER () | OVER w
        | OVER (PARTITION BY <value> ORDER BY seen ROWS BETWEEN <literal> PRECEDING AND CURRENT ROW)
        | OVER (PARTITION BY room ORDER BY seen RANGE BETWEEN <time span> PRECEDING AND CURRENT ROW)
        | OVER (ORDER BY seen GROUPS 3 PRECEDING) | OVER (ORDER BY seen ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING)
        | OVER (ORDER BY seen ROWS 3 PRECEDING EXCLUDE TIES) | OVER (PARTITION BY room ORDER BY seen NULLS LAST)
    """,
    "table": """
        readings | visits | readings r | visits AS v | readings r | visits v | w | nothing | (<select>) t | <window> | <place>
        | readings AS r (a, b) | main.readings | a.b.c.readings | readings TABLESAMPLE (1 ROWS) | (VALUES (1)) t | (<table>)
        | readings FOR SYSTEM_TIME AS OF r.seen AS v | visits FOR SYSTEM_TIME AS OF <value> AS v | readings VERSION AS OF 1
        | places FOR SYSTEM_TIME AS OF PROCTIME() AS v | places
        | UNNEST(<value>) AS t (x) | LATERAL (<select>) t | readings, visits | TABLE(<value>) | JSON_TABLE(note, '$') t
    """,
    "place": """
        '/etc/passwd' | "/etc/passwd" | 'file:///etc/passwd' | 's3://bucket/x.parquet' | read_csv('/etc/passwd')
        | read_parquet(<value>) | TABLE(read_text('/etc/passwd')) | csv.`/etc/passwd` | "../x.jsonl" | glob('*') | 'x.db'.t
        | information_schema.tables | pg_catalog.pg_class | sqlite_master | postgres_scan('host=x') | `https://x/y.csv`
    """,
    "window": "TABLE(<windows>(<windowed>, <described>, <sizes>)) | <windows>(<windowed>, <described>, <sizes>) | TABLE(<windows>(<sizes>, <described>, <windowed>)) | TABLE(<windows>())",
    "windows": "TUMBLE | HOP | CUMULATE | SESSION | tumble | GENERATE_SERIES | ML_PREDICT",
    "windowed": "TABLE readings | TABLE visits | TABLE readings PARTITION BY room | TABLE readings PARTITION BY <value> | TABLE w | (<select>) | DATA => TABLE readings | TABLE <place> | <value>",
    "described": "DESCRIPTOR(seen) | DESCRIPTOR(seen) | DESCRIPTOR(seen) | DESCRIPTOR(<column>) | DESCRIPTOR(seen, day) | DESCRIPTOR() | seen | TIMECOL => DESCRIPTOR(seen) | DESCRIPTOR(<value>)",
    "sizes": "INTERVAL '5' MINUTE | INTERVAL '5' MINUTE, INTERVAL '10' MINUTE | <time span> | <time span>, <time span> | <time span>, <time span>, <time span> | <value> | SIZE => <time span>",
    "kind": "LEFT | RIGHT | FULL | CROSS | SEMI | ANTI | ASOF | NATURAL | INNER | LEFT OUTER | LATERAL |",
    "join": "<kind> JOIN <table> ON <pairs> | <kind> JOIN <table> ON <pairs> | <kind> JOIN <table> USING (room) | <kind> JOIN <table> | CROSS JOIN <table> | , <table>",
    "pairs": """
        r.room = v.room AND v.seen BETWEEN r.seen AND r.seen + <time span> | r.room = v.room AND <value> | <value> | TRUE
        | r.room = v.room AND r.window_start = v.window_start AND r.window_end = v.window_end | r.room = v.room
        | r.room = v.room AND v.seen > <value> | r.room = v.room OR r.id = v.id | r.room = r.room AND v.seen BETWEEN <value> AND <value>
    """,
    "clause": """
        WHERE <value> | <grouping> | <grouping> HAVING <value> | ORDER BY id | LIMIT 1 | QUALIFY ROW_NUMBER() <over> = 1
        | OFFSET 1 ROWS | FETCH FIRST 1 ROW ONLY | WINDOW w AS (ORDER BY id) | FOR UPDATE | INTO OUTFILE '/tmp/x' | INTO x
        | FORMAT JSON | SETTINGS x = 1 | EMIT CHANGES | LATERAL VIEW explode(note) t AS x | MATCH_RECOGNIZE (PATTERN (A)) | PIVOT (SUM(n) FOR room IN ('a'))
    """,
    "grouping": "GROUP BY room, window_start, window_end | GROUP BY <value> | GROUP BY <value>, <value> | GROUP BY ROLLUP (room) | GROUP BY GROUPING SETS ((room), ()) | GROUP BY CUBE (room) | GROUP BY ALL | GROUP BY 1 | GROUP BY 99 | GROUP BY ()",
    "union": "UNION ALL | UNION | EXCEPT | INTERSECT | UNION ALL BY NAME | MINUS | UNION DISTINCT",
    "view": "CREATE VIEW w AS <select> | CREATE OR REPLACE VIEW w AS <select> | CREATE VIEW w (a) AS <select> | CREATE VIEW a.b AS <select> | CREATE TEMPORARY VIEW w AS <select> | CREATE VIEW readings AS <select> | CREATE MATERIALIZED VIEW w AS <select> | CREATE VIEW w AS SELECT * FROM w",
    "setting": """
        'x' = <value> | 'x' = <literal> | x = 1 | 'limit' = 2.0 | 'a b' = 1 | '__x' = 1 | GLOBAL x = 1 | x.y = 1 | '' = 1 | @x = 1
        | VARIABLE y = 1 | <long text> = 1 | 'x' TO 1 | 'x' | 'x' := 1 | memory_limit = '1GB' | 'x' = 1, 'y' = 2 | 'x' = ${limit}
    """,
    "function": """
        f AS 'os:system' | f AS '../x:y' | f AS 'x:__import__' | f AS 'a:b:c' | f AS '' | f AS ':' | f AS '/etc/passwd:x'
        | f AS 'x\x00:y' | f AS 'é:f' | f AS 'file://x:y' | f AS 'x.y:z' | count AS 'x:y' | a.b AS 'x:y' | f AS <value> | f AS $$ x $$
        | f(x INT) RETURNS INT AS 'x:y' | f LANGUAGE PYTHON AS 'x:y' | f USING JAR 'x.jar' | f AS 'sys:exit' | f AS <long text>
    """,
    "declaration": "STREAM s (<parts>) | STREAM s (<parts>) WITH (<property>) | TABLE s (<parts>) WITH (<property>, <property>) | <other kind> s (<parts>) | STREAM readings (<parts>) | TABLE s AS <select> | STREAM a.b (<parts>) | TABLE s (<parts>) <storage>",
    "other kind": "EXTERNAL TABLE | TEMP TABLE | TABLE IF NOT EXISTS | SOURCE | UNLOGGED TABLE | OR REPLACE STREAM | SECRET | MACRO | INDEX | SCHEMA | MODEL | CONNECTION | SINK",
    "parts": "<part> | <part>, <part> | <part>, <part>, <part> | t TIMESTAMP, <part> |",
    "part": """
        a INT | b STRING NOT NULL | t TIMESTAMP | t TIMESTAMP(3) | WATERMARK FOR t AS t | WATERMARK FOR t AS t - <time span>
        | WATERMARK FOR nothing AS t | WATERMARK FOR t AS <value> | PRIMARY KEY (a) | PRIMARY KEY (zz) NOT ENFORCED | a <type>
        | a INT DEFAULT 1 | a INT GENERATED ALWAYS AS (1) | a AS b + 1 | UNIQUE (a) | CHECK (a > 1) | a INT REFERENCES x
        | __a INT | _change STRING | a INT COMMENT 'x' | a INT METADATA FROM 'k' | LIKE readings | `a b` INT | a
    """,
    "property": """
        'binding' = 'jsonl:/etc' | 'binding' = 'file:///etc/passwd' | 'binding' = 1 | binding = 'x' | 'x' = 'y' | 'idle-timeout' = '1m'
        | 'idle-timeout' = 'x' | 'max-ahead' = '-1' | 'binding' = 'kafka://a:b@c/d' | 'binding' = ${HOME} | 'binding' = getenv('x')
        | 'binding' = <value> | 'binding' | 'binding' = <long text>
    """,
    "storage": "PARTITIONED BY (a) | LOCATION '/etc' | STORED AS PARQUET | USING csv | TBLPROPERTIES (x = 1) | ENGINE = InnoDB | ON COMMIT DROP",
    "insertion": """
        INTO out <select> | INTO out (a, b) <select> | OVERWRITE out <select> | INTO 'x' <select> | INTO a.b.c <select>
        | INTO receipts <select> | INTO commands <select> | INTO "dead-letters" <select> | INTO readings <select> | OVERWRITE DIRECTORY '/tmp/x' <select>
        | INTO out VALUES (1) | INTO out <select> RETURNING * | INTO FUNCTION file('/tmp/x') <select> | INTO out PARTITION (a = 1) <select>
        | INTO out <select> ON CONFLICT DO NOTHING | INTO "../x" <select> | INTO out DEFAULT VALUES | INTO result <select>
    """,
    "words": """
        COPY readings TO 'file:///tmp/x' (FORMAT csv) | COPY (SELECT 1) TO PROGRAM 'sh' | ATTACH DATABASE 'x' AS y | ATTACH 'http://x' (TYPE postgres)
        | DETACH x | INSTALL httpfs FROM 'http://x' | FORCE INSTALL x | LOAD 'x.so' | PRAGMA writable_schema = 1 | PRAGMA table_info('readings')
        | IMPORT DATABASE 'x' | EXPORT DATABASE 'x' | SHOW TABLES | DESCRIBE readings | USE x | BEGIN | COMMIT | VACUUM | ANALYZE readings
        | GRANT ALL ON readings TO x | ALTER TABLE readings ADD COLUMN x INT | TRUNCATE readings | DROP VIEW w | KILL 1 | CALL system('x')
        | DO $$ x $$ | PREPARE p AS SELECT 1 | EXECUTE p(1) | DECLARE x INT | LOCK TABLE readings | UNLOAD ('x') TO 's3://x' | CACHE TABLE x
        | REFRESH TABLE x | MSCK REPAIR TABLE x | LOAD DATA LOCAL INPATH '/etc/passwd' INTO TABLE readings | RESET x | HANDLER x OPEN
        | SOURCE /etc/passwd | \\! ls | .read /etc/passwd | \\copy x from y | COMMENT ON TABLE readings IS 'x' | DELETE FROM readings | ADD JAR 'x'
        | MERGE INTO readings USING visits ON TRUE WHEN MATCHED THEN DELETE | UPDATE readings SET id = 1 | SELECT | WITH | <select>; <select>
    """,
    "explained": "<select> | INSERT INTO out <select> | ANALYZE <select> | (FORMAT JSON) <select> | PLAN FOR <select> | EXPLAIN <select> | SET x = 1 | <view>",
    "deep": """
        SELECT <( x> 1 <) x> AS x FROM readings | SELECT id FROM readings WHERE <NOT x> ok | SELECT * FROM <(SELECT * FROM x> readings <) t x>
        | SELECT id FROM readings WHERE id = 1 <OR id = 1 x> | SELECT <CASE WHEN ok THEN x> 1 <END x> AS x FROM readings
        | SELECT <ABS( x> id <) x> AS x FROM readings | SELECT id FROM readings <UNION ALL SELECT id FROM readings x>
        | SELECT id FROM readings WHERE id IN (1 <, 1 x>) | SELECT <- x> 1 AS x FROM readings | <CREATE VIEW w AS SELECT * FROM readings; x> SELECT 1
        | SELECT id <+ id x> AS x FROM readings | SELECT id <|| note x> AS x FROM readings | SELECT note<[0] x> AS x FROM readings
        | SELECT CAST(id AS <ARRAY< x> INT <> x>) AS x FROM readings | SELECT id FROM <TABLE(TUMBLE( x> TABLE readings <, DESCRIPTOR(seen), INTERVAL '1' MINUTE)) x>
        | SELECT <id, x> id FROM readings | SELECT id FROM readings <JOIN visits v ON TRUE x> | <SET 'x' = 1; x> SELECT id FROM readings | SELECT <nines> AS x FROM readings | <; x>
    """,
}  # fmt: skip


def _alternatives(rule: str) -> list[str]:
    return [" ".join(one.split()) for one in re.split(r"(?<!\|)\|(?!\|)", rule)]


_ALTERNATIVES = {name: _alternatives(rule) for name, rule in _RULES.items()}
_NAME = re.compile(r"<([^<>]+(?:<[^<>]*)?)>")


def statement(rng: random.Random) -> str:
    """Return a random text of the grammar."""
    times = rng.choice([3, 3, 100, 100, 3000, 10_000])

    def expanded(text: str, depth: int) -> str:
        def one(found: re.Match[str]) -> str:
            name = found.group(1)
            if name == "nines":
                return "9" * rng.choice([19, 39, 400, 5000])
            if name == "long text":
                return f"'{'a' * rng.choice([300, 5000])}'"
            if name in _ALTERNATIVES:
                among = _ALTERNATIVES[name]
                # Deep inside, the first alternatives end the recursion.
                chosen = rng.choice(among if depth < _DEPTH else among[:2])
                return expanded(chosen, depth + 1)
            if name.endswith(" x"):
                return f"{name[:-2]} " * times
            return found.group(0)

        return _NAME.sub(one, text)

    return expanded("<statement>", 0)
