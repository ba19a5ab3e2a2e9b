"""Service errors: the meaning of a failed request, and its error as a sentence that says what to do."""

from __future__ import annotations

import contextlib
import email.utils
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.bindings.amazon_types import DynamoBinding, KinesisBinding
from penstock.bindings.secrets import refused_login
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError

__all__ = ["as_external", "error_code", "is_server_away", "is_throttling", "server_ms"]

_THROTTLING: Final = frozenset(
    {
        "KMSThrottlingException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_LOGIN: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_RIGHTS: Final = frozenset({"AccessDenied", "AccessDeniedException", "KMSAccessDeniedException"})
_SERVER_ERROR: Final = 500


def error_code(error: Exception) -> str:
    """Return the code that a service gives an error; empty if it comes from no service."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def is_throttling(error: Exception) -> bool:
    """Return whether a service has refused a request only because there are too many."""
    return error_code(error) in _THROTTLING


def is_server_away(error: Exception) -> bool:
    """Return whether the service cannot be reached or fails, so that the request may be repeated."""
    import botocore.exceptions

    if isinstance(error, botocore.exceptions.HTTPClientError | botocore.exceptions.ConnectionError):
        # The certificate of a server does not become better with time.
        return not isinstance(error, botocore.exceptions.SSLError)
    response = getattr(error, "response", None)
    status = (
        response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(response, dict) else 0
    )
    return int(status) >= _SERVER_ERROR


def server_ms(answer: Mapping[str, Any]) -> int:
    """Return the time of the server that has given an answer, in milliseconds since 1970, to a second."""
    date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
    return int(email.utils.parsedate_to_datetime(date).timestamp() * 1000)


@contextlib.contextmanager
def as_external(binding: KinesisBinding | DynamoBinding) -> Iterator[None]:
    """Turn an error of a service into one that says what to do.

    Raises BindingError for what the URI or the rights must change, and ExternalSystemError for the rest.
    """
    import botocore.exceptions

    try:
        yield
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as e:
        raise _error_of(binding, e) from e


def _error_of(binding: KinesisBinding | DynamoBinding, error: Exception) -> Exception:
    import botocore.exceptions

    stream, code, reason = f"Stream {binding.stream!r}", error_code(error), " ".join(str(error).split())
    if isinstance(
        error, botocore.exceptions.NoCredentialsError | botocore.exceptions.CredentialRetrievalError
    ):
        return BindingError(
            f"{stream}: there are no credentials for {binding.where} ({reason}). Give the job a role or a profile of "
            "Amazon's, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or refer to a key in the URI: "
            "access_key_id=env:NAME&secret_access_key=env:NAME."
        )
    if code in _LOGIN:
        return refused_login(binding.place.login)(
            f"{stream}: {binding.place} refuses the login ({reason}). Correct the key that the URI refers to, or the "
            "identity of the machine."
        )
    if code in _RIGHTS:
        return BindingError(
            f"{stream}: the identity of the job may not use {binding.where} ({reason}). Give it the rights of the page "
            "about it in docs/connectors."
        )
    if code == "ResourceNotFoundException":
        return PlaceMissingError(
            f"{stream}: {binding.where} does not exist ({reason}). Create it, or correct its name, region or endpoint."
        )
    if is_throttling(error):
        return ExternalSystemError(
            f"{stream}: {binding.where} takes no more requests ({reason}). Give it more capacity, or start the job "
            "again when others need less of it."
        )
    if isinstance(error, botocore.exceptions.SSLError) and "WRONG_VERSION_NUMBER" in reason:
        return BindingError(
            f"{stream}: {binding.place} does not answer with TLS ({reason}). Write http:// in the endpoint, or correct "
            "its port."
        )
    if isinstance(error, botocore.exceptions.SSLError):
        return BindingError(
            f"{stream}: the certificate of {binding.place} is not trusted ({reason}). Name the certificates to trust "
            "in AWS_CA_BUNDLE."
        )
    if "UnknownOperationException" in reason:
        return BindingError(
            f"{stream}: {binding.place} is another service, and does not know {binding.where} ({reason}). Correct the "
            "endpoint."
        )
    if is_server_away(error):
        return ExternalSystemError(
            f"{stream}: {binding.where} does not answer ({reason}). Start the job again when it does."
        )
    return ExternalSystemError(f"{stream}: {binding.where} refuses a request ({reason}).")
