"""State operators: which of Spark's stateful operators stores the state of a step (no Spark)."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.errors import CheckpointError

__all__ = ["operator_of"]


def operator_of(folder: Path, node: str) -> int:
    """Return the number of Spark's stateful operator that stores the state of a step.

    `folder` is Spark's part of the checkpoint. Raises CheckpointError if no operator stores it.
    """
    for place in sorted((folder / "state").glob("[0-9]*")):
        for path in sorted((place / "_metadata").rglob("*")):
            if not path.is_file() or path.name.startswith("."):
                continue
            lines = path.read_text(errors="replace").splitlines()
            try:
                properties = json.loads(lines[-1]).get("operatorPropertiesJson") if len(lines) > 1 else None
            except json.JSONDecodeError as e:
                raise CheckpointError(
                    f"The checkpoint is damaged: {path} cannot be read ({e}). Restore it from a copy of the checkpoint."
                ) from e
            if properties and any(
                found.get("stateName") == node for found in json.loads(properties).get("stateVariables", [])
            ):
                return int(place.name)
    raise CheckpointError(f"{folder} has no state of the step {node!r}. Has the job run a micro-batch yet?")
