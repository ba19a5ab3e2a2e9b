"""Restart strategies: whether and when a failed job restarts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
import xxhash

from penstock.base.durations import duration_text, milliseconds
from penstock.errors import JobDefinitionError

__all__ = [
    "DEFAULT_STRATEGY",
    "NO_FAILURES",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "Restart",
    "RestartHistory",
    "RestartStrategy",
    "decide_restart",
    "parse_strategy",
    "strategy_text",
]

_LONGEST_MS: Final = 365 * 86_400_000


@dataclass(frozen=True)
class NoRestart:
    """The strategy that never restarts a job."""

    name: ClassVar[str] = "none"


@dataclass(frozen=True)
class FixedDelay:
    """The strategy that restarts a job a number of times, each time after the same delay."""

    name: ClassVar[str] = "fixed-delay"
    attempts: int = 1
    delay_ms: int = 1000


@dataclass(frozen=True)
class ExponentialDelay:
    """The strategy that restarts a job after a delay that grows with each failure, from `initial_ms` to `max_ms`.

    The delay varies by the fraction `jitter`, so that jobs that fail together do not start together. After a job has
    run for `stable_ms`, the delay starts over. Without `attempts`, it never gives up; otherwise it gives up after that
    number of restarts since the job was stable.
    """

    name: ClassVar[str] = "exponential-delay"
    initial_ms: int = 1000
    max_ms: int = 60_000
    multiplier: float = 1.5
    jitter: float = 0.1
    stable_ms: int = 3_600_000
    attempts: int | None = None

    def __post_init__(self) -> None:
        if self.initial_ms > self.max_ms:
            raise JobDefinitionError(
                f"The restart strategy {self.name} has initial={duration_text(self.initial_ms)} and "
                f"max={duration_text(self.max_ms)}; initial must not be longer than max."
            )


@dataclass(frozen=True)
class FailureRate:
    """The strategy that restarts a job after a delay, unless it failed more than `failures` times in an interval."""

    name: ClassVar[str] = "failure-rate"
    failures: int = 1
    interval_ms: int = 60_000
    delay_ms: int = 1000


RestartStrategy: TypeAlias = NoRestart | FixedDelay | ExponentialDelay | FailureRate

DEFAULT_STRATEGY: Final = ExponentialDelay()


class RestartHistory(msgspec.Struct, frozen=True):
    """The failures of a job, as its strategy remembers them.

    `total` counts all failures, `attempts` the restarts since the job was stable. `recent_ms` are the times of failures
    that may still matter, and `next_ms` is the time of the start after the last failure.
    """

    total: int = 0
    attempts: int = 0
    recent_ms: tuple[int, ...] = ()
    next_ms: int = 0


NO_FAILURES: Final = RestartHistory()


class Restart(msgspec.Struct, frozen=True):
    """The decision on a failed job: a restart after a delay, or none if the delay is None, and the reason."""

    history: RestartHistory
    delay_ms: int | None
    reason: str


def decide_restart(strategy: RestartStrategy, history: RestartHistory, job_id: str, now_ms: int) -> Restart:
    """Decide whether and when to restart a job that has just failed. Deterministic.

    >>> decide_restart(FixedDelay(attempts=3, delay_ms=10_000), RestartHistory(), "job-1", 0).delay_ms
    10000
    """
    total = history.total + 1
    match strategy:
        case NoRestart():
            return Restart(RestartHistory(total), None, "its restart strategy is none")
        case FixedDelay(attempts, delay_ms):
            made = history.attempts
            if made >= attempts:
                return Restart(RestartHistory(total, made), None, f"it was restarted {made} times")
            return Restart(
                RestartHistory(total, made + 1, (), now_ms + delay_ms),
                delay_ms,
                f"restart {made + 1} of {attempts}",
            )
        case ExponentialDelay():
            return _decide_exponential(strategy, history, job_id, now_ms)
        case FailureRate(failures, interval_ms, delay_ms):
            # If the clock went back, a failure must not be in the future, where it would count forever.
            times = (*(min(time_ms, now_ms) for time_ms in history.recent_ms), now_ms)
            recent = tuple(time_ms for time_ms in times if now_ms - time_ms < interval_ms)
            reason = f"{len(recent)} failures within {duration_text(interval_ms)}"
            after = RestartHistory(total, 0, recent[-failures - 1 :], now_ms + delay_ms)
            return Restart(after, None if len(recent) > failures else delay_ms, reason)


def _decide_exponential(
    strategy: ExponentialDelay, history: RestartHistory, job_id: str, now_ms: int
) -> Restart:
    stable = history.total > 0 and now_ms - history.next_ms >= strategy.stable_ms
    made = 0 if stable else history.attempts
    total = history.total + 1
    if strategy.attempts is not None and made >= strategy.attempts:
        return Restart(RestartHistory(total, made), None, f"it was restarted {made} times")
    delay_ms = _add_jitter(strategy, _base_delay_ms(strategy, made), f"{job_id}/{total}")
    of = "" if strategy.attempts is None else f" of {strategy.attempts}"
    return Restart(
        RestartHistory(total, made + 1, (), now_ms + delay_ms), delay_ms, f"restart {made + 1}{of}"
    )


def _base_delay_ms(strategy: ExponentialDelay, times: int) -> float:
    """Return the delay after a number of increases. Compares logarithms first, since powers may overflow."""
    ratio = strategy.max_ms / strategy.initial_ms
    if times * math.log(strategy.multiplier) >= math.log(ratio):
        return float(strategy.max_ms) if strategy.multiplier > 1 else float(strategy.initial_ms)
    return strategy.initial_ms * strategy.multiplier**times


def _add_jitter(strategy: ExponentialDelay, delay_ms: float, seed: str) -> int:
    share = xxhash.xxh64_intdigest(seed.encode()) / (1 << 64)
    spread = delay_ms * (1 + strategy.jitter * (2 * share - 1))
    return round(min(max(spread, strategy.initial_ms), strategy.max_ms))


# From text


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a strategy: its field, and how to read and write it."""

    field: str
    read: Callable[[Any, str], Any]
    write: Callable[[Any], str] = str


def _count(value: Any, what: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise JobDefinitionError(f"{what} is {value!r}; it must be a whole number from 1 to 1000000.")
    return value


def _duration(min_ms: int) -> Callable[[Any, str], int]:
    def read(value: Any, what: str) -> int:
        found = milliseconds(value, what, min_ms=min_ms)
        if found > _LONGEST_MS:
            raise JobDefinitionError(f"{what} is {value!r}; it must be at most 365d.")
        return found

    return read


def _number(least: float, most: float) -> Callable[[Any, str], float]:
    def read(value: Any, what: str) -> float:
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            found = math.nan
        if not least <= found <= most:
            raise JobDefinitionError(f"{what} is {value!r}; it must be a number from {least:g} to {most:g}.")
        return found

    return read


_ATTEMPTS: Final = _Parameter("attempts", _count)
_DELAY: Final = _Parameter("delay_ms", _duration(0), duration_text)
_STRATEGIES: Final[dict[type[RestartStrategy], dict[str, _Parameter]]] = {
    NoRestart: {},
    FixedDelay: {"attempts": _ATTEMPTS, "delay": _DELAY},
    ExponentialDelay: {
        "initial": _Parameter("initial_ms", _duration(1), duration_text),
        "max": _Parameter("max_ms", _duration(1), duration_text),
        "multiplier": _Parameter("multiplier", _number(1, 100), repr),
        "jitter": _Parameter("jitter", _number(0, 1), repr),
        "stable": _Parameter("stable_ms", _duration(1), duration_text),
        "attempts": _ATTEMPTS,
    },
    FailureRate: {
        "failures": _Parameter("failures", _count),
        "interval": _Parameter("interval_ms", _duration(1), duration_text),
        "delay": _DELAY,
    },
}


def parse_strategy(given: str | Mapping[str, Any]) -> RestartStrategy:
    """Parse a restart strategy from text, or from a JSON object with `strategy` and parameters.

    The strategies are `none`; `fixed-delay` with attempts and delay; `exponential-delay` with initial, max, multiplier,
    jitter, stable and attempts; `failure-rate` with failures, interval and delay. Omitted parameters have Flink's
    defaults. Raises JobDefinitionError, which names the error.

    >>> parse_strategy("fixed-delay:attempts=3,delay=10s")
    FixedDelay(attempts=3, delay_ms=10000)
    >>> parse_strategy({"strategy": "failure-rate", "failures": 5, "interval": "10m"})
    FailureRate(failures=5, interval_ms=600000, delay_ms=1000)
    """
    name, values = _from_text(given) if isinstance(given, str) else _from_object(given)
    kinds = {kind.name: kind for kind in _STRATEGIES}
    if name not in kinds:
        raise JobDefinitionError(
            f"The restart strategy {name!r} is not known; use one of {', '.join(kinds)}."
        )
    known = _STRATEGIES[kinds[name]]
    found = {}
    for parameter, value in values.items():
        if parameter not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no parameters"
            raise JobDefinitionError(f"The restart strategy {name} has no parameter {parameter!r}; {takes}.")
        found[known[parameter].field] = known[parameter].read(
            value, f"{parameter} of the restart strategy {name}"
        )
    return kinds[name](**found)


def strategy_text(strategy: RestartStrategy) -> str:
    """Format a strategy as text, with all parameters that differ from the default.

    >>> strategy_text(FixedDelay(attempts=3, delay_ms=10_000))
    'fixed-delay:attempts=3,delay=10s'
    """
    defaults = {field.name: field.default for field in dataclasses.fields(strategy)}
    given = [
        f"{name}={parameter.write(value)}"
        for name, parameter in _STRATEGIES[type(strategy)].items()
        if (value := getattr(strategy, parameter.field)) != defaults[parameter.field]
    ]
    return strategy.name + (f":{','.join(given)}" if given else "")


def _from_text(text: str) -> tuple[str, dict[str, str]]:
    name, colon, rest = text.strip().partition(":")
    values: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        parameter, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not parameter or not value:
            raise JobDefinitionError(
                f"The restart strategy {text!r} is not of the form NAME:PARAMETER=VALUE,..., for example "
                "fixed-delay:attempts=3,delay=10s."
            )
        if parameter in values:
            raise JobDefinitionError(f"The restart strategy {text!r} has {parameter} twice. Leave one out.")
        values[parameter] = value
    return name.strip(), values


def _from_object(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    values = dict(given)
    name = values.pop("strategy", None)
    if not isinstance(name, str):
        raise JobDefinitionError(
            'A restart strategy object needs its name, for example {"strategy": "fixed-delay", "attempts": 3}.'
        )
    return name, values
