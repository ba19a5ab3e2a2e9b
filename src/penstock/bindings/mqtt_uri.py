"""URIs of MQTT: a topic filter of a broker, and how to connect to it."""

from __future__ import annotations

import urllib.parse
from typing import Final

from penstock.bindings.event_parts import events_of
from penstock.bindings.registry_parts import registry_of
from penstock.bindings.secrets import redact
from penstock.bindings.types import UNACKNOWLEDGED, MqttBinding
from penstock.bindings.uri_parts import UriParts, parse_server, split_authority, split_login

__all__ = ["parse_mqtt"]

_MAX_UNACKNOWLEDGED: Final = 65_535
_MAX_TOPIC_BYTES: Final = 65_535
_FILES: Final = ("cafile", "certfile", "keyfile")


def parse_mqtt(uri: UriParts) -> MqttBinding:
    """Return the topic filter that a URI names. Raises ValueError, which says what is wrong."""
    authority, _, path = split_authority(uri.rest)
    user, password, server = split_login(authority)
    if password and not user:
        raise ValueError("the user before @ is missing")
    host, port = parse_server(server)
    topic = urllib.parse.unquote(path)
    _check_filter(topic)
    if uri.role == "sink" and ("+" in topic or "#" in topic):
        raise ValueError(
            f"{topic!r} has wildcards, and a sink writes to one topic; write {{field}} for a level"
        )
    known = uri.known()
    if known.get("origin") == "true" and known.get("protocol") == "3.1.1":
        raise ValueError("origin=true needs protocol=5, since messages of 3.1.1 have no properties")
    if password and "password" in known:
        raise ValueError("the password is given twice; leave out the one before the host")
    if "password" in known and not user:
        raise ValueError("password=... needs USER@ before the host")
    secure = uri.scheme == "mqtts"
    for name in _FILES:
        if name in known and not (secure and known[name].startswith("/")):
            raise ValueError(f"{name}={known[name]!r} must be an absolute path, and is only for mqtts")
    prefetch = known.get("prefetch", UNACKNOWLEDGED)
    if prefetch > _MAX_UNACKNOWLEDGED:
        raise ValueError(f"prefetch={prefetch} must be at most {_MAX_UNACKNOWLEDGED}")
    secret = known.get("password", password)
    return MqttBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        host=host.strip("[]"),
        port=port,
        topic=topic,
        user=user or None,
        login={"password": secret} if secret else {},
        secure=secure,
        format=known.get("format", "json"),
        protocol=known.get("protocol", "5"),
        origin=uri.switch("origin"),
        retain=known.get("retain") == "true",
        max_message_bytes=known.get("max_message_bytes"),
        client_id=known.get("client_id"),
        prefetch=prefetch,
        registry=registry_of(known, uri.role),
        events=events_of(known, uri.role),
        **{name: known[name] for name in _FILES if name in known},
    )


def _check_filter(topic: str) -> None:
    if not topic or len(topic.encode()) > _MAX_TOPIC_BYTES or "\0" in topic:
        raise ValueError("it needs a topic after the port, such as /plant/+/temperature")
    if topic.startswith("$share/"):
        _, group, *shared = topic.split("/", 2)
        if not group or "+" in group or "#" in group or not any(shared):
            raise ValueError(f"{topic!r} is not a shared subscription, $share/GROUP/FILTER")
    levels = topic.split("/")
    for place, level in enumerate(levels):
        if ("#" in level and (level != "#" or place < len(levels) - 1)) or ("+" in level and level != "+"):
            raise ValueError(
                f"{topic!r} is not a topic filter: + stands for one level, and # for all that follow"
            )
