"""Set-up: find a Java and fetch what jobs need, once, with a line about each. Run by `make setup`."""

from __future__ import annotations

import sys

from penstock.errors import PenstockError
from penstock.local.jars import fetch_spark_jars
from penstock.local.java import find_java

__all__ = ["main"]


def main() -> int:
    """Prepare this machine; the exit code is 0 when jobs can run."""
    try:
        java = find_java()
        jars = fetch_spark_jars()
    except PenstockError as e:
        sys.stderr.write(f"{e}\n")
        return e.exit_code
    sys.stderr.write(f"Java {java.version} ({java.source}); {len(jars)} jars in {jars[0].parent}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
