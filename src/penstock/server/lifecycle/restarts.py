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
    "after_failure",
    "parse_strategy",
    "strategy_text",
]

_LONGEST_MS: Final = 365 * 86_400_000


@dataclass(frozen=True)
class NoRestart:
    """A failed job stays failed."""

    name: ClassVar[str] = "none"


@dataclass(frozen=True)
class FixedDelay:
    """A job restarts a number of times, each time after the same delay."""

    name: ClassVar[str] = "fixed-delay"
    attempts: int = 1
    delay_ms: int = 1000


@dataclass(frozen=True)
class ExponentialDelay:
    """A job restarts after a delay that grows with each failure, from `initial_ms` to `max_ms`.

    The delay varies by the share `jitter`, so that jobs that failed together do not start together. After a job has run
    for `stable_ms`, the delay starts over. Without `attempts` it never gives up; else it does after that many restarts
    since it was stable.
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
                f"max={duration_text(self.max_ms)}; the first delay must not be longer than the longest."
            )


@dataclass(frozen=True)
class FailureRate:
    """A job restarts after a delay, unless it failed more than `failures` times within an interval."""

    name: ClassVar[str] = "failure-rate"
    failures: int = 1
    interval_ms: int = 60_000
    delay_ms: int = 1000


RestartStrategy: TypeAlias = NoRestart | FixedDelay | ExponentialDelay | FailureRate

DEFAULT_STRATEGY: Final = ExponentialDelay()


class RestartHistory(msgspec.Struct, frozen=True):
    """What a strategy remembers of a job: its failures.

    `total` counts all of them, `attempts` those since the job was stable, `recent_ms` are the times that may still
    matter, and `next_ms` the time of the start after the last one.
    """

    total: int = 0
    attempts: int = 0
    recent_ms: tuple[int, ...] = ()
    next_ms: int = 0


NO_FAILURES: Final = RestartHistory()


class Restart(msgspec.Struct, frozen=True):
    """What happens to a failed job: a restart after a delay, or none if it is None, and the reason."""

    history: RestartHistory
    delay_ms: int | None
    reason: str


def after_failure(strategy: RestartStrategy, history: RestartHistory, job_id: str, now_ms: int) -> Restart:
    """Decide on a job that has just failed. The same arguments give the same decision.

    >>> after_failure(FixedDelay(attempts=3, delay_ms=10_000), RestartHistory(), "job-1", 0).delay_ms
    10000
    """
    total = history.total + 1
    match strategy:
        case NoRestart():
            return Restart(RestartHistory(total), None, "its restart strategy is none")
        case FixedDelay(attempts, delay_ms):
            made = history.attempts
            if made >= attempts:
                return Restart(RestartHistory(total, made), None, f"it was started again {made} times")
            return Restart(
                RestartHistory(total, made + 1, (), now_ms + delay_ms),
                delay_ms,
                f"restart {made + 1} of {attempts}",
            )
        case ExponentialDelay():
            return _exponential(strategy, history, job_id, now_ms)
        case FailureRate(failures, interval_ms, delay_ms):
            # When the clock goes back, no failure may lie in the future, where it would count forever.
            times = (*(min(time_ms, now_ms) for time_ms in history.recent_ms), now_ms)
            recent = tuple(time_ms for time_ms in times if now_ms - time_ms < interval_ms)
            reason = f"{len(recent)} failures within {duration_text(interval_ms)}"
            after = RestartHistory(total, 0, recent[-failures - 1 :], now_ms + delay_ms)
            return Restart(after, None if len(recent) > failures else delay_ms, reason)


def _exponential(strategy: ExponentialDelay, history: RestartHistory, job_id: str, now_ms: int) -> Restart:
    stable = history.total > 0 and now_ms - history.next_ms >= strategy.stable_ms
    made = 0 if stable else history.attempts
    total = history.total + 1
    if strategy.attempts is not None and made >= strategy.attempts:
        return Restart(RestartHistory(total, made), None, f"it was started again {made} times")
    delay_ms = _jittered(strategy, _grown_ms(strategy, made), f"{job_id}/{total}")
    of = "" if strategy.attempts is None else f" of {strategy.attempts}"
    return Restart(
        RestartHistory(total, made + 1, (), now_ms + delay_ms), delay_ms, f"restart {made + 1}{of}"
    )


def _grown_ms(strategy: ExponentialDelay, times: int) -> float:
    """The delay after a number of increases. Powers are compared first, since they overflow."""
    ratio = strategy.max_ms / strategy.initial_ms
    if times * math.log(strategy.multiplier) >= math.log(ratio):
        return float(strategy.max_ms) if strategy.multiplier > 1 else float(strategy.initial_ms)
    return strategy.initial_ms * strategy.multiplier**times


def _jittered(strategy: ExponentialDelay, delay_ms: float, seed: str) -> int:
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


def _duration(least_ms: int) -> Callable[[Any, str], int]:
    def read(value: Any, what: str) -> int:
        found = milliseconds(value, what, least_ms=least_ms)
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
    """A restart strategy from text, or from a JSON object with `strategy` and the parameters.

    The strategies are `none`; `fixed-delay` with attempts and delay; `exponential-delay` with initial, max, multiplier,
    jitter, stable and attempts; `failure-rate` with failures, interval and delay. Parameters left out have
    Flink's defaults. Raises JobDefinitionError, which names what is wrong.

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
    """The text of a strategy, with all parameters that are not the default.

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
            raise JobDefinitionError(f"The restart strategy {text!r} has {parameter} twice.")
        values[parameter] = value
    return name.strip(), values


def _from_object(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    values = dict(given)
    name = values.pop("strategy", None)
    if not isinstance(name, str):
        raise JobDefinitionError(
            'A restart strategy is an object with its name, for example {"strategy": "fixed-delay", "attempts": 3}.'
        )
    return name, values
