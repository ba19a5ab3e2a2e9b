"""Resource: the base of the frozen dataclasses that the service returns, and REST serves unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

__all__ = ["Resource"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Resource:
    """A resource: its subclasses are frozen dataclasses, whose fields are given by name.

    The docstring below a field becomes its description in OpenAPI. Times are in UTC.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
