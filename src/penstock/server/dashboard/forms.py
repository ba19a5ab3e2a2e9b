"""Forms: validation of their values with the models of REST, so that both accept the same values."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import pydantic

from penstock.errors import Fault, PenstockError

__all__ = ["WrongInputError", "check_form"]

_Model = TypeVar("_Model", bound=pydantic.BaseModel)


class WrongInputError(PenstockError):
    """A value in a form is invalid."""

    fault: ClassVar[Fault] = "user"


def check_form(model: type[_Model], values: dict[str, Any]) -> _Model:
    """Return the values as a model of REST. Raises WrongInputError, which names the invalid fields."""
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as e:
        errors = "; ".join(_describe_error(dict(one)) for one in e.errors())
        raise WrongInputError(f"{errors}.") from None


def _describe_error(error: dict[str, Any]) -> str:
    """Describe the error in a field for the user who filled it in."""
    field = ".".join(map(str, error["loc"])).replace("_", " ")
    if error["type"] in ("missing", "string_too_short") or error.get("input") in ("", None):
        return f"Fill in {field}"
    return f"{field.capitalize()} cannot be {str(error['input'])[:40]}: {error['msg']}"
