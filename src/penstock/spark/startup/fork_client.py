"""The fork client: the program that Spark starts as a Python process, while the fork server runs the real one.

It runs by its path, without penstock and without site-packages, so that it costs almost nothing:
`fork_client.py -m MODULE [ARGUMENT...]`.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

ADDRESS = "PENSTOCK_FORK_SERVER"
"""The environment variable with the address of the server."""


def request_fork(arguments: list[str], files: tuple[int, int, int]) -> socket.socket:
    """Make the fork server run a module, with arguments, three files and the environment of this process.

    Returns a connection on which the exit code will come, of 4 bytes. If it is closed before, the server ends the
    process. Raises OSError when the server has ended.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ[ADDRESS])
    environment = [name + b"=" + value for name, value in os.environb.items()]
    folder = os.getcwdb()  # noqa: PTH109  # pathlib would have to be loaded for it
    encoded = [os.fsencode(argument) for argument in arguments]
    request = b"\0".join([folder, str(len(encoded)).encode(), *encoded, *environment])
    socket.send_fds(connection, [struct.pack("!I", len(request))], files)
    connection.sendall(request)
    return connection


def main() -> None:
    """Make the fork server run the module as this process, and exit with its exit code."""
    try:
        connection = request_fork(sys.argv[2:], (0, 1, 2))
    except OSError:
        # The server has ended, so this process runs the module itself.
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606  # it is the shell's child itself
    # Readers of the other process's output must see its end.
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    answer = connection.recv(4)
    os._exit(struct.unpack("!I", answer)[0] if len(answer) == 4 else 1)


if __name__ == "__main__":
    main()
