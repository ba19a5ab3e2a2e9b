"""Join methods: the joins of keyed streams with other streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from penstock.base.durations import Duration
from penstock.expressions.columns import Column
from penstock.joins.pair_expressions import How
from penstock.joins.window_join import JoinWindows
from penstock.state.shared import Setting
from penstock.streams.described_stream import KeyedInput
from penstock.streams.join_nodes import (
    JoinOptions,
    add_as_of_join,
    add_co_group,
    add_interval_join,
    add_window_join,
)
from penstock.streams.step_nodes import DescribedStep
from penstock.windows.window import Window

__all__ = ["JoinMethods"]

JoinedT = TypeVar("JoinedT")


class JoinMethods(Generic[JoinedT]):
    """The methods that join a keyed stream with another one by key and time. docs/joins.md describes them.

    In all of them `step` is the stable name that identifies the state. `fields` are the fields of the result, in SQL
    over both sides: "left.amount", "right.amount AS paid", "left.*"; without them, all fields of both. `where` is a
    further condition on pairs, `aliases` are other names for the sides, and `settings` declares the parameters
    (`${limit}`) of these expressions, which commands change. Records that are too late go to the side outputs
    "late_left" and "late_right".
    """

    def interval_join(
        self,
        step: str,
        right: KeyedInput,
        *,
        lower: Duration,
        upper: Duration,
        how: How = "inner",
        fields: Sequence[str | Column] | None = None,
        where: str | Column | None = None,
        aliases: tuple[str, str] = ("left", "right"),
        settings: Mapping[str, Setting[Any]] | None = None,
    ) -> JoinedT:
        """Join each record with those of the other stream that have its key, and a time near its own.

        A record at time t matches those of `right` from t + `lower` to t + `upper`, both included; a bound may be
        negative ("-5m"). `how` is "inner", "left", "right" or "full": which records without a match are emitted, with
        nulls for the other side, once the watermark says that no match can come. A pair counts at the later of both
        times. Raises JobDefinitionError when the streams or the expressions do not fit.

        >>> job = Job("shop")
        >>> marks = Watermarks.bounded("5s")
        >>> orders = job.data_stream(
        ...     "orders", schema="id STRING, amount DOUBLE, at BIGINT", event_time="at", watermarks=marks
        ... ).key_by("id")
        >>> payments = job.data_stream(
        ...     "payments", schema="order STRING, paid DOUBLE, at BIGINT", event_time="at", watermarks=marks
        ... ).key_by("order")
        >>> matched = orders.interval_join(
        ...     "paid-orders", payments, lower="0s", upper="1h", how="left",
        ...     fields=["id", "amount", "paid", "right.at - left.at AS waited_ms"],
        ... )
        >>> matched.record_type.field_names
        ('id', 'amount', 'paid', 'waited_ms')
        """
        options = JoinOptions(how, fields, where, aliases, settings or {})
        return self._joined(add_interval_join(step, self._left(), right, (lower, upper), options))

    def window_join(
        self,
        step: str,
        right: KeyedInput,
        window: JoinWindows,
        *,
        how: How = "inner",
        fields: Sequence[str | Column] | None = None,
        where: str | Column | None = None,
        aliases: tuple[str, str] = ("left", "right"),
        settings: Mapping[str, Setting[Any]] | None = None,
    ) -> JoinedT:
        """Join the records of both streams that have the same key and are in the same window.

        `window` is tumbling, sliding, cumulative or session windows by event time; sessions are those of the records
        of both streams together. A window emits its pairs when the watermark passes its end. `how` is "inner", "left",
        "right" or "full". Fields can also name `window_start` and `window_end`, and without `fields` the result has
        both. Raises JobDefinitionError when the streams, windows or expressions do not fit.

        >>> job = Job("site")
        >>> marks = Watermarks.bounded("5s")
        >>> views = job.data_stream(
        ...     "views", schema="user STRING, page STRING, at BIGINT", event_time="at", watermarks=marks
        ... ).key_by("user")
        >>> buys = job.data_stream(
        ...     "buys", schema="user STRING, price DOUBLE, at BIGINT", event_time="at", watermarks=marks
        ... ).key_by("user")
        >>> views.window_join(
        ...     "views-and-buys", buys, TumblingWindows("10m"), fields=["left.user", "page", "price", "window_end"]
        ... ).record_type.field_names
        ('user', 'page', 'price', 'window_end')
        """
        options = JoinOptions(how, fields, where, aliases, settings or {})
        return self._joined(add_window_join(step, self._left(), right, window, options))

    def co_group(
        self,
        step: str,
        right: KeyedInput,
        window: JoinWindows,
        function: Callable[[Any, Window, list[Any], list[Any]], Iterable[Any] | None],
        *,
        output: Any = None,
    ) -> JoinedT:
        """Give the records of both streams in each window of a key to a function, which yields or returns records.

        `function` takes the key, the window with its `start` and `end`, and the records of each stream, by event time;
        one of the lists may be empty. It is called when the watermark passes the end of the window. If it raises, the
        window is a dead letter. `output` is the type of its records if it is not annotated. Raises JobDefinitionError
        when the streams or windows do not fit.

        >>> job = Job("site")
        >>> marks = Watermarks.bounded("5s")
        >>> stream = lambda name: job.data_stream(
        ...     name, schema="user STRING, at BIGINT", event_time="at", watermarks=marks
        ... ).key_by("user")
        >>> @dataclass
        ... class Compared:
        ...     user: str
        ...     views: int
        ...     buys: int
        >>> def compare(user, window, views, buys) -> Iterator[Compared]:
        ...     yield Compared(user, len(views), len(buys))
        >>> compared = stream("views").co_group("compared", stream("buys"), SessionWindows("10m"), compare)
        """
        return self._joined(add_co_group(step, self._left(), right, window, function, output))

    def as_of_join(
        self,
        step: str,
        versions: KeyedInput,
        *,
        how: Literal["inner", "left"] = "inner",
        deleted: str | Column | None = None,
        fields: Sequence[str | Column] | None = None,
        where: str | Column | None = None,
        aliases: tuple[str, str] = ("left", "right"),
        settings: Mapping[str, Setting[Any]] | None = None,
    ) -> JoinedT:
        """Join each record with the version of its key that was in force at the record's event time.

        That is the latest record of `versions` at or before that time. `deleted` is a condition on versions, such as
        "price IS NULL": a version for which it is true ends the one before, and no version is in force until the next.
        With how="left" records without a version are emitted with nulls, otherwise not at all. A record is emitted once
        the watermark of both streams has passed its time, when no version that applies to it can still come; its event
        time stays its own. Raises JobDefinitionError when the streams or the expressions do not fit.

        >>> job = Job("ads")
        >>> marks = Watermarks.bounded("5s")
        >>> clicks = job.data_stream(
        ...     "clicks", schema="campaign STRING, at BIGINT", event_time="at", watermarks=marks
        ... ).key_by("campaign")
        >>> campaigns = job.data_stream(
        ...     "campaigns", schema="name STRING, price DOUBLE, since BIGINT", event_time="since", watermarks=marks
        ... ).key_by("name")
        >>> priced = clicks.as_of_join("priced-clicks", campaigns, how="left", deleted="price IS NULL")
        >>> priced.record_type.field_names
        ('campaign', 'at', 'name', 'price', 'since')
        """
        options = JoinOptions(how, fields, where, aliases, settings or {})
        return self._joined(add_as_of_join(step, self._left(), versions, deleted, options))

    def _left(self) -> KeyedInput:
        """Return the stream as the left side of a join."""
        raise NotImplementedError

    def _joined(self, described: DescribedStep) -> JoinedT:
        """Return the output stream of a join."""
        raise NotImplementedError
