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
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in e.errors())
        raise WrongInputError(f"This cannot be: {told}.") from None
