"""The command line with receivers that stop, on request, between the journal write and the acknowledgement.

The first argument is a file whose existence requests the stop; the second is a file created once the records
received then are durable. The rest are the command line's arguments.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from penstock.cli import app
from penstock.sources.journal import JournalWriter


def main() -> None:
    """Run the command line."""
    hold, held = (Path(sys.argv.pop(1)) for _ in range(2))
    append = JournalWriter.append

    def append_and_stop(journal: JournalWriter, records: list[bytes], note: bytes = b"") -> int:
        position = append(journal, records, note)
        if records and hold.exists():
            held.touch()
            time.sleep(600)
        return position

    JournalWriter.append = append_and_stop  # type: ignore[method-assign,assignment]
    app()


if __name__ == "__main__":
    main()
