"""Forms: their values are checked with the models of REST, so that both accept the same values."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import pydantic
from nicegui import ui

from penstock.errors import Fault, PenstockError
from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents
from penstock.server.dashboard.page_session import Visit
from penstock.server.service.job_resources import Operation, Submission

__all__ = ["WrongInputError", "check_form", "equivalent_of", "submit_job"]

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


def equivalent_of(submission: dict[str, Any]) -> str:
    """Return the terminal command for the values of a form that submits a job; those left empty are None."""
    changes = {name: value for name, value in submission.items() if name != "definition"}
    return cli_equivalents.submit_job(submission["definition"] or "DEFINITION", changes)


async def submit_job(visit: Visit, submission: dict[str, Any] | None) -> None:
    """Submit a job with the values of a form, and show its page. Does nothing if the form was closed or is empty."""
    if submission is None or not submission["definition"]:
        return

    def submit(who: str) -> Operation:
        given = {name: value for name, value in submission.items() if value is not None}
        return visit.service.submit(check_form(Submission, given), who)

    done = await visit.act(Role.OPERATOR, submit)
    if done is not None:
        ui.navigate.to(f"/jobs/{done.job}")


def _describe_error(error: dict[str, Any]) -> str:
    """Describe the error in a field for the user who filled it in."""
    field = ".".join(map(str, error["loc"])).replace("_", " ")
    if error["type"] in ("missing", "string_too_short") or error.get("input") in ("", None):
        return f"Fill in {field}"
    return f"{field.capitalize()} cannot be {str(error['input'])[:40]}: {error['msg']}"
