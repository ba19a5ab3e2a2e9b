"""State schemas: the paths by which Spark's descriptions of the state name files beside them.

They are absolute, so in a copy of a checkpoint they are those of the folder that it is a copy of, which may be gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from penstock.checkpoints.spark_state_files import damage
from penstock.checkpoints.state_place import STATE

__all__ = ["point_to_copy"]

_SCHEMAS: Final = "_stateSchema"


def point_to_copy(folder: Path) -> None:
    """Let the descriptions of the state in a copy of a checkpoint name the files of the copy.

    Raises CheckpointError for a description that cannot be read.
    """
    for path in sorted((folder / STATE).glob("[0-9]*/_metadata/v2/[0-9]*")):
        if not path.name.isdecimal():
            continue
        try:
            version, line = path.read_text().splitlines()
            described = json.loads(line)
            for store in described.get("stateStoreInfo", ()):
                found = store.get("stateSchemaFilePaths", ())
                store["stateSchemaFilePaths"] = [_path_in_copy(name, path.parents[2]) for name in found]
        except (ValueError, AttributeError) as e:
            raise damage(path, f"cannot be read ({e})") from e
        path.write_text(f"{version}\n{_as_line(described)}")
        # The checksums are those of the earlier description.
        for sums in (f".{path.name}.crc", f"{path.name}.crc"):
            path.with_name(sums).unlink(missing_ok=True)


def _path_in_copy(name: str, operator: Path) -> str:
    """Return the path in the copy of a file of schemas, which is below the folder of the operator."""
    _, separator, rest = name.partition(f"/{operator.parent.name}/{operator.name}/{_SCHEMAS}/")
    return f"file:{operator / _SCHEMAS / rest}" if separator else name


def _as_line(described: Any) -> str:
    return json.dumps(described, separators=(",", ":"))
