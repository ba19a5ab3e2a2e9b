"""Command sender: writes a command to the place from which a job reads its commands, whether it runs or not."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from penstock.base.durable import sync_folder
from penstock.bindings.amazon_types import KinesisBinding
from penstock.bindings.parse import parse_binding
from penstock.bindings.secrets import redact
from penstock.bindings.types import (
    Binding,
    FilesBinding,
    HttpListenBinding,
    KafkaBinding,
    MqttBinding,
    PostgresBinding,
    PythonBinding,
    QueueBinding,
    RabbitStreamBinding,
)
from penstock.checkpoints.unread_files import list_unread_files
from penstock.commands.command_catalog import CommandCatalog
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command, CommandError, CommandFormat
from penstock.errors import BindingError, ExternalSystemError
from penstock.streams.graph import COMMANDS

__all__ = ["MASK", "command_binding", "find_waiting", "send_command"]

MASK: Final = "***"
"""The text that replaces a secret."""

_Sendable: TypeAlias = (
    FilesBinding | KafkaBinding | KinesisBinding | QueueBinding | RabbitStreamBinding | MqttBinding
)
_FLUSH_S: Final = 30.0


def command_binding(entry: CommandCatalog, uri: str | None) -> Binding:
    """Return the binding for commands to a job: that of `uri`, or of the place in its command catalog.

    Raises BindingError when the job takes no commands, when secrets in that place are masked, or when it cannot be
    written to.
    """
    if not entry.steps:
        raise BindingError(f"The job {entry.job!r} has no keyed step, so it takes no commands.")
    place = uri or entry.commands
    binding = parse_binding(COMMANDS, place, "control")
    if not isinstance(binding, FilesBinding) and uri is None and MASK in place:
        raise BindingError(
            f"The checkpoint does not keep the secrets of {place!r}. Give the whole URI with -D {COMMANDS}=URI."
        )
    if isinstance(binding, MqttBinding) and not binding.is_one_topic:
        raise BindingError(
            f"The commands of the job come from all topics that match {binding.topic!r}. Name one of them with "
            f"--to mqtt://{binding.host}:{binding.port}/TOPIC."
        )
    if isinstance(binding, KafkaBinding) and binding.pattern is not None:
        raise BindingError(
            f"The job reads commands from {binding.place} on {binding.servers}, and a command is sent to one topic. "
            f"Name it with -D {COMMANDS}=kafka://{binding.servers}/TOPIC."
        )
    if isinstance(binding, _Sendable):
        _form(binding)
        return binding
    if isinstance(binding, HttpListenBinding):
        raise BindingError(
            f"The job itself listens at {redact(place)!r}. Send the command there by POST, as JSON, or bind "
            f"{COMMANDS} to a folder, Kafka, Kinesis, RabbitMQ or MQTT."
        )
    if isinstance(binding, PostgresBinding):
        raise BindingError(
            f"The commands of the job are the rows of {binding.place}. Add one with INSERT; its columns are those of "
            "a command: id, kind, target, payload."
        )
    if isinstance(binding, PythonBinding):
        raise BindingError(
            f"The commands of the job come from {binding.place}, a class of your own. Send the command to the system "
            f"that it reads, or bind {COMMANDS} to a folder, Kafka, RabbitMQ or MQTT."
        )
    raise BindingError(
        f"Nothing can be sent to {redact(place)!r}, which sends to the job itself. Let the program that serves it "
        f"send the command, or bind {COMMANDS} to a folder, Kafka, Kinesis, RabbitMQ or MQTT."
    )


def send_command(command: Command, binding: Binding) -> None:
    """Write a command; it is durable when this returns.

    Raises BindingError or ExternalSystemError when that fails.
    """
    if isinstance(binding, FilesBinding):
        _write_to_folder(command, Path(binding.directory), binding)
        return
    # Each client takes a tenth of a second to load, which other bindings need not wait for.
    if isinstance(binding, KafkaBinding):
        _to_kafka(command, binding)
    elif isinstance(binding, QueueBinding):
        from penstock.rabbitmq.rabbitmq_queue import publish_to_queue

        publish_to_queue(binding, _encode(command, binding), command.id)
    elif isinstance(binding, KinesisBinding):
        from penstock.kinesis.kinesis_stream import check_stream

        # As for Kafka, commands for one step stay in order.
        check_stream(binding).put(_encode(command, binding), command.target.step or "*")
    elif isinstance(binding, MqttBinding):
        from penstock.mqtt.mqtt_connection import publish_to_topic

        publish_to_topic(binding, _encode(command, binding))
    else:
        from penstock.rabbitmq.rabbitmq_stream import publish_to_stream

        assert isinstance(binding, RabbitStreamBinding)
        publish_to_stream(binding, _encode(command, binding))


def find_waiting(command_id: str, entry: CommandCatalog, checkpoint: Path) -> Command | None:
    """Find a command that waits in the job's folder of commands; None if it is not there.

    Skips files that the job has read, and does not search brokers.
    """
    if not entry.commands:
        return None
    binding = parse_binding(COMMANDS, entry.commands, "control")
    if not isinstance(binding, FilesBinding):
        return None
    encoded = msgspec.json.encode(command_id)
    own = f"-{_escape_id(command_id)}.jsonl"
    waiting = list_unread_files(checkpoint, COMMANDS, binding.directory)
    # Files of this sender have the id in their names; other programs may put several commands into one file.
    for name in sorted(waiting, key=lambda name: (name.endswith(own), name), reverse=True):
        found = _command_in(Path(binding.directory, name), command_id, encoded)
        if found is not None:
            return found
    return None


def _command_in(path: Path, command_id: str, encoded: bytes) -> Command | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    for line in data.splitlines() if encoded in data else ():
        try:
            command = decode_command(line, max_bytes=len(line))
        except CommandError:
            continue
        if command.id == command_id:
            return command
    return None


def _form(
    binding: _Sendable,
) -> CommandFormat:
    """Return the format of commands in a binding. Raises BindingError unless it is JSON or protobuf."""
    if getattr(binding, "registry", None) is None:
        if binding.format in ("json", "jsonl"):
            return "json"
        if binding.format == "protobuf":
            return "protobuf"
    raise BindingError(
        f"Commands are JSON or protobuf without a registry, so they cannot be sent to {redact(binding.uri)!r}. "
        "Give the URI that the job runs with."
    )


def _encode(command: Command, binding: _Sendable) -> bytes:
    if _form(binding) == "json":
        return msgspec.json.encode(command)
    from penstock.control.command_messages import message_of_command

    return message_of_command(command)


def _escape_id(command_id: str) -> str:
    """Format an id as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", command_id)[:64]


def _write_to_folder(command: Command, folder: Path, binding: FilesBinding) -> None:
    """Write a new file for the command, which the job sees only when it is complete. Names sort by time."""
    name = f"{time.time_ns():020}-{_escape_id(command.id)}.jsonl"
    hidden = folder / f".{name}.{os.getpid()}"
    try:
        with hidden.open("xb") as file:
            file.write(_encode(command, binding) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(folder / name)
        sync_folder(folder)
    except OSError as e:
        hidden.unlink(missing_ok=True)
        raise BindingError(
            f"The command cannot be written into the folder {folder} ({e.strerror or e}). Make the folder, or name "
            f"the one that the job reads with -D {COMMANDS}=jsonl:DIR."
        ) from e


def _to_kafka(command: Command, binding: KafkaBinding) -> None:
    from confluent_kafka import KafkaException, Producer

    from penstock.brokers.kafka_topics import LastError, build_client, check_topic

    check_topic(binding, binding.client)
    failures: list[Any] = []
    errors = LastError()
    own = {
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "message.timeout.ms": int(_FLUSH_S * 1000),
        "linger.ms": 0,
        "on_delivery": lambda error, _: failures.append(error) if error is not None else None,
    }
    producer = build_client(Producer, binding, {**binding.client, **own}, errors)
    try:
        # Commands for one step stay in order, whatever the number of partitions.
        producer.produce(binding.topic, _encode(command, binding), (command.target.step or "*").encode())
        waiting = producer.flush(_FLUSH_S + 1)
    except KafkaException as e:
        failures.append(e.args[0])
        waiting = 0
    if failures or waiting:
        reason = errors.after(failures[0]) if failures else errors.text or "no answer"
        raise ExternalSystemError(
            f"The command could not be written to the topic {binding.topic!r} on {binding.servers} ({reason}). "
            "Send it again with the same --id, so that it is not applied twice."
        )
