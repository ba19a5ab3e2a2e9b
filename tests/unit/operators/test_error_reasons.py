"""Reasons of dead letters: what went wrong and where, identical in every run."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import SchemaError
from penstock.operators.error_reasons import misfit_reason, reason_in_short, reason_of
from penstock.records.schemas import record_type
from penstock.testing.batch_runner import BatchRunner

RULES = '''"""The rules of a shop."""

from shop_parts import prices


def judged(record):
    return prices.of(record.number)


def imported(record):
    from shop_parts import nothing_such


def misspelt(record):
    import shop_misspelt


def endless(record):
    endless(record)


def shown(record):
    raise ValueError(f"{object()} and {(lambda: None)}")
'''
PRICES = """def of(number):
    if number:
        raise KeyError(number)
"""
PARTS = """def none(record):
    raise LookupError("nothing")
"""
MODULES = {
    "shop_rules.py": RULES,
    "shop_misspelt.py": "def price(:\n",
    "shop_parts/__init__.py": PARTS,
    "shop_parts/prices.py": PRICES,
}


@dataclass
class Order:
    number: int


@pytest.fixture(params=["a/code.zip", "another/place/sent-5.zip", "a folder"])
def rules(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Return the module, imported from an archive as in a worker, or from a folder."""
    place = tmp_path / request.param
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix:
        with zipfile.ZipFile(place, "w") as archive:
            for name, text in MODULES.items():
                archive.writestr(name, text)
    else:
        for name, text in MODULES.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    sys.path.insert(0, str(place))
    yield importlib.import_module("shop_rules")
    sys.path.remove(str(place))
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]


def raised(function: Any) -> Exception:
    with pytest.raises(Exception) as found:  # the reason shows which one is used
        function(Order(5))
    return found.value


def of_function(function: Any) -> str:
    """Return the reason without the test's frame."""
    error = raised(function)
    assert error.__traceback__ is not None
    return reason_of(error.with_traceback(error.__traceback__.tb_next))


def test_a_reason_has_the_user_s_files_and_lines(rules: Any) -> None:
    """Paths are relative to the job's folder, wherever that is."""
    assert of_function(rules.judged) == (
        'File "shop_rules.py", line 7, in judged\n'
        "    return prices.of(record.number)\n"
        '  File "shop_parts/prices.py", line 3, in of\n'
        "    raise KeyError(number)\n"
        "KeyError: 5"
    )
    assert of_function(sys.modules["shop_parts"].none).startswith('File "shop_parts/__init__.py", line 2, in')


def test_errors_of_imports_name_no_archive(rules: Any, tmp_path: Path) -> None:
    """Python itself puts the archive's path into them."""
    for function in (rules.imported, rules.misspelt):
        reason = of_function(function)
        assert rules.__file__.endswith(".py")
        if ".zip" in rules.__file__:
            assert str(tmp_path) not in reason
            assert ".zip" not in reason
    assert "shop_misspelt.py" in of_function(rules.misspelt)


def test_a_reason_names_no_place_in_memory(rules: Any) -> None:
    """Addresses differ between runs; short reasons have none either."""
    shown = "<object object> and <function shown.<locals>.<lambda>>"
    assert of_function(rules.shown).endswith(f"\nValueError: {shown}")
    assert reason_in_short(raised(rules.shown)) == f"ValueError: {shown}"
    assert reason_in_short(ValueError("the register at 0x7f00aa1234 is\n\n broken")) == (
        "ValueError: the register at 0x7f00aa1234 is broken"
    )


def test_a_recursion_without_end_is_told_shortly(rules: Any) -> None:
    """The reason is short however deep it went."""
    reason = of_function(rules.endless)
    assert reason.endswith("RecursionError: maximum recursion depth exceeded")
    assert len(reason.splitlines()) < 20


def test_code_without_a_file_is_told() -> None:
    """The code was generated at run time, in any module."""
    for file, told in (("", ""), ("<made>", "<made>"), ("/tmp/x/y.py", "y.py")):
        names: dict[str, Any] = {"__name__": "z"}
        exec(compile("def fail(record):\n    raise LookupError\n", file, "exec"), names)
        assert of_function(names["fail"]).splitlines()[0] == f'File "{told}", line 2, in fail'


def test_dead_letters_of_a_job_tell_the_user_s_lines_alone(rules: Any, tmp_path: Path) -> None:
    """Frames of penstock are left out."""
    job = ps.Job("job")
    job.data_stream("orders", schema=Order).map(rules.judged, output=Order).sink_to("out")
    (letter,) = BatchRunner(job).run({"orders": [("p", [Order(5)])]}).dead_letters
    assert letter.reason == of_function(rules.judged)


class Shy:
    def __repr__(self) -> str:
        raise ValueError("no")

    @property
    def number(self) -> int:
        raise ValueError("not told")


def test_what_does_not_fit_is_told_without_trusting_it() -> None:
    """It may fail to print, be very long, or contain unwritable text."""
    kind = record_type(Order)
    error = SchemaError("so")
    assert (
        misfit_reason(Shy(), kind, error) == "the emitted record of Shy does not fit Order(number: int64): so"
    )
    assert misfit_reason(object(), kind, error, "the result").startswith(
        "the result <object object> does not"
    )
    long = misfit_reason(["x" * 10_000], kind, error)
    assert len(long) < 700
    assert "xxx... does not fit" in long
    assert misfit_reason(5, kind, SchemaError("\ud800")).endswith(r": \ud800")


class Emits(ps.ProcessFunction):
    def process_record(self, order: Order, ctx: ps.Context) -> Iterator[Order]:
        yield Shy()  # type: ignore[misc]
        yield order


def test_an_object_that_raises_when_it_is_looked_at_does_not_fit() -> None:
    """The other emissions leave."""
    job = ps.Job("job")
    job.data_stream("orders", schema=Order).key_by("number").process("emits", Emits()).sink_to("out")
    result = BatchRunner(job).run({"orders": [("p", [Order(5)])]})
    assert result.output("out") == [Order(5)]
    assert [letter.reason for letter in result.dead_letters] == [
        "the emitted record of Shy does not fit Order(number: int64): a record does not fit Order: not told"
    ]
