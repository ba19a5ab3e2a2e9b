"""Difficult loads: a partition without records, a function that is slow, and a broker that goes away."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final

import msgspec
import numpy as np

from benchmarks.loads.heavy import check_notes, note
from benchmarks.loads.setting import Figures, LoadError, Setting
from benchmarks.probe import percentiles
from benchmarks.topics import consumer, load_values, producer, read_values

__all__ = ["broker_away", "idle_partition", "slow_function"]

_STEP_S: Final = 0.05
_WINDOW_MS: Final = 1000
_SETTLED_S: Final = 8.0
_PATIENCE_S: Final = 120.0
_SLOW_BYTES: Final = 2_048
_SLOW: Final = 150_000
_SLOW_KEYS: Final = 100
_RATE: Final = 200


def idle_partition(setting: Setting) -> Figures:
    """Send visits to both partitions, then to one of them; windows go on once the other one counts as idle.

    A window's delay is the time from its end to its result in the consumer's hands, with visits every 50 ms.
    """
    topics = setting.create_topics()
    sending = producer(setting.broker, **{"linger.ms": 0})
    with setting.own_job("windows") as running:
        taking = consumer(setting.broker, topics.heaters, new_records=True)
        visits: dict[tuple[int, int], int] = {}
        found: dict[tuple[int, int], int] = {}
        delays: list[tuple[float, float]] = []
        alone_s, end_s, begin = float("inf"), float("inf"), time.monotonic()
        while time.time() < end_s:
            running.check()
            now = time.time()
            if not found and time.monotonic() - begin > _PATIENCE_S:
                raise LoadError(f"No window had a result within {_PATIENCE_S:.0f} s.")
            if found and alone_s == float("inf"):
                alone_s = now + _SETTLED_S
                end_s = alone_s + setting.seconds
            at = int(now * 1000)
            for key in range(setting.partitions if now < alone_s else 1):
                visit = msgspec.json.encode({"key": key, "at": at})
                sending.produce(topics.readings, visit, str(key), key)
                window = at // _WINDOW_MS * _WINDOW_MS
                visits[key, window] = visits.get((key, window), 0) + 1
            sending.poll(0)
            for message in taking.consume(1000, _STEP_S):
                if message.error() is None:
                    result = msgspec.json.decode(message.value() or b"")
                    window = _milliseconds(result["window_start"])
                    if (result["key"], window) in found:
                        raise LoadError(f"The window {window} of key {result['key']} has two results.")
                    found[result["key"], window] = result["value"]
                    delays.append((time.time(), time.time() - (window + _WINDOW_MS) / 1000))
        taking.close()
        sending.flush(10)
    wrong = {window: count for window, count in found.items() if visits.get(window) != count}
    if wrong:
        raise LoadError(f"{len(wrong)} windows have a wrong count, as {next(iter(wrong.items()))}.")
    return _window_figures(delays, alone_s)


def _window_figures(delays: list[tuple[float, float]], alone_s: float) -> Figures:
    """Return delays while both partitions had visits, and while one was alone, and the pause between the two."""
    both = np.array([delay for at, delay in delays if alone_s - _SETTLED_S / 2 < at < alone_s])
    after = sorted((at, delay) for at, delay in delays if at >= alone_s + 1.0)
    if not after:
        raise LoadError("No window had a result once one partition had no more records.")
    # The idle partition holds time back for a while; the last windows show what stays.
    last = np.array([delay for at, delay in after if at > (alone_s + after[-1][0]) / 2])
    return {
        "delay_both_p50_ms": round(float(np.median(both)) * 1000) if len(both) else None,
        "held_back_s": round(after[0][0] - alone_s, 2),
        "delay_alone_p50_ms": round(float(np.median(last)) * 1000),
        "windows": len(delays),
    }


def _milliseconds(text: str) -> int:
    return round(msgspec.convert(text, type=dt.datetime).timestamp() * 1000)


def slow_function(setting: Setting) -> Figures:
    """Let a function take 2 ms for each record of a long backlog: the source waits, and memory stays bounded."""
    count = setting.scaled(_SLOW)
    topics = setting.create_topics()
    keys = [number % _SLOW_KEYS for number in range(count)]
    values = [note(key, number, _SLOW_BYTES) for number, key in enumerate(keys)]
    load_values(setting.broker, topics.readings, setting.partitions, keys, values)
    with setting.own_job("slow_copies") as running:
        begin = time.monotonic()
        while not setting.outputs():
            running.check()
            if time.monotonic() - begin > _PATIENCE_S:
                raise LoadError(f"Nothing came within {_PATIENCE_S:.0f} s.")
            time.sleep(0.1)
        time.sleep(min(_SETTLED_S, setting.seconds))
        running.check()
        early_mb, early, start = running.memory_mb, setting.outputs(), time.monotonic()
        time.sleep(setting.seconds)
        running.check()
        rate = (setting.outputs() - early) / (time.monotonic() - start)
        late_mb, peak_mb, stop = running.memory_mb, running.memory.peak_mb, time.monotonic()
    stopped_s = time.monotonic() - stop
    check_notes(read_values(setting.broker, topics.heaters), _SLOW_BYTES)
    return {
        "records_per_s": round(rate),
        "backlog_mb": count * _SLOW_BYTES >> 20,
        "memory_mb": late_mb,
        "growth_mb": late_mb - early_mb,
        "peak_mb": peak_mb,
        "stop_s": round(stopped_s, 1),
    }


def broker_away(setting: Setting) -> Figures:
    """Stop the broker for a time under load, and start it again: all readings are answered, also those of that time.

    While the broker is away, the readings wait in the probe's client. The latency is that of later ones.
    """
    with setting.probed(_RATE * 10, broker_stops=True) as probed:
        probed.send(_SETTLED_S, _RATE)
        setting.broker.stop()
        gone_s = time.time()
        probed.send(setting.seconds, _RATE)
        setting.broker.start()
        back_s = time.time()
        probed.send(_SETTLED_S, _RATE)
        begin = probed.probe.sent
        probed.send(_SETTLED_S, _RATE)
        trips = probed.check_answers(repeated=True)
        first_s = probed.probe.first_command_after(back_s)
        latency = percentiles(probed.probe.trips(begin, probed.probe.sent).latency_ms)
        return {
            "away_s": round(back_s - gone_s, 1),
            "first_answer_s": round(first_s - back_s, 2) if first_s is not None else None,
            "readings": trips.readings,
            "repeated": trips.repeated,
            **latency,
            "memory_mb": probed.job.memory_mb,
        }
