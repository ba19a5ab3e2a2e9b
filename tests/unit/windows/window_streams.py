"""Random windows, and random streams for them, in the form of the cases of windowing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from hypothesis import strategies as st

__all__ = ["ASSIGNERS", "EVENT_TIME", "elements", "is_valid", "specs", "specs_and_elements"]

Spec = dict[str, Any]
Strategy = st.SearchStrategy[Spec]

FOREVER = 2**63 - 1
FAR = 10_000
"""Later than processing time comes in any stream."""

SESSIONS = {"session", "dynamic_session", "pt_session"}
COUNTED = {"count_tumbling", "count_sliding"}
EVENT_TIME = {"tumbling", "sliding", "cumulative", "session", "dynamic_session"}


# What is valid.


def is_valid(spec: Mapping[str, Any]) -> bool:
    """Return whether the parts of a spec can be combined, as in Flink."""
    assigner, trigger, evictor, lateness = (
        spec[name] for name in ("assigner", "trigger", "evictor", "lateness")
    )
    if assigner["type"] == "count_sliding" and evictor["type"] != "none":
        return False  # These windows have a built-in evictor.
    if lateness < 0 or (lateness > 0 and assigner["type"] not in EVENT_TIME):
        return False  # Only event-time windows have lateness.
    parts_are_valid = is_valid_assigner(assigner) and is_valid_trigger(trigger) and is_valid_evictor(evictor)
    return parts_are_valid and goes_with(assigner, trigger)


def is_valid_assigner(assigner: Mapping[str, Any]) -> bool:
    """Return whether the numbers of an assigner are in range."""
    if any(assigner.get(name, 1) <= 0 for name in ("size", "slide", "step", "gap", "n")):
        return False
    if assigner["type"] == "cumulative" and assigner["size"] % assigner["step"]:
        return False
    return "offset" not in assigner or abs(assigner["offset"]) < period(assigner)


def is_valid_trigger(trigger: Mapping[str, Any]) -> bool:
    """Return whether a trigger is complete and its numbers are in range."""
    if trigger["type"] == "purging":
        return trigger["of"]["type"] not in {"purging", "default"} and is_valid_trigger(trigger["of"])
    threshold: float = trigger.get("threshold", 0.0)
    return threshold >= 0 and all(trigger.get(name, 1) > 0 for name in ("n", "interval"))


def is_valid_evictor(evictor: Mapping[str, Any]) -> bool:
    """Return whether the numbers of an evictor are in range."""
    return all(evictor.get(name, 0) >= 0 for name in ("n", "ms", "threshold"))


def goes_with(assigner: Mapping[str, Any], trigger: Mapping[str, Any]) -> bool:
    """Return whether a trigger can be used on the windows of an assigner."""
    windows = assigner["type"]
    inner: str = trigger.get("of", trigger)["type"]
    if windows in COUNTED:
        return inner == "default"
    if windows == "global":
        # Global windows that fire at the end of the stream have a trigger for that; others need an explicit
        # one.
        return (inner == "default") == bool(assigner.get("end_of_stream"))
    if inner == "never":
        return False
    # The state of a delta trigger cannot be merged.
    return not (inner == "delta" and windows in SESSIONS)


def period(assigner: Mapping[str, Any]) -> int:
    """Return the distance between the starts of two windows."""
    length: int = assigner.get("slide", assigner["size"])
    return length


# Windows.


def described(kind: str, **parts: st.SearchStrategy[Any]) -> Strategy:
    """Return a part of a spec."""
    return st.fixed_dictionaries({"type": st.just(kind), **parts})


def sized(kind: str, *, slides: bool = False, offset: bool = True, parity: int = 1) -> Strategy:
    """Draw assigners with a size, and perhaps a slide and an offset, all of them multiples of the parity."""
    size = st.integers(1, 15).map(lambda n: parity * n)

    @st.composite
    def drawn(draw: st.DrawFn) -> Spec:
        assigner: Spec = {"type": kind, "size": draw(size)}
        if slides:
            assigner["slide"] = draw(size)
        if offset:
            most = (period(assigner) - 1) // parity
            assigner["offset"] = parity * draw(st.integers(-most, most))
        return assigner

    return drawn()


small = st.integers(1, 15)
counts = st.integers(1, 4)
thresholds = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0])

# Processing times are even and the last instant of a processing-time window is odd, so that no record arrives
# in the very instant in which its window closes.
ASSIGNERS: dict[str, Strategy] = {
    "tumbling": sized("tumbling"),
    "sliding": sized("sliding", slides=True),
    "cumulative": st.builds(
        lambda step, steps, shift: {
            "type": "cumulative",
            "step": step,
            "size": step * steps,
            "offset": shift % (step * steps),
        },
        st.integers(1, 6),
        st.integers(1, 4),
        st.integers(0, 5),
    ),
    "session": described("session", gap=small),
    "dynamic_session": described("dynamic_session"),
    "global": st.fixed_dictionaries({"type": st.just("global")}, optional={"end_of_stream": st.just(True)}),
    "count_tumbling": described("count_tumbling", n=counts),
    "count_sliding": described("count_sliding", n=counts, slide=counts),
    "pt_tumbling": sized("pt_tumbling", parity=2),
    "pt_sliding": sized("pt_sliding", slides=True, offset=False, parity=2),
    "pt_session": described("pt_session", gap=small.map(lambda half: 2 * half)),
}

PLAIN_TRIGGERS: dict[str, Strategy] = {
    "event_time": described("event_time"),
    "processing_time": described("processing_time"),
    "count": described("count", n=counts),
    "delta": described("delta", threshold=thresholds),
    "continuous_event_time": described("continuous_event_time", interval=small),
    "continuous_processing_time": described("continuous_processing_time", interval=small),
    "never": described("never"),
}

EVICTORS: dict[str, Strategy] = {
    "none": described("none"),
    "count": described("count", n=st.integers(0, 3), after=st.booleans()),
    "time": described("time", ms=st.integers(0, 12), after=st.booleans()),
    "delta": described("delta", threshold=thresholds, after=st.booleans()),
}


def triggers_for(assigner: Spec) -> Strategy:
    """Draw triggers that can be used on the windows of an assigner."""
    plain = [drawn for kind, drawn in PLAIN_TRIGGERS.items() if goes_with(assigner, {"type": kind})]
    if not plain:
        return described("default")
    others = st.one_of(*plain, *(described("purging", of=drawn) for drawn in plain))
    return evenly(described("default"), others) if goes_with(assigner, {"type": "default"}) else others


def evenly(usual: Strategy, others: Strategy) -> Strategy:
    """Draw the common choice as often as all others together."""
    return st.booleans().flatmap(lambda other: others if other else usual)


@st.composite
def specs(draw: st.DrawFn, *, are_cleaned_up: bool = False) -> Spec:
    """Draw windows of every kind with every valid trigger, evictor and lateness.

    With `are_cleaned_up`, only those that event time cleans up.
    """
    kinds = EVENT_TIME if are_cleaned_up else ASSIGNERS
    assigner = draw(st.sampled_from(sorted(kinds)).flatmap(lambda kind: ASSIGNERS[kind]))
    own_evictor = assigner["type"] == "count_sliding"
    has_lateness = assigner["type"] in EVENT_TIME
    lateness = st.just(0) | small | (st.nothing() if are_cleaned_up else st.just(FOREVER))
    return {
        "assigner": assigner,
        "trigger": draw(triggers_for(assigner)),
        "evictor": draw(
            EVICTORS["none"] if own_evictor else evenly(EVICTORS["none"], st.one_of(*EVICTORS.values()))
        ),
        "lateness": draw(lateness) if has_lateness else 0,
        "late_output": draw(st.booleans()),
    }


# Streams.

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.integers(-3, 3).map(float)

HAPPENINGS: dict[str, Strategy] = {
    "record": st.fixed_dictionaries(
        {"key": KEYS, "ahead": st.integers(-20, 8), "v": VALUES, "gap": st.integers(1, 12)}
    ),
    "again": st.just({"again": True}),
    "watermark": st.fixed_dictionaries({"wm_ahead": st.integers(-15, 8)}),
    "processing time": st.fixed_dictionaries({"pt_step": st.integers(0, 6).map(lambda half: 2 * half)}),
}
OFTEN = [*(6 * ["record"]), "again", "watermark", "watermark", "processing time", "processing time"]
happenings = st.sampled_from(OFTEN).flatmap(lambda kind: HAPPENINGS[kind])


def elements(spec: Spec) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Draw streams for windows, with records out of order, duplicate and late, and watermarks that sometimes
    fall.

    Times start below 0 and are near the largest one so far. Processing time does not fall. If a trigger would
    never stop, there is no final watermark, or event times are far ahead of processing time.
    """
    trigger = spec["trigger"].get("of", spec["trigger"])["type"]
    windows = spec["assigner"]["type"]
    # Such a trigger never stops if processing time reaches the end of a window that only a watermark cleans
    # up.
    start = FAR if trigger == "continuous_processing_time" and windows in EVENT_TIME else -15
    # Such a trigger fires until the end of all time in a window without an end.
    endless = trigger == "continuous_event_time" and windows == "global"
    after_the_end = st.none() if endless else st.none() | st.integers(0, 3)
    has_gaps = windows == "dynamic_session"
    return st.builds(
        lambda drawn, after: with_end(
            laid_out(list(chain.from_iterable(drawn)), start, has_gaps=has_gaps), after
        ),
        # Nested short lists give long streams more often than a single list does.
        st.lists(st.lists(happenings, max_size=10), max_size=10),
        after_the_end,
    )


def laid_out(drawn: list[dict[str, Any]], start: int, *, has_gaps: bool) -> list[dict[str, Any]]:
    """Return elements with times, made from events with distances."""
    largest, processing_time = start, 0
    last: dict[str, Any] | None = None
    made: list[dict[str, Any]] = []
    for one in drawn:
        if "wm_ahead" in one:
            made.append({"wm": largest + one["wm_ahead"]})
        elif "pt_step" in one:
            processing_time += one["pt_step"]
            made.append({"pt": processing_time})
        elif "again" in one:
            made += [dict(last)] if last else []
        else:
            last = {"key": one["key"], "ts": largest + one["ahead"], "v": one["v"]}
            last |= {"gap": one["gap"]} if has_gaps else {}
            largest = max(largest, last["ts"])
            made.append(last)
    return made


def with_end(made: list[dict[str, Any]], after: int | None) -> list[dict[str, Any]]:
    """Return elements followed by the final watermark and some of the records again, unless that is None."""
    if after is None:
        return made
    return [*made, {"wm": FOREVER}, *[one for one in made if "key" in one][:after]]


def specs_and_elements(
    *, are_cleaned_up: bool = False
) -> st.SearchStrategy[tuple[Spec, list[dict[str, Any]]]]:
    """Draw windows, each with a stream for them."""
    return specs(are_cleaned_up=are_cleaned_up).flatmap(lambda spec: st.tuples(st.just(spec), elements(spec)))
