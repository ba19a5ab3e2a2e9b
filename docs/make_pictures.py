"""Make the pictures of the documentation: `python docs/make_pictures.py` runs the demo and draws its view.

`make bench-autoscaling ARGS="--picture docs/images/autoscaling.svg"` draws the other one.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from penstock.demo.demo_run import run_demo
from penstock.demo.view import Snapshot, render

_IMAGES = Path(__file__).resolve().parent / "images"
_SECONDS = 40
_COLUMNS = 106


def main() -> None:
    """Draw `images/demo.svg` from a real run."""
    seen: list[Snapshot] = []
    summary = run_demo(seconds=_SECONDS, watch=seen.append)
    if summary.violations:
        raise SystemExit(
            f"The demo had {summary.violations} violations; this is no picture for the documentation."
        )
    _IMAGES.mkdir(exist_ok=True)
    (_IMAGES / "demo.svg").write_text(svg(telling(seen)), encoding="utf-8")


def telling(seen: list[Snapshot]) -> Snapshot:
    """A snapshot late in the run, shortly after a heater has answered to a control change."""
    good = [
        snapshot
        for snapshot in seen
        if snapshot.phase == "running"
        and snapshot.last_change is not None
        and snapshot.last_change.answered_s is not None
        and 1.5 < snapshot.last_change.ago_s < 4
    ]
    return good[-1]


def svg(snapshot: Snapshot) -> str:
    """The view of a snapshot as a picture that loads nothing from elsewhere."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(render(snapshot, _COLUMNS))
    drawn = console.export_svg(title="penstock demo", unique_id="penstock-demo")
    drawn = re.sub(r"@font-face \{.*?\}\n?", "", drawn, flags=re.DOTALL)
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE) + "\n"


if __name__ == "__main__":
    main()
