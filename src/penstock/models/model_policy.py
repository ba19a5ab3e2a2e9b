"""Policy: when a version of a model is promoted or rolled back automatically, as pure decisions on its scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.base.durations import milliseconds
from penstock.errors import JobDefinitionError
from penstock.models.tallies import VersionTally, drift_ks, drift_psi, slowest_ms
from penstock.models.versions import CANARY, LIVE, SERVING, SHADOW

__all__ = ["Decision", "ModelPolicy", "VersionFigures", "decide", "figures_of", "policy_setting"]


_CLOCKS: Final = ("processing", "event")


@dataclass(frozen=True)
class ModelPolicy:
    """When versions of a model are promoted or rolled back automatically.

    All bounds apply to the scores of a version within the window in its present status. A bound that is None is
    ignored. If one is exceeded, the version is rolled back; a shadow or canary within all of them may be promoted.

    >>> careful = ModelPolicy(promote_records=10_000, min_agreement=0.95, max_failures=0.01)
    >>> careful.window, careful.roll_back_records
    ('10m', 500)

    Args:
        window: how far back it looks, as a duration such as `"10m"`.
        time: the clock: `"processing"`, that of the job, or `"event"`, the watermark of the step. By event time, the
            scores of a micro-batch or interval belong to the watermark that the step has reached at its end; those
            before the first watermark do not count. A job that reads old records, or repeats them, then decides as it
            would have when they were new.
        roll_back_records: after how many records a version may be rolled back.
        promote_records: after how many records a shadow or canary is promoted; None never promotes.
        canary_share: if given, a shadow becomes the canary for that share of the keys first, above 0 up to 1.
        min_agreement: of a shadow, the least share of records with the same score as the version that serves.
        max_failures: the largest share of records without a usable score.
        max_slow: the largest share of records that took more than ten times the `budget` of the model.
        max_drift: the largest population stability index of its scores, against those of the version that serves. For
            that one, against those of the version that served before.
        max_ks: the same for the Kolmogorov-Smirnov statistic, up to 1.
        max_ms: the longest mean time for 1,000 records, in milliseconds.
        max_p99_ms: the longest time, in milliseconds, of 99 in 100 calls; a call is a batch.

    Raises:
        ValueError: a bound is out of its range.

    """

    window: str = "10m"
    time: str = "processing"
    roll_back_records: int = 500
    promote_records: int | None = None
    canary_share: float | None = None
    min_agreement: float | None = None
    max_failures: float | None = None
    max_slow: float | None = 0.5
    max_drift: float | None = None
    max_ks: float | None = None
    max_ms: float | None = None
    max_p99_ms: float | None = None

    def __post_init__(self) -> None:
        try:
            self.window_ms  # noqa: B018  # raises unless it is a duration
        except JobDefinitionError as e:
            raise ValueError(str(e)) from None
        if self.time not in _CLOCKS:
            raise ValueError(f"time is 'processing' or 'event', not {self.time!r}")
        if self.roll_back_records < 1 or (self.promote_records is not None and self.promote_records < 1):
            raise ValueError("a policy decides after at least one record")
        if self.canary_share is not None and not 0 < self.canary_share <= 1:
            raise ValueError(f"canary_share is above 0 up to 1, not {self.canary_share}")
        for name in ("min_agreement", "max_failures", "max_slow", "max_ks"):
            bound = getattr(self, name)
            if bound is not None and not 0 <= bound <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, not {bound}")
        for name in ("max_drift", "max_ms", "max_p99_ms"):
            bound = getattr(self, name)
            if bound is not None and not bound >= 0:
                raise ValueError(f"{name} is at least 0, not {bound}")

    @property
    def window_ms(self) -> int:
        """The length of the window in milliseconds."""
        return milliseconds(self.window, "The window of a policy", min_ms=1000)

    @property
    def compares_scores(self) -> bool:
        """Whether it needs the distribution of the scores of the version that serves alone."""
        return self.max_drift is not None or self.max_ks is not None


def policy_setting(model: str) -> str:
    """Return the name of the setting that has the policy of a model."""
    return f"{model}-policy"


@dataclass(frozen=True)
class VersionFigures:
    """The figures of a version's scores for people and policies; None where nothing is known.

    `ms` is the mean time for 1,000 records, `p99_ms` the time that 99 in 100 calls do not exceed.
    """

    records: int
    failures: int
    slow: int
    agreement: float | None
    drift: float | None
    ks: float | None
    ms: float | None
    p99_ms: float | None


def figures_of(tally: VersionTally, reference: VersionTally | None) -> VersionFigures:
    """Return the figures of a tally, with its drift against another one."""
    drift = None if reference is None else drift_psi(reference, tally)
    ks = None if reference is None else drift_ks(reference, tally)
    p99_ms = slowest_ms(tally)
    return VersionFigures(
        tally.records,
        tally.failures,
        tally.slow,
        round(tally.agreed / tally.compared, 4) if tally.compared else None,
        None if drift is None else round(drift, 4),
        None if ks is None else round(ks, 4),
        round(tally.seconds / tally.records * 1e6, 3) if tally.records else None,
        None if p99_ms is None else round(p99_ms, 3),
    )


@dataclass(frozen=True)
class Decision:
    """A step that a policy takes with a version, and why. `share` is that of a canary."""

    kind: Literal["promote-model", "canary-model", "roll-back-model"]
    version: str
    reason: str
    share: float = 0.0


def decide(
    policy: ModelPolicy,
    statuses: Mapping[str, str],
    figures: Mapping[str, VersionFigures],
    before: str | None,
    suspended: Mapping[str, str] | None = None,
) -> list[Decision]:
    """Return what a policy does with the versions of a model.

    A version may be rolled back whatever happens to others; none is promoted at the same time, and only one at a time.

    Args:
        policy: the policy.
        statuses: the status of each version.
        figures: what versions have scored within the window.
        before: the version that served before the one that serves.
        suspended: versions that are not called any more, with the reason.

    """
    found = []
    for status in LIVE:
        for name in (name for name, one in statuses.items() if one == status):
            reasons = list(_faults(policy, status, figures[name])) if name in figures else []
            if suspended and name in suspended:
                reasons = [suspended[name]]
            # No version could replace the first one that serves.
            if reasons and (status != SERVING or before is not None):
                found.append(Decision("roll-back-model", name, "; ".join(reasons)))
    if found or policy.promote_records is None:
        return found
    for status in (CANARY, SHADOW):
        for name in (name for name, one in statuses.items() if one == status):
            if name in figures and _passes(policy, status, figures[name]):
                return [_advance(policy, name, status, figures[name], statuses)]
    return []


def _advance(
    policy: ModelPolicy, name: str, status: str, figures: VersionFigures, statuses: Mapping[str, str]
) -> Decision:
    reason = f"within all bounds over {figures.records:,} records"
    share = policy.canary_share
    if status == SHADOW and share is not None and CANARY not in statuses.values():
        return Decision("canary-model", name, reason, share)
    return Decision("promote-model", name, reason)


def _bounds(
    policy: ModelPolicy, status: str, found: VersionFigures
) -> Iterator[tuple[str, float | None, float, bool]]:
    """Yield each bound that applies: its name, the value, the bound, and whether it is a lower bound."""
    records = max(found.records, 1)
    # Only a shadow scores the same records as the version that serves.
    if policy.min_agreement is not None and status == SHADOW:
        yield "the agreement", found.agreement, policy.min_agreement, True
    for what, value, bound in (
        ("the share of failures", found.failures / records, policy.max_failures),
        ("the share of slow scores", found.slow / records, policy.max_slow),
        ("the drift", found.drift, policy.max_drift),
        ("the KS statistic", found.ks, policy.max_ks),
        ("the time for 1,000 records in ms", found.ms, policy.max_ms),
        ("the time of 99 in 100 calls in ms", found.p99_ms, policy.max_p99_ms),
    ):
        if bound is not None:
            yield what, value, bound, False


def _faults(policy: ModelPolicy, status: str, found: VersionFigures) -> Iterator[str]:
    if found.records < policy.roll_back_records:
        return
    for what, value, bound, is_least in _bounds(policy, status, found):
        if value is not None and (value < bound if is_least else value > bound):
            side = "below" if is_least else "above"
            yield f"{what} is {value:.4g}, {side} {bound:g}, over {found.records:,} records"


def _passes(policy: ModelPolicy, status: str, found: VersionFigures) -> bool:
    """Return whether a version is within all bounds; one that is not known yet does not pass."""
    assert policy.promote_records is not None
    if found.records < policy.promote_records:
        return False
    return all(
        value is not None and (value >= bound if is_least else value <= bound)
        for _, value, bound, is_least in _bounds(policy, status, found)
    )
