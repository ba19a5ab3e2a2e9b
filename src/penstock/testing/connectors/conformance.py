"""Conformance: the outcomes of the checks of a connector, and how a check is run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import PenstockError

__all__ = [
    "Conformance",
    "NonconformingError",
    "Outcome",
    "Refuted",
    "Verdict",
    "rejects_within",
    "run_checks",
]

Verdict = Literal["pass", "fail", "not applicable"]

_CELLS: Final[Mapping[Verdict, str]] = {"pass": "yes", "fail": "**no**", "not applicable": "-"}


class NonconformingError(PenstockError):
    """A connector does not do what it promises."""

    fault = "user"


class Refuted(Exception):  # noqa: N818  # it ends a check, and never leaves the kit
    """Ends a check that has found a fault, with the finding."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check: what is wrong if it failed, the reason if it does not apply, else a limit it kept."""

    check: str
    verdict: Verdict
    detail: str = ""

    @property
    def cell(self) -> str:
        """The outcome in the table: yes or a limit, no, or a dash."""
        return self.detail if self.verdict == "pass" and self.detail else _CELLS[self.verdict]


@dataclass(frozen=True)
class Conformance:
    """The outcomes of all checks of a connector. `promise` is what it claims, `role` is sink or source."""

    system: str
    role: Literal["sink", "source"]
    promise: str
    outcomes: Sequence[Outcome]

    @property
    def conforms(self) -> bool:
        """Whether no check has failed."""
        return all(outcome.verdict != "fail" for outcome in self.outcomes)

    def row(self) -> str:
        """Return the row of the table in docs/connectors.md."""
        cells = (self.system, self.promise, *(outcome.cell for outcome in self.outcomes))
        return f"| {' | '.join(cells)} |"

    def require(self) -> None:
        """Raise NonconformingError, which names the checks that have failed and what they have found."""
        failed = [outcome for outcome in self.outcomes if outcome.verdict == "fail"]
        if failed:
            found = "\n".join(f"- {outcome.check}: {outcome.detail}" for outcome in failed)
            raise NonconformingError(
                f"The {self.role} {self.system!r}, which promises {self.promise}, fails {len(failed)} of "
                f"{len(self.outcomes)} checks:\n{found}"
            )


def run_checks(
    checks: Mapping[str, Callable[[], str | None]], excused: Mapping[str, str], excusable: Sequence[str]
) -> list[Outcome]:
    """Run all checks but those that are excused, each with its reason. Raises ValueError for a wrong excuse."""
    wrong = sorted(set(excused) - set(excusable))
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)}: only {', '.join(excusable)} can be left out of the checks of a connector."
        )
    return [
        Outcome(name, "not applicable", excused[name]) if name in excused else _run(name, check)
        for name, check in checks.items()
    ]


def _run(name: str, check: Callable[[], str | None]) -> Outcome:
    try:
        shown = check()
    except Refuted as e:
        return Outcome(name, "fail", str(e))
    except Exception as e:  # a connector may raise anything, which is a finding
        return Outcome(name, "fail", f"it raised {type(e).__name__}: {e}")
    return Outcome(name, "pass", shown or "")


def rejects_within(limit_s: float, attempt: Callable[[], object], secret: str = "") -> None:
    """Check that an attempt ends within a time, with an error of penstock's that does not show a secret."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            attempt()
        except BaseException as e:  # it is judged below
            raised.append(e)

    thread = threading.Thread(target=run, daemon=True)
    begun_s = time.monotonic()
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise Refuted(f"it still waits after {limit_s:g} s. Give each request a time-out.")
    if not raised:
        raise Refuted(f"it continued as if nothing were wrong, for {time.monotonic() - begun_s:.1f} s.")
    error = raised[0]
    if not isinstance(error, PenstockError):
        raise Refuted(
            f"it raised {type(error).__name__}: {error}. Raise ExternalSystemError or BindingError, which say what "
            "to do."
        )
    if secret and secret in str(error):
        raise Refuted("the secret stands in the message of the error.")
