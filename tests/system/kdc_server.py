"""A real MIT Kerberos KDC for tests: one realm, principals, keytabs and tickets."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from debian import find_or_install

from penstock.machine.local_server import LocalServer, listens

__all__ = ["REALM", "KdcServer"]

REALM = "PENSTOCK.TEST"
_PACKAGES = "krb5-kdc krb5-admin-server krb5-user"
_SERVER = "/usr/sbin/krb5kdc"
_TOOLS = ("/usr/sbin/kdb5_util", "/usr/sbin/kadmin.local", "kinit")


class KdcServer(LocalServer):
    """A realm with a KDC at a free port; a context manager."""

    def __init__(self, folder: Path) -> None:
        super().__init__("krb5kdc", folder / "krb5kdc.log")
        found = find_or_install(_find, _PACKAGES, "A Kerberos KDC")
        self._server, self._create, self._admin, self._kinit = found
        self._folder = folder
        # `free_port` also reserves the UDP port, which clients use as well.
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._port: int = server.getsockname()[1]
        self.settings = folder / "krb5.conf"
        self.settings.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
        )
        (folder / "kdc.conf").write_text(
            f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n"
            f"  kdc_listen = 127.0.0.1:{self._port}\n  kdc_tcp_listen = 127.0.0.1:{self._port}\n }}\n"
        )
        self.environment = {"KRB5_CONFIG": str(self.settings)}
        self._own = {**self.environment, "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}

    def start(self) -> None:
        if not (self._folder / "principal").exists():
            self._do(self._create, "create", "-s", "-r", REALM, "-P", "of the database")
        self.launch([self._server, "-n"], lambda: listens(self._port), environment=self._own)

    def keytab(self, *principals: str) -> Path:
        """Return a keytab of principals, creating those that are missing."""
        path = self._folder / f"{principals[0].replace('/', '-')}.keytab"
        if not path.exists():
            for principal in principals:
                self._do(self._admin, "-q", f"addprinc -randkey {principal}")
                self._do(self._admin, "-q", f"ktadd -k {path} {principal}")
        return path

    def tickets(self, principal: str, *options: str) -> Path:
        """Return a ticket cache of a principal. The KDC gives no lifetime under a minute."""
        path = self._folder / f"{principal}.tickets"
        keytab = self.keytab(principal)
        self._do(self._kinit, *options, "-c", str(path), "-k", "-t", str(keytab), principal)
        return path

    def _do(self, *command: str) -> None:
        done = subprocess.run(command, env=self._own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _find() -> tuple[str, str, str, str] | None:
    server, create, admin, kinit = (shutil.which(name) for name in (_SERVER, *_TOOLS))
    if server is None or create is None or admin is None or kinit is None:
        return None
    return server, create, admin, kinit
