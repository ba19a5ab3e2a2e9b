"""URIs of custom connectors: `python:MODULE:CLASS?OPTION=VALUE`. Parsing imports nothing."""

from __future__ import annotations

from typing import Any

from penstock.bindings.parameters import parameters_of
from penstock.bindings.secrets import check_reference, redact
from penstock.bindings.types import PythonBinding
from penstock.bindings.uri_parts import UriParts

__all__ = ["parse_python"]


def parse_python(uri: UriParts) -> PythonBinding:
    """Return the class that a URI names, with its options. Raises ValueError, which says what is wrong."""
    module, _, name = uri.rest.partition(":")
    if not all(map(str.isidentifier, module.split("."))) or not name.isidentifier():
        raise ValueError("it needs a module and a class, such as python:mailbox.sinks:Letters")
    own = {parameter.name: parameter for parameter in parameters_of("python", uri.role)}
    known: dict[str, Any] = {}
    options: dict[str, str] = {}
    for option, value in uri.query:
        if option in own:
            known[option] = own[option].parse(value)
            continue
        check_reference(option, value)
        options[option] = value
    return PythonBinding(uri.stream, redact(uri.uri), module, name, options, **known)
