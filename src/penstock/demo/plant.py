"""The plant: sensors publish to MQTT, settings come over RabbitMQ, and the commands are rows of PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import psycopg

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import MqttBinding
from penstock.demo.feeds import COMMANDS, READINGS, SETTINGS, Batch, Record
from penstock.machine.mosquitto import LocalMosquitto
from penstock.machine.postgresql_server import LocalPostgres
from penstock.machine.rabbitmq_server import LocalRabbitMQ
from penstock.mqtt.mqtt_connection import MqttConnection
from penstock.records.schemas import record_type
from penstock.runtime.cuts import read_cut
from penstock.sinks.publishing_sink import OutgoingMessage
from penstock.sources.journal import JournalLog

__all__ = ["Plant", "PlantEvidence"]

_BODY: Final = record_type("body BINARY")
_SESSION: Final = "penstock-demo"
_TABLE: Final = (
    "CREATE TABLE heaters (place BIGINT GENERATED ALWAYS AS IDENTITY, sensor_id INT, command TEXT)"
)
_NEW_ROWS: Final = "SELECT place, sensor_id, command FROM heaters WHERE place > %s ORDER BY place"


class Plant:
    """The three servers and the connections of the rooms to them; a context manager."""

    place: Final = "MQTT, RabbitMQ and PostgreSQL"

    def __init__(self, folder: Path) -> None:
        for name in ("mqtt", "rabbitmq"):
            (folder / name).mkdir()
        password = secrets.token_hex(8)
        self._sensors = LocalMosquitto(folder / "mqtt")
        self._owners = LocalRabbitMQ(folder / "rabbitmq", "penstock", password)
        self._heaters = LocalPostgres(password)
        database = self._heaters.url("postgres")
        self.bindings: Final[Mapping[str, str]] = {
            READINGS: f"mqtt://127.0.0.1:{self._sensors.port}/rooms/+?client_id={_SESSION}",
            SETTINGS: f"amqp://penstock:{password}@127.0.0.1:{self._owners.port}/%2F/{SETTINGS}",
            COMMANDS: f"{database}/heaters",
        }
        self._database = database
        self._encoder = msgspec.json.Encoder()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            for server in (self._sensors, self._owners, self._heaters):
                opened.enter_context(server)
            readings = parse_binding(READINGS, self.bindings[READINGS], "data")
            assert isinstance(readings, MqttBinding)
            # The broker keeps what the rooms send before the job is up, in the session that the job will continue with.
            with MqttConnection(readings, _SESSION) as job:
                job.subscribe()
            self._mqtt = opened.enter_context(MqttConnection(readings, None))
            # Nobody serves heartbeats while the demo waits for the job.
            queues = self._owners.connect(heartbeat=0)
            opened.callback(queues.close)
            self._channel = queues.channel()
            self._channel.confirm_delivery()
            self._channel.queue_declare(SETTINGS, durable=True)
            with psycopg.connect(self._database, autocommit=True) as connection:
                connection.execute(_TABLE)
            self._commands = opened.enter_context(contextlib.closing(_Rows(self._database)))
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def send(self, stream: str, records: Sequence[Record]) -> None:
        """Send records, and wait until the broker has them."""
        if stream == SETTINGS:
            for record in records:
                self._channel.basic_publish("", SETTINGS, self._encoder.encode(record))
            return
        messages = {
            number: OutgoingMessage(f"rooms/{record['sensor_id']}", self._encoder.encode(record))
            for number, record in enumerate(records)
        }
        for _ in self._mqtt.publish(messages):
            pass

    def new_commands(self) -> list[Record]:
        """Return the commands in rows that were committed since the last call."""
        return self._commands.new()

    def evidence(self, checkpoint: str) -> PlantEvidence:
        """Return new evidence, from the first micro-batch on."""
        return PlantEvidence(Path(checkpoint), self._database)


class PlantEvidence:
    """A reader of the journals between the cuts of each micro-batch, and of the committed rows."""

    tells_batch: Final = False

    def __init__(self, checkpoint: Path, database: str) -> None:
        self._checkpoint = checkpoint
        self._journals = {
            stream: JournalLog(checkpoint / "sources" / f"{stream}.journal")
            for stream in (SETTINGS, READINGS)
        }
        self._position = dict.fromkeys(self._journals, 0)
        self._rows = _Rows(database)

    def batch(self, batch_id: int) -> Batch:
        """Return the input of a micro-batch."""
        ends = read_cut(self._checkpoint, batch_id).ends
        found = {}
        for stream in self._journals:
            end = ends.get(stream, self._position[stream])
            assert isinstance(end, int)
            found[stream] = self._records(stream, end)
        return Batch(batch_id, found[SETTINGS], found[READINGS])

    def _records(self, stream: str, end: int) -> list[Record]:
        start, self._position[stream] = self._position[stream], end
        log = self._journals[stream]
        chunks = log.read(log.splits(start, end, 1), _BODY)
        return [
            json.loads(body) for chunk in chunks if chunk.raw is not None for body in chunk.raw.to_pylist()
        ]

    def commands(self, batch_id: int) -> list[Record]:  # noqa: ARG002  # the table does not have it
        """Return the commands that were committed since the last call."""
        return self._rows.new()

    def close(self) -> None:
        """Close the connection."""
        self._rows.close()


class _Rows:
    """A reader of the commands in the table, each once.

    Tasks commit in any order, so places below the newest may still come.
    """

    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(database, autocommit=True)
        self._read_to = 0
        self._read_above: set[int] = set()

    def new(self) -> list[Record]:
        """Return the rows that were committed since the last call, in order for each sensor."""
        rows = self._connection.execute(_NEW_ROWS, [self._read_to]).fetchall()
        found = [
            {"sensor_id": sensor, "command": command}
            for place, sensor, command in rows
            if place not in self._read_above
        ]
        self._read_above = {place for place, _, _ in rows}
        while self._read_to + 1 in self._read_above:
            self._read_to += 1
            self._read_above.remove(self._read_to)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
