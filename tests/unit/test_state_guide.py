"""The guide of state: what docs/state.md shows runs and does what the page says."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from encoded_commands import command_to, commands
from guide_code import python_of

import penstock as ps
from penstock.state.values import KeyedState
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.saved_states import rescale_runner

GUIDE = Path(__file__).parents[2] / "docs" / "state.md"


@pytest.fixture(scope="module")
def guide() -> Iterator[dict[str, Any]]:
    """The names that the guide's Python makes."""
    with python_of(GUIDE) as names:
        yield names


def running(guide: dict[str, Any], function: ps.ProcessFunction) -> BatchRunner:
    job = ps.Job("shop", key_groups=1)
    sales = job.data_stream("sales", schema=guide["Sale"])
    sales.key_by("customer").process("step", function, output=guide["Message"]).sink_to("told")
    return BatchRunner(job)


SALES = [("tea", 4.0), ("tea", 6.0), ("jam", 2.0), ("tea", -1.0)]


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("Counting", ["3 sales", "4 sales"]),
        ("Recent", ["tea, jam", "jam, tea"]),
        ("Pieces", ["tea 2, jam 1", "jam 1"]),
        ("Dearest", ["at most 6.0", "at most 6.0"]),
        ("Average", ["4.0 on average", "2.75 on average"]),
        ("Named", ["Jam", "Tea"]),
        ("PriceChanges", ["6.0 to 2.0", "2.0 to -1.0"]),
    ],
)
def test_the_functions_of_the_guide_do_what_they_say(
    guide: dict[str, Any], name: str, last: list[str]
) -> None:
    """Over two micro-batches."""
    job = running(guide, guide[name]())
    sales = [guide["Sale"](1, *sale) for sale in SALES]
    job.run({"sales": [("s", sales[:2])]})
    result = job.run({"sales": [("s", [*sales[2:], guide["Sale"](2, "tea", 1.0)])]})
    assert [told.text for told in result.output("told") if told.customer == 1] == last
    assert not result.dead_letters


def test_the_timer_of_the_guide_is_called(guide: dict[str, Any]) -> None:
    """With the state of its key."""
    job = running(guide, guide["Reminder"]())
    job.run({"sales": [("s", [guide["Sale"](1, "tea", 4.0), guide["Sale"](1, "jam", 2.0)])]})
    job.now += dt.timedelta(hours=8)
    assert [told.text for told in job.run({}).output("told")] == ["come back: more jam?"]


def test_the_list_of_the_guide_is_gone_after_its_time(guide: dict[str, Any]) -> None:
    """A week after the last sale."""

    class Telling(guide["Weekly"]):  # type: ignore[misc]
        def process_record(self, sale: Any, ctx: ps.Context) -> Iterator[Any]:
            yield guide["Message"](sale.customer, str(len(self.articles)))
            super().process_record(sale, ctx)

    job = running(guide, Telling())
    told = []
    for days in (0, 6, 6, 7):
        job.now += dt.timedelta(days=days)
        result = job.run({"sales": [("s", [guide["Sale"](1, "tea", 4.0)])]})
        told += [one.text for one in result.output("told")]
    assert told == ["0", "1", "2", "0"]


@pytest.mark.parametrize(
    ("name", "kept"), [("RecentInBulk", ["jam", "tea"]), ("Weekly", ["tea", "tea", "jam", "tea"])]
)
def test_what_the_guide_keeps_without_telling(guide: dict[str, Any], name: str, kept: list[str]) -> None:
    """In both forms of code."""

    class Telling(guide[name]):  # type: ignore[misc]
        @ps.on_command("tell")
        def tell(self, payload: None, ctx: ps.CommandContext) -> None:
            ctx.reply(self.articles.get())

    job = running(guide, Telling())
    for sale in SALES:
        assert not job.run({"sales": [("s", [guide["Sale"](1, *sale)])]}).dead_letters
    receipt = job.run(commands(command_to("step", "tell", key=1))).receipts[-1]
    assert msgspec.json.decode(receipt.details) == [[1, kept]]


def test_the_step_without_a_key_does_what_the_guide_says(guide: dict[str, Any]) -> None:
    """It pairs the records of a source partition, and what is left over goes with a command."""
    described = ps.Job("shop")
    described.data_stream("sales", schema=guide["Sale"]).process("pairs", guide["InPairs"]()).sink_to("pairs")
    job = BatchRunner(described, parallelism=2)
    first = job.run({"sales": [("s", [guide["Sale"](n, *sale) for n, sale in enumerate(SALES[:3])])]})
    assert [told.text for told in first.output("pairs")] == ["tea and tea"]
    last = job.run(commands(command_to("pairs", "flush")))
    assert last.output("pairs") == [guide["Message"](2, "only jam")]
    assert not job.run({"sales": [("s", [guide["Sale"](1, "tea", 1.0)])]}).output("pairs")


def test_the_union_of_the_guide_is_known_after_a_restore(guide: dict[str, Any]) -> None:
    """To source partitions that have not seen the articles."""
    described = ps.Job("shop")
    described.data_stream("sales", schema=guide["Sale"]).process("first", guide["FirstOfArticle"]()).sink_to(
        "first"
    )
    job = BatchRunner(described, parallelism=2)
    tea, jam = guide["Sale"](1, "tea", 1.0), guide["Sale"](2, "jam", 1.0)
    assert len(job.run({"sales": [("s", [tea, tea]), ("t", [tea, jam])]}).output("first")) == 3
    assert not job.run({"sales": [("t", [tea, jam])]}).output("first")
    assert not rescale_runner(job, 3).run({"sales": [("u", [tea, jam])]}).output("first")


def test_the_table_has_every_kind() -> None:
    """What is added to the code is missed in the guide."""
    page = GUIDE.read_text()
    public = [getattr(ps, name) for name in ps.__all__]
    kinds = [one.__name__ for one in public if inspect.isclass(one) and issubclass(one, KeyedState)]
    assert {"ListState", "MapState", "TemporalState"} <= set(kinds)
    for name in kinds:
        assert re.search(rf"^\| `{name}\(", page, re.MULTILINE), name
