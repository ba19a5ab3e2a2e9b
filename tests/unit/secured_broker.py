"""A Kafka broker that clients log in to, or reach over TLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.machine.kafka_broker import KafkaBroker


@dataclass(frozen=True)
class BrokerCertificates:
    """The certificates of a broker, as files in PEM.

    `own` has the private key (PKCS#8, not encrypted), the certificate and those of its authorities, and `authorities`
    the certificates of the authorities that clients must have theirs from.
    """

    own: Path
    authorities: Path


# Each thread of a broker without work looks for some three times a second.
_FEW_THREADS = {"num.network.threads": "1", "num.io.threads": "2"}


class SecuredBroker(KafkaBroker):
    """A broker that also listens at `secured`, where its users log in (SASL_PLAINTEXT, mechanism PLAIN).

    With certificates it also listens at `encrypted`, for clients that show a certificate (SSL), and at
    `secured_encrypted`, where its users log in (SASL_SSL, mechanism PLAIN). `users` has the passwords by name.
    """

    def __init__(self, users: Mapping[str, str], certificates: BrokerCertificates | None = None) -> None:
        self._users = users
        self._certificates = certificates
        super().__init__()

    @property
    def secured(self) -> str:
        """The address for clients that log in, `host:port`."""
        return self._at("SASL_PLAINTEXT")

    @property
    def encrypted(self) -> str:
        """The address for clients that show a certificate, `host:port`."""
        return self._at("SSL")

    @property
    def secured_encrypted(self) -> str:
        """The address for clients that log in over TLS, `host:port`."""
        return self._at("SASL_SSL")

    def _listeners(self) -> list[str]:
        encrypted = [] if self._certificates is None else ["SSL", "SASL_SSL"]
        return [*super()._listeners(), "SASL_PLAINTEXT", *encrypted]

    def _settings(self) -> dict[str, str]:
        return super()._settings() | _FEW_THREADS | self._login_settings() | self._encryption_settings()

    def _login_settings(self) -> dict[str, str]:
        users = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        listeners = [name for name in self._ports if name.startswith("SASL_")]
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": login for name in listeners},
        }

    def _encryption_settings(self) -> dict[str, str]:
        if self._certificates is None:
            return {}
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._certificates.own),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._certificates.authorities),
            "listener.name.ssl.ssl.client.auth": "required",
        }
