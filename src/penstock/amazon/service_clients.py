"""Service clients: one for each place in a process, with the identity of a binding or of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.bindings.amazon_types import AmazonPlace, DynamoBinding, KinesisBinding
from penstock.bindings.secrets import resolve_settings
from penstock.errors import BindingError

__all__ = ["DYNAMODB", "KINESIS", "Service", "get_client"]

_CONNECT_S: Final = 10
# A server that stands still does not answer; the request then fails after this.
_ANSWER_S: Final = 15
_CONNECTIONS: Final = 32


@dataclass(frozen=True)
class Service:
    """A service: its name for Amazon's client and for people, and the extra of penstock that it needs."""

    id: str
    name: str

    @property
    def extra(self) -> str:
        """The extra that installs its client."""
        return f"penstock[{self.id}]"


KINESIS: Final = Service("kinesis", "Kinesis")
DYNAMODB: Final = Service("dynamodb", "DynamoDB")

_kept: Final[dict[tuple[Any, ...], tuple[dict[str, Any], Any]]] = {}
"""For each place the login of its newest client, and the client."""


def get_client(binding: KinesisBinding | DynamoBinding) -> Any:
    """Return the client of a binding in this process, which any thread may use. It connects when it is used.

    If a file that the binding refers to has another key by now, this is a new client.

    Raises BindingError when botocore is missing, or no region is known.
    """
    place = binding.place
    service = KINESIS if isinstance(binding, KinesisBinding) else DYNAMODB
    login = resolve_settings(binding.stream, place.login)
    key = (os.getpid(), service.id, place.region, place.endpoint, *sorted(place.login.items()))
    before, client = _kept.get(key, ({}, None))
    if client is None or before != login:
        client = _client(binding.stream, service, place, login)
        _kept[key] = login, client
    return client


def _client(stream: str, service: Service, place: AmazonPlace, login: Mapping[str, Any]) -> Any:
    try:
        import botocore.exceptions
        import botocore.session
        from botocore.config import Config
    except ImportError:
        raise BindingError(
            f"Stream {stream!r}: {service.name} needs botocore, which is not installed. Install it: "
            f"pip install '{service.extra}'."
        ) from None
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_ANSWER_S,
        # The callers decide on repetitions, since they know what a repetition means.
        retries={"total_max_attempts": 1},
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
    )
    session = botocore.session.Session()
    try:
        return session.create_client(
            service.id,
            # The variable that most clients of Amazon know; botocore itself looks for AWS_DEFAULT_REGION and profiles.
            region_name=place.region or os.environ.get("AWS_REGION") or None,
            endpoint_url=place.endpoint,
            aws_access_key_id=login.get("access_key_id"),
            aws_secret_access_key=login.get("secret_access_key"),
            aws_session_token=login.get("session_token"),
            config=config,
        )
    except botocore.exceptions.NoRegionError:
        raise BindingError(
            f"Stream {stream!r}: no region is known for {service.name}. Add region=NAME to the URI, or set "
            "AWS_REGION where the job and its workers run."
        ) from None
    except (botocore.exceptions.BotoCoreError, ValueError) as e:
        raise BindingError(
            f"Stream {stream!r}: {service.name} cannot be asked ({' '.join(str(e).split())}). Correct the URI or the "
            "settings of Amazon's clients (AWS_PROFILE, ~/.aws/config)."
        ) from e
