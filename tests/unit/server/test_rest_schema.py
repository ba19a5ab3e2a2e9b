"""REST as Schemathesis sees it: what the description promises holds for requests that are made from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from rest_support import HOST, TOKENS, RestPlace
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from penstock.server.api.access import Role, TokenBook
from penstock.server.api.app import create_app, describe
from penstock.server.api.context import Context
from penstock.server.api.guard import Authenticator

HEADERS = {"Host": HOST, "Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    ignored_auth,
    unsupported_method,
]


DESCRIPTION = describe(create_app(Context(None, Authenticator(TokenBook([]), frozenset()), None)))  # type: ignore[arg-type]
OPERATIONS = [
    (path, method)
    for path, operations in DESCRIPTION["paths"].items()
    for method in operations
    # A stream lasts for as long as it is asked to.
    if not path.endswith("/stream")
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestPlace]:
    """One for all examples, so that later ones find what earlier ones have made."""
    made = RestPlace(tmp_path_factory.mktemp("rest"))
    made.submit()
    yield made
    made.close()


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_the_description_holds(place: RestPlace, path: str, method: str) -> None:
    """No error of the server, no answer that is not described, nothing wrong taken."""
    schema = schemathesis.openapi.from_dict(DESCRIPTION)
    schema.app = place.app
    schema.config.update(base_url=f"http://{HOST}")

    @settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(schema[path][method.upper()].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def right(case: schemathesis.Case) -> None:
        # Ids that nobody could guess: what is behind them is asked for as well.
        if "job_id" in case.path_parameters:
            case.path_parameters["job_id"] = place.service.list_jobs()[0].id
        if isinstance(case.body, dict) and "definition" in case.body:
            case.body["definition"] = "small"
        case.call_and_validate(headers=HEADERS, checks=CHECKS)

    @settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(schema[path][method.upper()].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def wrong(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=HEADERS, checks=CHECKS)

    right()
    operation = DESCRIPTION["paths"][path][method]
    if operation.get("parameters") or "requestBody" in operation:
        wrong()
