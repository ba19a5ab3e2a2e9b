"""How many examples property tests try: a few dozen in `make test`, and many times as many in `make chaos`.

A test without a number of its own has EXAMPLES. One whose examples take long, or that has many cases, says with
`examples` how many it has. Hypothesis's profile multiplies both. Of cases that are written down, `some_in_test` takes
a share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

__all__ = ["EXAMPLES", "examples", "register_profiles", "some_in_test"]

EXAMPLES: Final = 30
SHARE_IN_TEST: Final = 1 / 3
TIMES_IN_CHAOS: Final = 30


def register_profiles() -> None:
    """The profiles `test`, which is loaded, and `chaos`, which `--hypothesis-profile=chaos` loads."""
    for name, times in (("test", SHARE_IN_TEST), ("chaos", TIMES_IN_CHAOS)):
        settings.register_profile(
            name,
            max_examples=round(EXAMPLES * times),
            deadline=None,  # on a busy machine an example may take long
            print_blob=True,  # which brings an example back that failed elsewhere
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("test")


def examples(number: int) -> settings:
    """The settings of a test that has this number of examples, of which the profile takes a share or a multiple."""
    return settings(max_examples=max(1, number * settings.default.max_examples // EXAMPLES))


def some_in_test(cases: Iterable[Any], every: int = 2) -> list[Any]:
    """Parameters of which `make test` tries every second one, or so, and `make chaos` the others."""
    return [
        case if number % every == 0 else pytest.param(case, marks=pytest.mark.chaos)
        for number, case in enumerate(cases)
    ]
