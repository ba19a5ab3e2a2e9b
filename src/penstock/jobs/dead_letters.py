"""Dead letters: read the newest records that a job could not process from where the job puts them."""

from __future__ import annotations

import base64
import csv
import os
import re
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.bindings.secrets import redact
from penstock.bindings.types import Binding, FilesBinding, KafkaBinding
from penstock.brokers.kafka_topics import LastError, build_client, check_topic
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.operators.record_blocks import DeadLetter

__all__ = ["FoundLetter", "format_record", "newest_letters"]

_PART: Final = re.compile(r"part-(\d{4,})-(\d{10,})\.\w+")
_TAIL_BYTES: Final = 4 << 20
_CHARACTER_BYTES: Final = 4
_KAFKA_S: Final = 5.0
_POLL_S: Final = 0.2


class FoundLetter(msgspec.Struct, frozen=True):
    """A dead letter, with the time when it was written in milliseconds since 1970.

    `batch` is the micro-batch that wrote it, if it comes from a folder; else None.
    """

    letter: DeadLetter
    at_ms: int
    batch: int | None = None


def format_record(raw: bytes, max_bytes: int) -> tuple[Literal["text", "base64"], str]:
    """Format the beginning of a record for people: as text if it is UTF-8, else in base64.

    >>> format_record(b"abc", 2), format_record(bytes([255, 0]), 10)
    (('text', 'ab'), ('base64', '/wA='))
    """
    try:
        return "text", raw[:max_bytes].decode()
    except UnicodeDecodeError as e:
        # The limit may have cut the last character.
        if max_bytes < len(raw) and e.start >= max_bytes - _CHARACTER_BYTES and e.end == max_bytes:
            return "text", raw[: e.start].decode()
        return "base64", base64.b64encode(raw[:max_bytes]).decode()


_decoder: Final = msgspec.json.Decoder(DeadLetter)


def newest_letters(binding: Binding, most: int, timeout_s: float = _KAFKA_S) -> list[FoundLetter]:
    """Return the newest dead letters at a place, oldest first, at most `most`.

    Reads at most the last 4 MiB of each file in a folder, and of a topic what the broker sends within the timeout.
    Returns none for a folder that does not exist yet. Raises BindingError for a place that cannot be read,
    ExternalSystemError when a broker does not answer, and CheckpointError for a file with other contents.
    """
    if isinstance(binding, FilesBinding):
        return _read_folder(binding, most)
    if isinstance(binding, KafkaBinding):
        return _read_topic(binding, most, timeout_s)
    raise BindingError(
        f"The dead letters of the job go to {redact(binding.uri)!r}, where nobody can read them again. Bind "
        "dead-letters to a folder or to Kafka, or leave it out."
    )


def _read_folder(binding: FilesBinding, most: int) -> list[FoundLetter]:
    try:
        names = os.listdir(binding.directory)  # noqa: PTH208  # only names are needed
    except (FileNotFoundError, NotADirectoryError):
        return []
    parts = sorted(
        (int(part[1]), int(part[2]), name) for name in names if (part := _PART.fullmatch(name)) is not None
    )
    found: deque[FoundLetter] = deque()
    for _, batch, name in reversed(parts):
        path = Path(binding.directory, name)
        try:
            at_ms = path.stat().st_mtime_ns // 1_000_000
            letters = _read_file(path, binding.format, most - len(found))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, msgspec.MsgspecError, pa.ArrowException, csv.Error) as e:
            raise CheckpointError(f"{path} does not hold dead letters: {e}. Move it elsewhere.") from e
        found.extendleft(FoundLetter(letter, at_ms, batch) for letter in reversed(letters))
        if len(found) >= most:
            break
    return list(found)


def _read_file(path: Path, form: str, most: int) -> list[DeadLetter]:
    if form == "parquet":
        return _read_parquet(path, most)
    if form == "csv":
        return list(deque(_read_csv(path), most))
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - _TAIL_BYTES)
        file.seek(begin)
        lines = file.read().splitlines()
    # If the file is larger than the tail, the first line is torn.
    return [_decoder.decode(line) for line in (lines[1:] if begin else lines)[-most:]]


def _read_csv(path: Path) -> Iterator[DeadLetter]:
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield msgspec.convert({**row, "raw": base64.b64decode(row["raw"])}, DeadLetter, strict=False)


def _read_parquet(path: Path, most: int) -> list[DeadLetter]:
    found: deque[DeadLetter] = deque()
    with pq.ParquetFile(path) as file:
        for group in reversed(range(file.num_row_groups)):
            if len(found) >= most:
                break
            rows = file.read_row_group(group).slice(
                max(0, file.metadata.row_group(group).num_rows - (most - len(found)))
            )
            found.extendleft(msgspec.convert(row, DeadLetter) for row in reversed(rows.to_pylist()))
    return list(found)


def _read_topic(binding: KafkaBinding, most: int, timeout_s: float) -> list[FoundLetter]:
    settings = binding.client
    deadline_s = time.monotonic() + timeout_s
    partitions = check_topic(binding, settings, timeout_s)
    errors = LastError()
    own = {
        # Commits nothing, so no other consumer notices.
        "group.id": f"penstock-{uuid.uuid4().hex}",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": False,
    }
    consumer = build_client(Consumer, binding, {**settings, **own}, errors)
    try:
        found = _poll_newest(consumer, binding.topic, partitions, most, deadline_s)
    except KafkaException as e:
        raise ExternalSystemError(
            f"The dead letters in the topic {binding.topic!r} on {binding.servers} cannot be read "
            f"({errors.after(e.args[0])})."
        ) from e
    finally:
        consumer.close()
    return sorted(found, key=lambda letter: letter.at_ms)[-most:]


def _poll_newest(
    consumer: Consumer, topic: str, partitions: int, most: int, deadline_s: float
) -> list[FoundLetter]:
    """Poll the last records of each partition, until all have arrived or the deadline has passed."""
    ends: dict[int, int] = {}
    wanted = []
    for number in range(partitions):
        left_s = max(0.1, deadline_s - time.monotonic())
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), left_s)
        if high > low:
            ends[number] = high
            wanted.append(TopicPartition(topic, number, max(low, high - most)))
    consumer.assign(wanted)
    found = []
    while ends and time.monotonic() < deadline_s:
        message = consumer.poll(_POLL_S)
        if message is None:
            # The marker of a transaction's end may follow the last record; it is not a record.
            places = consumer.position(wanted)
            ends = {p.partition: ends[p.partition] for p in places if p.offset < ends.get(p.partition, 0)}
            continue
        if message.error() is not None:
            raise KafkaException(message.error())
        letter = _decode_letter(message.value())
        if letter is not None:
            found.append(FoundLetter(letter, max(0, message.timestamp()[1])))
        partition, offset = message.partition(), message.offset()
        if partition in ends and offset is not None and offset + 1 >= ends[partition]:
            del ends[partition]
    return found


def _decode_letter(value: Any) -> DeadLetter | None:
    """Decode a dead letter; None for a record that another program has written to the topic."""
    try:
        return _decoder.decode(value or b"")
    except msgspec.MsgspecError:
        return None
