"""Set-up: find a Java, fetch the jar of local jobs and archive Spark's classes, one line each. Run by `make setup`."""

from __future__ import annotations

import sys

from rich.console import Console

from penstock.errors import PenstockError
from penstock.machine.class_archive import make_class_archive
from penstock.machine.jars import bare_filesystem_jar
from penstock.machine.java import find_java

__all__ = ["main"]


def main() -> int:
    """Prepare this machine. Return the exit code, which is 0 when jobs can run."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with console.status("Looking for Java"):
            java = find_java()
        console.print(f"Java {java.version} (from {java.source})")
        with console.status("Looking for the file system of local jobs"):
            jar = bare_filesystem_jar()
        console.print(f"The file system of local jobs is {jar}")
        with console.status("Making an archive of Spark's classes, so that jobs start sooner"):
            archive = make_class_archive(java)
        console.print(
            f"Spark's classes in {archive}" if archive else "This Java does not support class archives"
        )
    except PenstockError as e:
        console.print(f"[bold red]{type(e).__name__}[/]: ", end="")
        console.print(str(e), markup=False)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
