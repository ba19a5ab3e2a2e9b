"""A driver without Spark that counts, with its checkpoint and its output on an object store.

Each number is saved to the checkpoint, and then written once as an object with the number of the run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.checkpoints.stored_home import place_of_home
from penstock.errors import FencedError
from penstock.jobs.requests import Answer, Requests
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.server.runs.driver import Launch, keep_lease
from penstock.server.runs.leases import LeaseKeeper
from penstock.server.runs.processes import (
    ALIVE_VARIABLE,
    BEGUN_FILE,
    ENDED_FILE,
    LAUNCH_FILE,
    PROGRESS_FILE,
    Ended,
    process_of,
)


def main() -> None:
    folder = Path(sys.argv[1])
    launch = msgspec.json.decode((folder / LAUNCH_FILE).read_bytes(), type=Launch)
    os.set_inheritable(int(os.environ.pop(ALIVE_VARIABLE)), False)
    write_atomically(folder / BEGUN_FILE, msgspec.json.encode(process_of(os.getpid())))
    keeper = keep_lease(launch)
    keeper._leases.beat_s = 0.3
    with keeper:
        try:
            count(launch, keeper, folder)
            ended = Ended("stopped", "a signal, or a request")
        except FencedError as e:
            ended = Ended("failed", str(e))
        write_atomically(folder / ENDED_FILE, msgspec.json.encode(ended))
        keeper.end(ended)


def count(launch: Launch, keeper: LeaseKeeper, folder: Path) -> None:
    """Count on from the checkpoint, until a signal or a stop request."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    uri = launch.settings["checkpoint"]
    out = ObjectFolder(place_of_home(f"{uri}.out"), {}, AT_WORK)
    stored = StoredCheckpoint.at(uri)
    with stored.opened(must_continue=launch.settings["must_continue"]):
        stored.take()
        path = stored.folder / "count"
        number = int(path.read_text()) if path.exists() else 0
        requests = Requests(stored.folder, launch.run)
        keeper.working = True
        write_atomically(folder / PROGRESS_FILE, b'{"batch_id": 7}')
        while not stopped.wait(0.1):
            # The last number may have been saved without being written.
            out.create(f"{number:06}", f"{launch.run}".encode())
            number += 1
            path.write_text(f"{number}")
            stored.save()
            if (request := requests.next()) is not None:
                requests.answer(request, Answer(details={"batch": number}))
                return


if __name__ == "__main__":
    main()
