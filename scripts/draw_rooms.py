"""Draw the rooms of the package and what they import, as a Mermaid picture: `make rooms` puts it into ARCHITECTURE.md.

An arrow that follows from others is left out: what imports a room may import all that this one stands on.
"""

from __future__ import annotations

import graphlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grimp

__all__ = ["drawn", "module_imports", "put_into", "room_imports"]

PAGE: Final = Path(__file__).parents[1] / "ARCHITECTURE.md"
BEGIN: Final = "<!-- rooms: made by `make rooms` -->\n"
END: Final = "<!-- end of rooms -->\n"


def module_imports(package: str = "penstock") -> dict[str, set[str]]:
    """What each module of a package imports of it, also where only types are checked."""
    graph = grimp.build_graph(package, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def room_imports(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """What each room imports. The package itself, which names what users need, is none."""
    rooms: dict[str, set[str]] = {}
    for module, imported in imports.items():
        room = _room(module)
        if room:
            rooms.setdefault(room, set()).update({_room(other) for other in imported} - {room, ""})
    return rooms


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def drawn(rooms: Mapping[str, set[str]]) -> str:
    """The picture, from the top down. CycleError when rooms import each other in a circle."""
    sorter = graphlib.TopologicalSorter({room: sorted(rooms[room]) for room in sorted(rooms)})
    order = list(sorter.static_order())
    below: dict[str, set[str]] = {}
    lines = []
    for room in order:
        direct = rooms.get(room, set())
        below[room] = direct.union(*(below[other] for other in direct))
    for room in reversed(order):
        direct = rooms.get(room, set())
        indirect = set().union(*(below[other] for other in direct))
        lines += [f"    {room} --> {other}" for other in sorted(direct - indirect)]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


def put_into(page: str, picture: str) -> str:
    """The page with the picture in its place."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{picture}{END}{tail}"


def main() -> None:
    """Draw the rooms into the page."""
    PAGE.write_text(put_into(PAGE.read_text(), drawn(room_imports(module_imports()))))
    sys.stdout.write(f"The rooms are drawn in {PAGE.name}.\n")


if __name__ == "__main__":
    main()
