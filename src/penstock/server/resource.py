"""Resource: the base of the frozen dataclasses that the service returns, and that REST serves as they are."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["Resource"]


class Resource:
    """The docstring below a field becomes its description in the API's document. Times are in UTC."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}
