"""Ports for servers that tests start, and start again under the same port."""

from __future__ import annotations

from penstock.machine.local_server import free_port

__all__ = ["free_port"]
