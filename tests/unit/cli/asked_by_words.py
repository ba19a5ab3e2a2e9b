"""The command line against a server."""

from __future__ import annotations

from click.testing import Result
from served_rest import ServedRest
from typed_commands import refused, told, typed

from penstock.server.api.access import Role

__all__ = ["penstock", "refused", "told"]


def penstock(place: ServedRest, *arguments: object, role: Role = Role.ADMIN, **variables: str) -> Result:
    return typed(*arguments, **{**place.environment(role), **variables})
