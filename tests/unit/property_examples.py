"""How many examples property tests try: some dozens in `make test`, and many times as many in `make chaos`.

A test without a number of its own tries EXAMPLES. One whose examples are dear, or whose room of cases is wide, says
with `examples` how many it tries in `make test`. The profile of Hypothesis multiplies both.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

__all__ = ["EXAMPLES", "examples", "register_profiles"]

EXAMPLES: Final = 30
TIMES_IN_CHAOS: Final = 30


def register_profiles() -> None:
    """The profiles `test`, which is loaded, and `chaos`, which `--hypothesis-profile=chaos` loads."""
    for name, times in (("test", 1), ("chaos", TIMES_IN_CHAOS)):
        settings.register_profile(
            name,
            max_examples=EXAMPLES * times,
            deadline=None,  # on a busy machine an example may take long
            print_blob=True,  # which brings an example back that failed elsewhere
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("test")


def examples(number: int) -> settings:
    """The settings of a test that tries so many examples in `make test`."""
    return settings(max_examples=number * settings.default.max_examples // EXAMPLES)
