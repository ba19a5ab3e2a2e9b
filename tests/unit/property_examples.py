"""How many examples property tests try: a few dozen in `make test`, and many times as many in `make chaos`.

A test without a number of its own has EXAMPLES. One whose examples take long, or that has many cases, says with
`examples` how many it has. Hypothesis's profile multiplies both.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

__all__ = ["EXAMPLES", "examples", "register_profiles"]

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
