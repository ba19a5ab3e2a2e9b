"""Avro messages of a registry to columns, beside the fastest libraries, in turns in one process.

penstock is given single messages with the id of their schema, and makes the columns of a record type; it checks the id,
the texts, and where each message ends. pyruhvro makes columns of the same messages, whose ids are checked and cut off
for it, and of messages that have none; it checks neither texts nor where messages end. fastavro makes dictionaries of
single messages, and of a file with one header. Times are those of the processor.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyruhvro

from benchmarks.decoding_turns import measure, print_found
from benchmarks.report import print_json
from penstock.bindings.types import RegistryBinding
from penstock.records.schemas import record_type
from penstock.registries.avro_format import AvroFormat
from penstock.registries.framed_messages import HEADER, MAGIC
from penstock.registries.registry_client import RegisteredSchema, RegistryClient

READING: Final = record_type("sensor STRING NOT NULL, number BIGINT NOT NULL, celsius DOUBLE, room STRING")
_SCHEMA: Final = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "number", "type": "long"},
        {"name": "celsius", "type": "double"},
        {"name": "room", "type": ["null", "string"]},
    ],
}
_HEAD: Final = HEADER.pack(MAGIC, 1)


class _Known(RegistryClient):
    """A registry that is not asked: its answers are not what is measured."""

    def schema(self, schema_id: int, form: str = "") -> RegisteredSchema:  # noqa: ARG002  # as RegistryClient
        return RegisteredSchema(fastavro.schema.to_parsing_canonical_form(_SCHEMA), "AVRO")


class Contestants:
    """What decodes the same records, and how long it takes."""

    def __init__(self, rows: int) -> None:
        self._schema: Final = fastavro.parse_schema(_SCHEMA)
        records = [
            {
                "sensor": f"sensor {number % 1000}",
                "number": number,
                "celsius": number / 7,
                "room": None if number % 3 else f"room {number % 100}",
            }
            for number in range(rows)
        ]
        bodies = []
        for record in records:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self._schema, record)
            bodies.append(out.getvalue())
        self._text: Final = json.dumps(_SCHEMA)
        self._bodies: Final = bodies
        self._raw: Final = pa.array([_HEAD + body for body in bodies], pa.binary())
        file = io.BytesIO()
        fastavro.writer(file, self._schema, records)
        self._file: Final = file.getvalue()
        self._format: Final = AvroFormat(READING, _Known("readings", RegistryBinding("http://none")))

    def penstock(self) -> int:
        """The format, to columns."""
        decoded = self._format.decode(self._raw)
        if decoded.bad:
            raise SystemExit(f"{len(decoded.bad)} messages were not decoded: {decoded.bad[0]}")
        return len(decoded.batch)

    def columns(self) -> int:
        """Pyruhvro of messages that have ids, to columns."""
        bodies = [message[HEADER.size :] for message in self._raw.to_pylist() if message.startswith(_HEAD)]
        return int(pyruhvro.deserialize_array(bodies, self._text).num_rows)

    def bare_columns(self) -> int:
        """Pyruhvro of messages that have none, to columns."""
        return int(pyruhvro.deserialize_array(self._bodies, self._text).num_rows)

    def reader(self) -> int:
        """Fastavro's reader of a file, to dictionaries."""
        return len(list(fastavro.reader(io.BytesIO(self._file))))

    def messages(self) -> int:
        """Fastavro message by message, to dictionaries."""
        return len(
            [fastavro.schemaless_reader(io.BytesIO(body), self._schema, None) for body in self._bodies]
        )


def measure_avro(rows: int, rounds: int) -> dict[str, Any]:
    """Return what `decoding_turns.measure` finds."""
    contestants = Contestants(rows)
    turns: dict[str, Callable[[], int]] = {
        "penstock": contestants.penstock,
        "pyruhvro, to columns": contestants.columns,
        "pyruhvro, to columns, of messages without ids": contestants.bare_columns,
        "fastavro, a file, to dictionaries": contestants.reader,
        "fastavro, messages without ids, to dictionaries": contestants.messages,
    }
    return measure(turns, rows, rounds)


def main() -> None:
    """Measure, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found = measure_avro(options.rows, options.rounds)
    print_found("Records per second of processor time", found)
    print_json({"avro": found})


if __name__ == "__main__":
    main()
