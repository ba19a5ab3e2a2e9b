"""With a local master a driver listens only on addresses of this machine."""

from __future__ import annotations

import ipaddress
import os
import struct
from pathlib import Path

from pyspark.sql import SparkSession

_LISTENS = "0A"


def test_a_local_driver_listens_for_this_machine_only(spark: SparkSession) -> None:
    # Sockets opened by a first micro-batch stay open afterwards.
    assert spark.range(8, numPartitions=2).repartition(2).count() == 8
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    found = {pid: _addresses(pid) for pid in (jvm, os.getpid())}

    assert found[jvm], "Spark's JVM listens at several ports at least"
    for addresses in found.values():
        assert all(address.is_loopback for address in addresses), found


def _addresses(pid: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses on which a process listens."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            sockets.add(target.removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == _LISTENS and inode in sockets:
                found.append(_address(local.partition(":")[0]))
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address from the kernel's form: words of 32 bits in the machine's byte order."""
    words = bytes.fromhex(text)
    packed = b"".join(
        struct.pack("=I", *struct.unpack(">I", words[i : i + 4])) for i in range(0, len(words), 4)
    )
    found = ipaddress.ip_address(packed)
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found
