"""Ports of local servers."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from penstock.errors import ExternalSystemError
from penstock.machine import local_server
from penstock.machine.local_server import free_port, listens


def test_no_port_is_handed_out_twice_not_even_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(local_server, "_FIRST_PORT", port)
    monkeypatch.setattr(local_server, "_PORTS", 1)
    with pytest.raises(ExternalSystemError, match="No port"):
        free_port()
    code = f"""
from penstock.machine import local_server
local_server._FIRST_PORT, local_server._PORTS = {port}, 1
local_server.free_port()
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "No port between" in told.stderr


def test_a_port_on_which_a_server_listens_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens(port)
        monkeypatch.setattr(local_server, "_FIRST_PORT", port)
        monkeypatch.setattr(local_server, "_PORTS", 1)
        with pytest.raises(ExternalSystemError):
            free_port()
