"""A job whose functions print, in a session of its own whose logs may take little room."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import penstock as ps

job = ps.Job("printing")


def shout(line: Any) -> Any:
    print(f"printed {line.text}")
    logging.getLogger("of the job").warning("logged %s", line.text)
    return line


lines = job.data_stream("lines", schema="text STRING")
lines.map(shout, output="text STRING").sink_to("out")


def main(folder: str) -> None:
    """Run the job, then fill Spark's log."""
    from penstock.jobs.logs import LogDisplay
    from penstock.jobs.runner import JobRunner
    from penstock.jobs.settings import RunSettings
    from penstock.runtime.session import SessionSettings, open_session

    place = Path(folder)
    checkpoint = place / "checkpoint"
    checkpoint.mkdir()
    session = SessionSettings(
        "printing", "local[1]", 1, needs_kafka=False, log_file=checkpoint / "spark.log", log_bytes=4096
    )
    settings = RunSettings(
        bindings={"lines": f"jsonl:{place / 'in'}", "out": f"jsonl:{place / 'out'}"},
        bounded=True,
        checkpoint=str(checkpoint),
    )
    with open_session(session) as opened, LogDisplay(sys.stdout):
        JobRunner(job, settings, (Path(__file__),)).run()
        log = opened._jvm.org.apache.logging.log4j.LogManager.getLogger("filler")  # type: ignore[union-attr]
        for number in range(300):
            log.warn(f"warning {number} of many")


if __name__ == "__main__":
    main(sys.argv[1])
