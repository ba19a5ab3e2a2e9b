"""A driver without Spark: it makes itself known, works, and ends as its definition's job file says.

The file holds words, of which the run with number N does the one at place N, or the last one: `works` until it is told
to stop, `finishes`, `fails`, `is-refused`, `is-hindered`, `dies`, `is-stuck` whatever it is told, `breaks` before it
begins.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.jobs.requests import Answer, Requests
from penstock.server.runs.driver import Launch
from penstock.server.runs.lease_places import leases_of
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
    words = Path(str(launch.file)).read_text().split()
    word = words[min(launch.run, len(words)) - 1]
    if word == "breaks":
        sys.exit("it broke")
    os.set_inheritable(int(os.environ.pop(ALIVE_VARIABLE)), False)
    write_atomically(folder / BEGUN_FILE, msgspec.json.encode(process_of(os.getpid())))
    checkpoint = Path(launch.settings["checkpoint"])
    if launch.settings["must_continue"]:
        Checkpoint(checkpoint).check_there()
    Checkpoint.open(str(checkpoint)).begin(Lineage("small", "small", 1, 1, ()))
    # One line for each run, and a note while it is at work: two at once would show.
    with (checkpoint / "at-work").open("x"), (checkpoint / "runs").open("a") as runs:
        runs.write(f"{launch.run}\n")

    def end(code: int, kind: str, why: str) -> NoReturn:
        (checkpoint / "at-work").unlink()
        ended = Ended(kind, why)  # type: ignore[arg-type]
        write_atomically(folder / ENDED_FILE, msgspec.json.encode(ended))
        keeper.end(ended)
        sys.exit(code)

    leases = leases_of(str(checkpoint))
    leases.beat_s = 0.1
    keeper = LeaseKeeper(leases, launch.lease).__enter__()

    signal.signal(
        signal.SIGTERM, signal.SIG_IGN if word == "is-stuck" else lambda *_: end(0, "stopped", "a signal")
    )
    requests = Requests(checkpoint, launch.run)
    write_atomically(folder / PROGRESS_FILE, b'{"batch_id": 7}')
    keeper.working = True
    if word == "finishes":
        end(0, "finished", "all is done")
    if word == "fails":
        end(1, "failed", "a broker is away")
    if word == "is-hindered":
        end(3, "hindered", "a disk is full")
    if word == "is-refused":
        end(2, "refused", "a binding is wrong")
    if word == "dies":
        (checkpoint / "at-work").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        request = requests.next() if word != "is-stuck" else None
        if request is not None and request.action == "rescale":
            rescaled = {"before": 1, "after": request.parallelism, "batch": 7, "seconds": 0.5}
            requests.answer(request, Answer(details=rescaled))
        elif request is not None:
            details = {"batch": 7} | ({"savepoint": request.savepoint_id} if request.savepoint else {})
            requests.answer(request, Answer(details=details))
            end(0, "stopped", "a request")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
