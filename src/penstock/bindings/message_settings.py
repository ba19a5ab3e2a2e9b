"""Message settings: the form of messages, as the bindings of all message brokers have it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["EventBinding", "MessageSettings", "RegistryBinding"]


@dataclass(frozen=True)
class RegistryBinding:
    """A schema registry with Confluent's API. The password may be a reference.

    `subject` is where a sink registers the schema of its records.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    subject: str | None = None


@dataclass(frozen=True)
class EventBinding:
    """The parts of a record in the attributes of a CloudEvent: fields, each with the name of its attribute.

    Of a sink, `id`, `source` and `type` are these attributes, with `{field}` in them, and `is_binary` says whether
    attributes are headers of the message. A source sees that by the message.
    """

    attributes: tuple[tuple[str, str], ...] = ()
    id: str = ""
    source: str = ""
    type: str = ""
    is_binary: bool = False


@dataclass(frozen=True, kw_only=True)
class MessageSettings:
    """The registry of messages that name their schema, and for CloudEvents the places of the parts of a record."""

    registry: RegistryBinding | None = None
    events: EventBinding | None = None
