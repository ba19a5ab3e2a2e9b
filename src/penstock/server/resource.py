"""Resource: the base of the frozen dataclasses that the service returns, and REST serves unchanged."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["Resource"]


class Resource:
    """A resource. The docstring below a field becomes its description in OpenAPI. Times are in UTC."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}
