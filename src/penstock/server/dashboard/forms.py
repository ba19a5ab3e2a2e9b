"""Forms: what somebody has filled in, checked by the models of REST, so that both take the same."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import pydantic

from penstock.errors import Fault, PenstockError

__all__ = ["WrongInputError", "checked"]

_Model = TypeVar("_Model", bound=pydantic.BaseModel)


class WrongInputError(PenstockError):
    """What was filled in cannot be."""

    fault: ClassVar[Fault] = "user"


def checked(model: type[_Model], values: dict[str, Any]) -> _Model:
    """The values as a model of REST. Raises WrongInputError, which names the fields."""
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as e:
        told = "; ".join(_told(dict(one)) for one in e.errors())
        raise WrongInputError(f"{told}.") from None


def _told(error: dict[str, Any]) -> str:
    """What is wrong with a field, for who has filled it in."""
    field = ".".join(map(str, error["loc"])).replace("_", " ")
    if error["type"] in ("missing", "string_too_short") or error.get("input") in ("", None):
        return f"Fill in {field}"
    return f"{field.capitalize()} cannot be {str(error['input'])[:40]}: {error['msg']}"
