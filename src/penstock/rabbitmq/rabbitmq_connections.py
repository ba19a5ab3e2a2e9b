"""Connections to RabbitMQ: how to open one, and why one could not be opened."""

from __future__ import annotations

import ssl
import struct
from typing import Any, Final

import pika
import pika.data
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ConnectionClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from penstock.bindings.types import ExchangeBinding, QueueBinding
from penstock.rabbitmq.rabbitmq_problems import Problems, password_of

__all__ = ["ANSWER_S", "NOT_FOUND", "connection_parameters", "open_connection", "reason_of"]

ANSWER_S: Final = 10.0
"""For how long an answer of the broker is awaited, in seconds."""
NOT_FOUND: Final = 404
_CONNECT_S: Final = 5.0
_TABLE_SIZE: Final = struct.Struct(">I")
_ACCESS_REFUSED: Final = 403
_NOT_ALLOWED: Final = 530


def _decode_table(encoded: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """Return a table, such as the headers of a message, and where it ends; an empty one for what pika cannot decode.

    Nothing here reads the headers of others. A time in them that Python does not have would end the connection, and
    again when the broker sends the message again.
    """
    try:
        found: tuple[dict[str, Any], int] = _pika_decode_table(encoded, offset)
        return found
    except (ValueError, OverflowError, struct.error, AMQPError):
        return {}, offset + _TABLE_SIZE.size + _TABLE_SIZE.unpack_from(encoded, offset)[0]


_pika_decode_table: Final[Any] = pika.data.decode_table
pika.data.decode_table = _decode_table


def connection_parameters(binding: QueueBinding | ExchangeBinding) -> Any:
    """Return what pika needs to connect. Raises BindingError when the password is a reference that leads nowhere."""
    host = binding.virtual_host
    context = pika.SSLOptions(ssl.create_default_context(), host.host) if host.secure else None
    return pika.ConnectionParameters(
        host=host.host,
        port=host.port,
        virtual_host=host.name,
        credentials=pika.PlainCredentials(host.user, password_of(binding)),
        ssl_options=context,
        socket_timeout=_CONNECT_S,
        stack_timeout=ANSWER_S,
        # A broker that is short of memory or disk accepts no messages, and says so.
        blocked_connection_timeout=ANSWER_S,
        client_properties={"connection_name": f"penstock {binding.stream}"},
    )


def open_connection(binding: QueueBinding | ExchangeBinding, problems: Problems) -> Any:
    """Return a connection that blocks. Raises the errors of `Problems`."""
    parameters = connection_parameters(binding)
    try:
        return pika.BlockingConnection(parameters)
    except ProbableAuthenticationError:
        raise problems.login_refused() from None
    except ConnectionClosedByBroker as e:
        if e.reply_code == _ACCESS_REFUSED:
            raise problems.login_refused() from None
        if e.reply_code == _NOT_ALLOWED:
            raise problems.no_virtual_host() from None
        raise problems.unreachable(e.reply_text) from None
    except ProbableAccessDeniedError:
        raise problems.no_virtual_host() from None
    except IncompatibleProtocolError:
        raise problems.unreachable("what answers there does not speak AMQP 0-9-1") from None
    except AMQPConnectorException:
        # The exception names only the step that took too long.
        raise problems.unreachable(f"it does not answer within {ANSWER_S:g} s") from None
    except (AMQPConnectionError, OSError) as e:
        raise problems.unreachable(reason_of(e)) from e


def reason_of(error: BaseException) -> object:
    """Return why a connection failed; pika wraps the reason, sometimes more than once."""
    inner = error
    while not isinstance(inner, OSError):
        causes = [
            part
            for part in (*inner.args, getattr(inner, "exception", None))
            if isinstance(part, BaseException)
        ]
        if not causes:
            break
        inner = causes[0]
    return inner if str(inner) else type(inner).__name__
