"""Event parts: the settings of CloudEvents in the parameters of a URI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.bindings.types import EventBinding, Role

__all__ = ["events_of"]

_NAME: Final = re.compile(r"[a-z0-9]+")
_OF_SINKS: Final = ("id", "source", "type")
_TAKEN: Final = ("data", "specversion", "datacontenttype")


def events_of(known: Mapping[str, Any], role: Role) -> EventBinding | None:
    """Return the settings of the attributes of events; None for other formats. Raises ValueError."""
    templates = {name: known.get(f"event_{name}") for name in _OF_SINKS}
    if known.get("format") != "cloudevents":
        parameters = ("attributes", "event_mode", *(f"event_{one}" for one in _OF_SINKS))
        given = [name for name in parameters if name in known]
        if given:
            raise ValueError(f"{given[0]} is for format=cloudevents alone")
        return None
    attributes = known.get("attributes", ())
    for field, name in attributes:
        if not _NAME.fullmatch(name):
            raise ValueError(f"attributes={field}:{name}, but attributes have lower-case letters and digits")
        if name in _TAKEN or (role == "sink" and name in _OF_SINKS):
            instead = f"; use event_{name}=" if name in _OF_SINKS else ""
            raise ValueError(f"attributes={field}:{name}, but a record has no say in {name}{instead}")
    if role != "sink":
        return EventBinding(attributes)
    missing = [f"event_{name}=TEXT" for name, template in templates.items() if not template]
    if missing:
        raise ValueError(f"a sink with format=cloudevents needs {', '.join(missing)}, with {{field}} in it")
    is_binary = known.get("event_mode") == "binary"
    for field, header in known.get("headers", ()):
        if header == "content-type" or (is_binary and header.startswith("ce_")):
            raise ValueError(f"headers={field}:{header}, but an event has a header of that name itself")
    return EventBinding(
        attributes,
        **{name: str(template) for name, template in templates.items()},
        is_binary=is_binary,
    )
