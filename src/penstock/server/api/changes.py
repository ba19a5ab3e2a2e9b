"""Changes: requests that change something, and the responses that accept their operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request, Response

from penstock.server.api.context import context_of
from penstock.server.api.routes import Asker
from penstock.server.service.job_resources import Operation

__all__ = ["Change", "IdempotencyKey"]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[A-Za-z0-9_.:-]{1,128}$",
        description="Identifies the request: repeated with the same key, it is executed only once.",
    ),
]


@dataclass(frozen=True)
class _Change:
    """The user who requests a change, and the key that identifies a repeated request."""

    who: str
    key: str | None
    _response: Response
    _wake: Callable[[], None]

    def accept(self, operation: Operation, location: str | None = None) -> Operation:
        """Wake the manager, and set Location to `location`, by default the operation."""
        self._response.headers["Location"] = location or f"/v1/operations/{operation.id}"
        self._wake()
        return operation


def _new_change(request: Request, asker: Asker, response: Response, key: IdempotencyKey = None) -> _Change:
    return _Change(asker.name, key, response, context_of(request).wake)


Change = Annotated[_Change, Depends(_new_change)]
