"""In a copy of a checkpoint, descriptions of Spark's state name the copy's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoints.state_schemas import point_to_copy
from penstock.errors import CheckpointError

SCHEMA = "_stateSchema/default/0_d4f6a059-05cf-4f46-824f-e4d89ee1f43f"


def described(folder: Path, operator: int, *schemas: str) -> Path:
    """Return a description in the format of Spark 4.1, with its checksums."""
    made = folder / "state" / str(operator) / "_metadata" / "v2" / "0"
    made.parent.mkdir(parents=True)
    store: dict[str, Any] = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}
    found = {
        "operatorInfo": {"operatorId": operator, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [{**store, "stateSchemaFilePaths": list(schemas)}],
        "operatorPropertiesJson": '{"timeMode":"NoTime","stateVariables":[{"stateName":"step/a"}]}',
    }
    made.write_text(f"v2\n{json.dumps(found)}")
    for name in (".0.crc", "0.crc"):
        made.with_name(name).write_bytes(b"sums of the text before")
    return made


def test_descriptions_name_the_files_of_the_copy(tmp_path: Path) -> None:
    """Each operator gets its own files; the rest stays, and stale checksums are removed."""
    gone = "file:/tmp/state/7/penstock-checkpoint-1"
    first = described(tmp_path, 0, f"{gone}/state/0/{SCHEMA}", f"{gone}/state/0/{SCHEMA}b")
    other = described(tmp_path, 7, f"{gone}/state/7/{SCHEMA}", "viewfs://penstock-1/elsewhere")
    before = [json.loads(path.read_text().splitlines()[1]) for path in (first, other)]
    point_to_copy(tmp_path)
    paths = [
        [f"file:{tmp_path}/state/0/{SCHEMA}", f"file:{tmp_path}/state/0/{SCHEMA}b"],
        [f"file:{tmp_path}/state/7/{SCHEMA}", "viewfs://penstock-1/elsewhere"],
    ]
    for path, old, schemas in zip((first, other), before, paths, strict=True):
        version, line = path.read_text().splitlines()
        old["stateStoreInfo"][0]["stateSchemaFilePaths"] = schemas
        assert (version, json.loads(line)) == ("v2", old)
        assert [found.name for found in path.parent.iterdir()] == ["0"]


@pytest.mark.parametrize("text", ["", "v2\n{", "v2\n[]", "v2"])
def test_a_description_that_cannot_be_read_is_damage(tmp_path: Path, text: str) -> None:
    path = described(tmp_path, 0)
    path.write_text(text)
    with pytest.raises(CheckpointError, match=f"{path} cannot be read"):
        point_to_copy(tmp_path)
