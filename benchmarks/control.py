"""Control: how soon a command to all keys is applied, and what a storm of commands costs the data next to it.

The temperature-control job holds one key for each sensor. First a command sets the last command of all of them, several
times, and the time from its file's appearance to its receipt is measured. Then the job reads an endless folder of
readings, in turn without commands, next to commands sent to a topic that nobody reads, and with commands to single
sensors that arrive over a Kafka topic at a fixed rate. This separates the job's cost for commands from that of their
sender and the broker on the same cores. The data rate is that of the micro-batches that end within the time of the
storm. Every command must have its receipt in the end.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pyarrow.parquet as pq

from benchmarks.batches import batch_ends
from benchmarks.command import run_command
from benchmarks.report import note, print_facts
from benchmarks.running import RunningJob
from benchmarks.topics import broker_or_own, producer
from benchmarks.workload import Rooms
from penstock.commands.receipt_segments import NewReceipts
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Sizes", "measure"]

_Round = Literal["calm", "unread", "storm"]
_FINAL: Final = ("APPLIED", "DEGRADED", "REJECTED")
_TICK_S: Final = 0.02
# The receipts of one command take half of it.
_RECEIPTS_BYTES: Final = 1024


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement: keys held, commands to all of them, and the rate and duration of the storm.

    The first command to all keys is sent once the job has been idle for `rest_s`.
    """

    keys: int = 100_000
    to_all: int = 5
    rest_s: float = 2.0
    commands_per_s: int = 10_000
    seconds: int = 60
    rounds: int = 3
    file_rows: int = 500_000
    files_per_batch: int = 2
    cores: int = 2


class _Job(RunningJob):
    """The job, and the receipts of its commands."""

    def __init__(self, folder: Path, sizes: Sizes, commands: str | None) -> None:
        bindings = {
            "readings": f"parquet:{folder / 'readings'}?max_files_per_batch={sizes.files_per_batch}",
            "settings": f"parquet:{folder / 'settings'}",
            "heaters": f"parquet:{folder / 'heaters'}",
        }
        if commands is not None:
            bindings["commands"] = commands
        # All receipts of a storm, which are counted after it.
        kept_mb = 1 + sizes.commands_per_s * sizes.seconds * _RECEIPTS_BYTES // 2**20
        super().__init__(folder, bindings, ["--cores", str(sizes.cores), "--receipts-mb", str(kept_mb)])
        self._new = NewReceipts(self.checkpoint, from_start=True)
        self._finals = 0

    def finals(self) -> int:
        """Return the number of finished commands so far, all of which must have been applied."""
        for receipt in self._new.read():
            if receipt.status in _FINAL:
                self._finals += 1
                if receipt.status != "APPLIED":
                    raise RuntimeError(f"{receipt.id} is {receipt.status}: {receipt.reason}")
        return self._finals


@contextmanager
def _running(
    folder: Path, sizes: Sizes, rows: int, files: int, commands: str | None = None
) -> Iterator[_Job]:
    """Run the job with a number of files of readings, all the same under different names."""
    rooms = Rooms(sizes.keys, 0.45)
    for name in ("readings", "settings", "heaters"):
        (folder / name).mkdir(parents=True)
    pq.write_table(rooms.settings(), folder / "settings" / "0.parquet")
    pq.write_table(rooms.readings(rows, 0).table(), folder / "one.parquet")
    for number in range(files):
        os.link(folder / "one.parquet", folder / "readings" / f"{number:06d}.parquet")
    job = _Job(folder, sizes, commands)
    try:
        job.await_true("its first micro-batches", lambda: len(batch_ends(job.checkpoint)) >= min(files, 2))
        yield job
    finally:
        job.end()


def measure_all_keys(folder: Path, sizes: Sizes) -> list[float]:
    """Return the seconds from file appearance to receipt for each of some commands to all keys."""
    taken = []
    with _running(folder, sizes, 1_000, 1) as job:
        time.sleep(sizes.rest_s)
        for number in range(sizes.to_all):
            command = {
                "id": f"all-{number}",
                "kind": "set",
                "target": {"step": "thermostat", "all": True},
                "payload": {"last_command": ("ON", "OFF")[number % 2]},
            }
            new = job.checkpoint / "commands" / f".{number}"
            new.write_text(json.dumps(command))
            begin = time.monotonic()
            new.rename(new.with_name(f"{number}.jsonl"))
            job.await_true("its receipt", lambda number=number: job.finals() > number, 0.005)
            taken.append(time.monotonic() - begin)
        _check_reached(job, sizes)
    return taken


def _check_reached(job: _Job, sizes: Sizes) -> None:
    reached = {
        receipt.keys
        for receipt in NewReceipts(job.checkpoint, from_start=True).read()
        if receipt.status == "APPLIED"
    }
    if reached != {sizes.keys}:
        raise RuntimeError(f"Commands to all keys reached {reached} of {sizes.keys} keys.")


def measure_storm(folder: Path, sizes: Sizes, broker: KafkaBroker, kind: _Round) -> tuple[float, float]:
    """Return readings a second over the time of the storm, and the seconds from its end to the last receipt."""
    topic, unread = (f"{folder.parent.name}-{folder.name}-{name}" for name in ("commands", "unread"))
    for name in (topic, unread):
        broker.create_topic(name, 2)
    files = 4 * sizes.seconds * max(1, 1_000_000 // sizes.file_rows)
    uri = f"kafka://{broker.bootstrap}/{topic}"
    with _running(folder, sizes, sizes.file_rows, files, uri) as job:
        target = topic if kind == "storm" else unread
        sender = threading.Thread(target=_send, args=(broker, target, sizes, _commands(sizes)))
        begin = time.time()
        if kind != "calm":
            sender.start()
        time.sleep(sizes.seconds)
        # A rate needs two ended micro-batches, which may take longer on a busy machine.
        job.await_true(
            "two micro-batches", lambda: sum(at >= begin for at in batch_ends(job.checkpoint)) >= 2
        )
        end = time.time()
        if kind != "calm":
            sender.join()
        if kind == "storm":
            count = sizes.commands_per_s * sizes.seconds
            job.await_true("all receipts", lambda: job.finals() >= count)
        late = time.time() - end
        ends = batch_ends(job.checkpoint)
    within = [time_s for time_s in ends if begin <= time_s <= end]
    rows = (len(within) - 1) * sizes.file_rows * sizes.files_per_batch
    return rows / (within[-1] - within[0]), late


def _commands(sizes: Sizes) -> list[tuple[bytes, bytes]]:
    """Return the commands of a storm with their message keys, built in advance, since sending is not measured."""
    made = []
    for number in range(sizes.commands_per_s * sizes.seconds):
        key = number * 7919 % sizes.keys
        command = (
            f'{{"id":"c{number}","kind":"set","target":{{"step":"thermostat","key":{key}}},'
            f'"payload":{{"last_command":"{("ON", "OFF")[number % 2]}"}}}}'
        )
        made.append((command.encode(), str(key).encode()))
    return made


def _send(broker: KafkaBroker, topic: str, sizes: Sizes, commands: list[tuple[bytes, bytes]]) -> None:
    """Send commands at a steady rate."""
    client = producer(broker, **{"linger.ms": 20})
    begin = time.monotonic()
    sent = 0
    while sent < len(commands):
        due = int((time.monotonic() - begin) * sizes.commands_per_s)
        for command, key in commands[sent:due]:
            client.produce(topic, command, key)
        sent = min(due, len(commands))
        client.poll(0)
        time.sleep(_TICK_S)
    if client.flush(30):
        raise RuntimeError("The broker did not take all commands in time.")


def measure(
    sizes: Sizes, work: Path, *, calm: bool = True, broker: KafkaBroker | None = None
) -> dict[str, Any]:
    """Measure both. Raises RuntimeError if a command was lost or not applied.

    `calm` also runs without commands. Without a given broker, it starts one.
    """
    to_all = measure_all_keys(work / "all", sizes)
    kinds: tuple[_Round, ...] = get_args(_Round) if calm else ("storm",)
    rates: dict[_Round, list[float]] = {kind: [] for kind in kinds}
    late = []
    with broker_or_own(broker) as kafka:
        for number in range(sizes.rounds):
            for kind in kinds:
                place = work / f"{kind}-{number}"
                rate, behind = measure_storm(place, sizes, kafka, kind)
                rates[kind].append(rate)
                late += [behind] if kind == "storm" else []
                note(f"{place.name}: {rate:,.0f} rows/s")
    result = {
        "keys": sizes.keys,
        "all_keys_s": round(statistics.median(to_all), 3),
        "all_keys_worst_s": round(max(to_all), 3),
        "commands_per_s": sizes.commands_per_s,
        "seconds": sizes.seconds,
        "rows_per_s_with": round(statistics.median(rates["storm"])),
        "last_receipt_after_s": round(max(late), 1),
        "lost": 0,
    }
    if calm:
        result["rows_per_s_without"] = round(statistics.median(rates["calm"]))
        result["rows_per_s_unread"] = round(statistics.median(rates["unread"]))
        result["ratio"] = _ratio(rates["storm"], rates["calm"])
        result["ratio_to_unread"] = _ratio(rates["storm"], rates["unread"])
    return result


def _ratio(rates: list[float], others: list[float]) -> float:
    """Return the median ratio of the rounds."""
    return round(statistics.median(one / other for one, other in zip(rates, others, strict=True)), 2)


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    title = f"Control at {result['keys']:,} keys"
    facts = {
        "a command to all keys, to its receipt: median": f"{result['all_keys_s']:.2f} s",
        "the same: worst": f"{result['all_keys_worst_s']:.2f} s",
        "readings without commands": f"{result['rows_per_s_without']:,} a second",
        f"readings next to {result['commands_per_s']:,} commands a second": f"{result['rows_per_s_with']:,} a second",
        "the same next to commands that nobody reads": f"{result['rows_per_s_unread']:,} a second",
        "ratio to readings without commands, median of the rounds": f"{result['ratio']:.2f}",
        "ratio to readings next to commands that nobody reads": f"{result['ratio_to_unread']:.2f}",
        "last receipt after the storm's end": f"{result['last_receipt_after_s']:.1f} s",
        "commands lost": str(result["lost"]),
    }
    print_facts(title, facts)


if __name__ == "__main__":
    run_command(Sizes, measure, show)
