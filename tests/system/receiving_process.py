"""A process that receives a stream into a journal, for tests that kill it.

Arguments: the journal's folder, the URI, and whether it hangs for ever between a journal write and the
acknowledgement.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from penstock.bindings.amazon_types import KinesisBinding
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import (
    HttpListenBinding,
    MqttBinding,
    PostgresBinding,
    QueueBinding,
    RabbitStreamBinding,
)
from penstock.databases.row_json import RowShape
from penstock.databases.table_receiver import TableReceiver
from penstock.kinesis.kinesis_receiver import KinesisReceiver
from penstock.mqtt.mqtt_receiver import MqttReceiver, session_of
from penstock.rabbitmq.rabbitmq_queue import QueueReceiver
from penstock.rabbitmq.rabbitmq_stream import StreamReceiver
from penstock.records.schemas import record_type
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import Receiver
from penstock.webhooks.http_receiver import HttpReceiver


def receiver(folder: Path, uri: str, *, bounded: bool = False, fields: str = "number BIGINT") -> Receiver:  # type: ignore[type-arg]
    """Return the receiver; the stream is a control stream, so it begins at its earliest record.

    Rows of a table have `fields`.
    """
    binding = parse_binding("settings", uri, "control")
    if isinstance(binding, QueueBinding):
        return QueueReceiver(binding, JournalWriter(folder), bounded=bounded)
    if isinstance(binding, MqttBinding):
        return MqttReceiver(binding, session_of(binding, folder.name), JournalWriter(folder), bounded=bounded)
    if isinstance(binding, HttpListenBinding):
        return HttpReceiver(binding, folder, JournalWriter(folder), bounded=bounded)
    if isinstance(binding, KinesisBinding):
        return KinesisReceiver(binding, folder, JournalWriter(folder), bounded=bounded)
    if isinstance(binding, PostgresBinding):
        return TableReceiver(
            binding, RowShape(record_type(fields).schema), JournalWriter(folder), bounded=bounded
        )
    assert isinstance(binding, RabbitStreamBinding)
    return StreamReceiver(binding, JournalWriter(folder), bounded=bounded)


def main() -> None:
    """Receive until killed; print a line when connected, and one whenever messages have become durable.

    A receiver that fails ends the process with its error.
    """
    folder, uri, waits = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "waits"
    append, is_told = JournalWriter.append, threading.Event()

    def append_and_tell(journal: JournalWriter, records: list[bytes], note: bytes = b"") -> int:
        position = append(journal, records, note)
        if records:
            # A thread of the receiver may be faster than this program.
            is_told.wait()
            print(len(records), flush=True)
            if waits:
                time.sleep(600)
        return position

    JournalWriter.append = append_and_tell  # type: ignore[method-assign,assignment]
    with receiver(folder, uri) as receiving:
        print("connected", flush=True)
        is_told.set()
        while receiving.error is None:
            time.sleep(0.1)
    raise receiving.error


if __name__ == "__main__":
    main()
