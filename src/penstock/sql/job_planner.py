"""Job planner: executes the statements of a SQL text by describing streams, steps and sinks of a job."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import JobDefinitionError, SchemaError
from penstock.expressions.called_functions import SqlFunction
from penstock.expressions.sql_text import SqlText
from penstock.expressions.value_types import python_type_of
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sql.explanation import explain
from penstock.sql.fitted_columns import WantedColumn, fit_columns
from penstock.sql.relations import Expressions, Relation
from penstock.sql.select_planner import Named, Outside, Query, SelectPlanner
from penstock.sql.statements import (
    CreateFunction,
    CreateStream,
    CreateTable,
    CreateView,
    Explain,
    InsertInto,
    SelectResult,
    SetParameter,
    Statement,
    read_statements,
)
from penstock.sql.user_functions import register
from penstock.state.shared import Setting
from penstock.streams.job_description import JobDescription
from penstock.streams.lookup_table import LookupTable
from penstock.streams.stream import DataStream
from penstock.streams.watermark_strategies import Watermarks

__all__ = ["SqlResult", "describe_sql"]

RESULT: Final = "result"

_STREAM_PROPERTIES: Final = ("binding", "idle-timeout", "max-ahead")


@dataclass(frozen=True)
class SqlResult:
    """What a SQL text has described.

    Attributes:
        stream: the stream of the last query on its own; None if there was none.
        explanations: what the EXPLAIN statements say, in order.

    """

    stream: DataStream[Any] | None
    explanations: tuple[str, ...]
    _tables: Mapping[str, Named] = field(repr=False, default_factory=dict)

    def __getitem__(self, name: str) -> DataStream[Any]:
        """Return the stream of a view, or of a stream that the text declares."""
        if name not in self._tables:
            raise JobDefinitionError(
                f"The SQL text has no view or stream {name!r}; it has {', '.join(self._tables) or 'none'}."
            )
        return self._tables[name]().stream


@dataclass
class _Sink:
    """The relations that are inserted into a sink, and its columns if they are declared."""

    relations: list[Relation]
    at: int


class _JobPlanner:
    def __init__(
        self,
        job: JobDescription,
        text: SqlText,
        tables: Mapping[str, DataStream[Any]],
        load: Callable[[str], Any] | None,
    ) -> None:
        self._job: Final = job
        self._own: Final = Expressions(text, names={node.partition("/")[2] for node in job.graph.nodes})
        self._outside: Final[dict[str, Outside]] = {
            name: functools.partial(LookupTable, job.graph, name, kind)
            for name, kind in job.graph.lookups.items()
        }
        self._planner: Final = SelectPlanner(self._own, self._outside)
        self._load: Final = load
        self._tables: Final[dict[str, Named]] = {}
        self._declared: Final[dict[str, CreateTable]] = {}
        self._sinks: Final[dict[str, _Sink]] = {}
        self._shown: Final[list[str]] = []
        self._stream: Relation | None = None
        self._planned: Final[dict[str, Relation]] = {}
        for source in job.graph.sources():
            if not source.is_control:
                self._tables[source.name] = _given(job.declared_stream(source.name), source.name)
        for name, stream in tables.items():
            self._tables[name] = _given(stream, name)

    def describe(self, statements: list[Statement], *, to_sink: bool) -> SqlResult:
        for statement in statements:
            match statement:
                case CreateStream():
                    self._create_stream(statement)
                case CreateTable():
                    self._create_table(statement)
                case CreateView():
                    self._create_view(statement)
                case CreateFunction():
                    self._create_function(statement)
                case SetParameter():
                    self._set(statement)
                case InsertInto():
                    self._insert(statement)
                case SelectResult():
                    self._select(statement, to_sink=to_sink)
                case Explain():
                    self._explain(statement)
        self._write()
        stream = None if self._stream is None else self._stream.stream
        return SqlResult(stream, tuple(self._shown), self._tables)

    # -- declarations --

    def _check_new(self, name: str, at: int) -> None:
        if name in self._tables or name in self._declared or name in self._outside:
            raise self._own.error(at, f"There is a table {name!r} already; choose another name.")

    def _columns(self, statement: CreateStream | CreateTable) -> tuple[str, RecordType]:
        """Return declared columns as DDL and as a record type. Raises ExpressionError at an unknown type."""
        for column in statement.columns:
            with self._own.errors_at(column.at):
                record_type(f"{column.name} {column.type}")
        schema = ", ".join(f"{column.name} {column.type}" for column in statement.columns)
        return schema, record_type(schema)

    def _create_stream(self, statement: CreateStream) -> None:
        self._check_new(statement.name, statement.at)
        schema, _ = self._columns(statement)
        properties = self._properties(statement, _STREAM_PROPERTIES)
        marks: Watermarks | None = None
        with self._own.errors_at(statement.at):
            if statement.bound is not None:
                marks = Watermarks.bounded(statement.bound)
                if "idle-timeout" in properties:
                    marks = marks.with_idleness(properties["idle-timeout"])
                if "max-ahead" in properties:
                    marks = marks.with_max_ahead(properties["max-ahead"])
            elif len(properties) > ("binding" in properties):
                raise self._own.error(
                    statement.at, "idle-timeout and max-ahead are of a watermark: WATERMARK FOR at AS at."
                )

        def plan() -> Relation:
            with self._own.errors_at(statement.at):
                stream = self._job.data_stream(
                    statement.name, schema=schema, event_time=statement.time, watermarks=marks
                )
            return Relation(stream, statement.name)

        self._declare(statement.name, plan)
        if "binding" in properties:
            self._job.bindings[statement.name] = properties["binding"]

    def _create_table(self, statement: CreateTable) -> None:
        self._check_new(statement.name, statement.at)
        if statement.columns:
            schema, _ = self._columns(statement)
            self._outside[statement.name] = functools.partial(self._looked_up, statement, schema)
        properties = self._properties(statement, ("binding",))
        self._declared[statement.name] = statement
        if "binding" in properties:
            self._job.bindings[statement.name] = properties["binding"]

    def _looked_up(self, statement: CreateTable, schema: str) -> LookupTable:
        """Return a declared table as one in which records are looked up; it is part of the job from now on."""
        name, graph = statement.name, self._job.graph
        if name in self._sinks:
            raise JobDefinitionError(
                f"{name!r} is inserted into; look records up in a table of another name."
            )
        if name in graph.lookups:
            return LookupTable(graph, name, graph.lookups[name])
        return self._job.lookup_table(name, schema=schema)

    def _properties(self, statement: CreateStream | CreateTable, known: tuple[str, ...]) -> dict[str, str]:
        for one in statement.properties:
            if one.name not in known:
                raise self._own.error(
                    one.at, f"There is no property {one.name!r}; known are {', '.join(known)}."
                )
        return {one.name: one.value for one in statement.properties}

    def _create_view(self, statement: CreateView) -> None:
        self._check_new(statement.name, statement.at)
        tables = dict(self._tables)
        query = Query(statement.query, statement.name, tables)
        self._declare(statement.name, lambda: self._planner.plan(query))

    def _declare(self, name: str, plan: Callable[[], Relation]) -> None:
        """Let queries name a relation. It is checked now, and becomes part of the job when it is first read."""

        def relation() -> Relation:
            if name not in self._planned:
                self._planned[name] = plan()
            return self._planned[name]

        with self._rehearsal():
            relation()
        self._tables[name] = relation

    def _create_function(self, statement: CreateFunction) -> None:
        if self._load is None:
            raise self._own.error(
                statement.at,
                "CREATE FUNCTION is for SQL files; give the function to job.sql(..., functions=...).",
            )
        with self._own.errors_at(statement.place_at):
            self.register(statement.name, self._load(statement.place))

    def register(self, name: str, function: Any) -> None:
        """Let the text call a function of the user. Raises JobDefinitionError if it cannot be one."""
        register(self._own, name, function)

    def _set(self, statement: SetParameter) -> None:
        if statement.name in self._own.settings:
            raise self._own.error(statement.at, f"The parameter {statement.name!r} is set already.")
        node = self._own.constant(statement.value)
        value = node.value.as_py()
        try:
            kind = python_type_of(node.type)
        except SchemaError as e:
            raise self._own.error(statement.value, str(e)) from None
        self._own.settings[statement.name] = Setting(kind, value)

    # -- queries --

    def _insert(self, statement: InsertInto) -> None:
        sink = self._sinks.setdefault(statement.name, _Sink([], statement.at))
        sink.relations.append(self._inserted(statement, len(sink.relations)))

    def _inserted(self, statement: InsertInto, number: int) -> Relation:
        """Return the relation that a statement inserts, as the sink takes it."""
        own, name = self._own, statement.name
        if name in self._tables:
            raise own.error(statement.at, f"{name!r} is read here; insert into a table of another name.")
        if name in self._job.graph.lookups:
            raise own.error(
                statement.at, f"Records are looked up in {name!r}; insert into a table of another name."
            )
        declared = self._declared.get(name)
        base = name if number == 0 else f"{name}-{number + 1}"
        wanted = [WantedColumn(column) for column in statement.columns]
        if declared is not None and declared.columns:
            _, kind = self._columns(declared)
            # A column that may be null takes all values.
            wanted = [WantedColumn(f.name, f.arrow_type, None if f.nullable else False) for f in kind.fields]
            if statement.columns:
                names = [column.name for column in wanted]
                if sorted(names) != sorted(statement.columns):
                    raise own.error(
                        statement.at,
                        f"The columns of {name!r} are {', '.join(names)}; insert into all of them.",
                    )
                wanted = [wanted[names.index(column)] for column in statement.columns]
        named = tuple(column.name for column in wanted) or None
        relation = self._planner.plan_all(Query(statement.query, base, self._tables, named))
        if wanted:
            relation = fit_columns(relation, wanted, statement.query, own, f"{base}.fitted")
        return relation

    def _select(self, statement: SelectResult, *, to_sink: bool) -> None:
        if to_sink:
            name = RESULT
            while name in self._sinks or name in self._tables:
                name += "_"
            self._insert(InsertInto(statement.at, name, (), statement.query))
            self._job.bindings.setdefault(name, "console:")
            return
        base = RESULT if self._stream is None else self._own.unique(RESULT)
        self._stream = self._planner.plan_all(Query(statement.query, base, self._tables))

    def _write(self) -> None:
        """Connect the sinks; the inserts of several statements into one sink are united."""
        for name, sink in self._sinks.items():
            with self._own.errors_at(sink.at):
                stream, *others = [relation.stream for relation in sink.relations]
                if others:
                    stream = stream.union(*others, name=self._own.unique(f"{name}.all"))
                self._write_to(name, stream)

    def _write_to(self, name: str, stream: Any) -> None:
        """Add a sink. A changelog goes to a table with a key as upserts, to others as records of its changes."""
        declared = self._declared.get(name)
        key = list(declared.key) if declared is not None and declared.key else None
        if not stream.is_changelog:
            stream.sink_to(name)
        elif key is not None:
            stream.sink_to(name, changes="upserts", key=key)
        else:
            stream.sink_to(name, changes="records")

    def _explain(self, statement: Explain) -> None:
        with self._rehearsal():
            of = statement.of
            if isinstance(of, InsertInto):
                relation = self._inserted(of, 0)
                name = of.name
            else:
                relation, name = self._planner.plan_all(Query(of.query, RESULT, self._tables)), RESULT
            with self._own.errors_at(of.at):
                self._write_to(name, relation.stream)
            self._shown.append(explain(self._job, [f"sink/{name}"]))

    @contextlib.contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """Describe something only to check or explain it: afterwards the job is unchanged."""
        nodes, names = dict(self._job.graph.nodes), set(self._own.names)
        lookups = dict(self._job.graph.lookups)
        planned = dict(self._planned)
        try:
            yield
        finally:
            self._planned.clear()
            self._planned.update(planned)
            self._job.graph.nodes.clear()
            self._job.graph.nodes.update(nodes)
            self._job.graph.lookups.clear()
            self._job.graph.lookups.update(lookups)
            self._own.names.clear()
            self._own.names.update(names)


def _given(stream: DataStream[Any], name: str) -> Named:
    return lambda: Relation(stream, name)


@dataclass(frozen=True)
class SqlOptions:
    """The options for a text: the streams and functions that it may name, and how CREATE FUNCTION finds one.

    With `to_sink`, a query on its own is written to a sink.
    """

    tables: Mapping[str, DataStream[Any]] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)
    load: Callable[[str], Any] | None = None
    to_sink: bool = False


def describe_sql(job: JobDescription, text: str, options: SqlOptions) -> SqlResult:
    """Describe a SQL text in a job. Raises ExpressionError, with the position of the error."""
    before, lookups, bindings = dict(job.graph.nodes), dict(job.graph.lookups), dict(job.bindings)
    sql = SqlText(text, 0)
    try:
        planner = _JobPlanner(job, sql, options.tables, options.load)
        for name, function in options.functions.items():
            planner.register(name, function)
        made = planner.describe(read_statements(sql), to_sink=options.to_sink)
    except BaseException as e:
        # A text that is refused leaves the job as it was.
        job.graph.nodes.clear()
        job.graph.nodes.update(before)
        job.graph.lookups.clear()
        job.graph.lookups.update(lookups)
        job.bindings.clear()
        job.bindings.update(bindings)
        if isinstance(e, RecursionError):
            raise sql.error(0, "The text is nested too deeply; split it.") from None
        raise
    given = options.functions.values()
    job.called_functions += [one.function if isinstance(one, SqlFunction) else one for one in given]
    return made
