"""The fork client: the program that Spark starts as a Python process, while the fork server runs the real one.

It runs by its path, without penstock and without site-packages, so that it costs almost nothing:
`fork_client.py -m MODULE [ARGUMENT...]`.
"""

from __future__ import annotations

import os
import socket
import struct
import sys


def main() -> None:
    """Make the fork server run the module with this process's files and environment, and exit with its exit code."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.environ["PENSTOCK_FORK_SERVER"])
    except OSError:
        # The server has ended, so this process runs the module itself.
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606  # it is the shell's child itself
    environment = [name + b"=" + value for name, value in os.environb.items()]
    arguments = [os.fsencode(argument) for argument in sys.argv[2:]]
    folder = os.getcwdb()  # noqa: PTH109  # pathlib would have to be loaded for it
    request = b"\0".join([folder, str(len(arguments)).encode(), *arguments, *environment])
    socket.send_fds(connection, [struct.pack("!I", len(request))], [0, 1, 2])
    connection.sendall(request)
    # Readers of the other process's output must see its end.
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    answer = connection.recv(4)
    os._exit(struct.unpack("!I", answer)[0] if len(answer) == 4 else 1)


if __name__ == "__main__":
    main()
