"""Problems of RabbitMQ: the errors of a broker, common to queues, streams and exchanges."""

from __future__ import annotations

import logging
import os
import ssl
from typing import Final

from penstock.base.tls_ports import tls_advice
from penstock.bindings.secrets import resolve_setting
from penstock.bindings.types import ExchangeBinding, QueueBinding, RabbitStreamBinding
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError, RecordsLostError

__all__ = ["Problems", "password_of"]

for _name in ("pika", "rstream"):
    # The clients also log what they raise; without a handler that would all go to standard error.
    logging.getLogger(_name).addHandler(logging.NullHandler())


def password_of(binding: QueueBinding | RabbitStreamBinding | ExchangeBinding) -> str:
    """Return the password of a binding, as this process has it. Raises BindingError when a reference leads nowhere."""
    return str(resolve_setting(binding.stream, {"password": binding.virtual_host.password}, "password"))


class Problems:
    """The errors of one binding: each says which stream, what is wrong where, and what to do."""

    def __init__(self, binding: QueueBinding | RabbitStreamBinding | ExchangeBinding) -> None:
        self._binding = binding
        self._host: Final = binding.virtual_host
        if isinstance(binding, QueueBinding):
            self._what = f"queue {binding.queue!r}"
        elif isinstance(binding, ExchangeBinding):
            self._what = (
                f"exchange {binding.exchange!r}" if binding.exchange else f"queue {binding.routing_key!r}"
            )
        else:
            self._what = f"stream {binding.name!r}"

    def unreachable(self, reason: object) -> ExternalSystemError:
        """Return the error when no server, or none that speaks the protocol, answers. `reason` may be its cause."""
        if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError) and reason.errno is not None:
            # Libraries put their own texts into errors of the system.
            reason = os.strerror(reason.errno) if reason.errno > 0 else reason.strerror
        advice = "Start the broker, or correct the address in the URI"
        if isinstance(self._binding, RabbitStreamBinding):
            advice += " (streams need the plugin rabbitmq_stream, whose port is usually 5552)"
        return ExternalSystemError(
            f"{self._stream}: no RabbitMQ answers at {self._host} ({reason}). {advice}."
            f"{tls_advice(self._host.host, self._host.port, is_secure=self._host.secure)}"
        )

    def login_refused(self) -> ExternalSystemError:
        """Return the error when the broker does not know the user, or not with this password."""
        return ExternalSystemError(
            f"{self._stream}: RabbitMQ at {self._host} refuses the login of {self._host.user!r}. "
            "Correct user and password in the URI."
        )

    def no_virtual_host(self) -> BindingError:
        """Return the error when the virtual host does not exist, or the user may not use it."""
        return BindingError(
            f"{self._stream}: RabbitMQ at {self._host} has no virtual host {self._host.name!r} that "
            f"{self._host.user!r} may use. Correct it in the URI, or create it and give the user its permissions."
        )

    def missing(self) -> PlaceMissingError:
        """Return the error when the queue, stream or exchange does not exist."""
        is_exchange = isinstance(self._binding, ExchangeBinding) and self._binding.exchange
        advice = (
            "Create it and bind queues to it" if is_exchange else "Create it, or add create=true to the URI"
        )
        return PlaceMissingError(
            f"{self._stream}: the {self._what} does not exist in the virtual host {self._host.name!r} on "
            f"{self._host}. {advice}."
        )

    def refused(self, reason: object) -> ExternalSystemError:
        """Return the error when the broker knows the queue or stream, but refuses it."""
        return ExternalSystemError(
            f"{self._stream}: RabbitMQ at {self._host} refuses the {self._what} ({reason}). "
            f"Give {self._host.user!r} the permission, or check the broker's log."
        )

    def is_a_stream(self) -> BindingError:
        """Return the error when the queue is a stream, which has offsets instead of acknowledgements."""
        return BindingError(
            f"{self._stream}: the {self._what} on {self._host} is a stream. Bind it with "
            "rabbitmq-stream://USER:PASS@HOST:PORT/VHOST/STREAM and the port of the plugin rabbitmq_stream."
        )

    def began_again(self, end: int, position: int) -> ExternalSystemError:
        """Return the error when the stream ends before what was read from it."""
        return ExternalSystemError(
            f"{self._stream}: the {self._what} on {self._host} ends at offset {end}, but was read up to "
            f"{position} before, so it lost records or was created again. Start with a new checkpoint to read "
            "it from its beginning."
        )

    def created_again(self, position: int) -> BindingError:
        """Return the error when the stream has other messages than were read from it."""
        return BindingError(
            f"{self._stream}: the {self._what} on {self._host} was read up to offset {position}, and was deleted and "
            "created again. Start with a new checkpoint to read it from its beginning."
        )

    def deleted(self, position: int, first: int) -> RecordsLostError:
        """Return the error when the stream has deleted messages before they were read."""
        return RecordsLostError(
            f"{self._stream}: the {self._what} on {self._host} has deleted the messages at the offsets {position} to "
            f"{first - 1} before they were read. To continue at the first that is left, add missing=skip to the URI "
            "and start the job again. To keep messages for longer, raise the limits of the stream."
        )

    @property
    def _stream(self) -> str:
        return f"Stream {self._binding.stream!r}"
