"""Choice of versions: a canary's share of the keys, and stable assignment of keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.models.choice import Choice
from penstock.models.versions import ModelVersion
from penstock.state.key_groups import key_groups


def choice(share: float, model: str = "fraud", **pins: list[str]) -> Choice:
    versions = {
        "1": ModelVersion("SERVING", "onnx", "", "", rank=1, pinned=pins.get("one", [])),
        "2": ModelVersion("CANARY", "onnx", "", "", share=share, pinned=pins.get("two", [])),
    }
    return Choice.of(model, versions)


KEYS = pa.array([f"card-{number}" for number in range(20_000)])


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 1.0])
def test_a_canary_has_its_share_of_the_keys_of_every_key_group(share: float) -> None:
    """The share is within four standard deviations, although key groups use the same hash."""
    chosen = np.array([version == "2" for version in choice(share).versions_of(KEYS)])
    assert abs(chosen.mean() - share) <= 4 * np.sqrt(share * (1 - share) / len(KEYS))
    for group in range(4):
        part = chosen[key_groups(KEYS, 4) == group]
        assert abs(part.mean() - share) <= 5 * np.sqrt(share * (1 - share) / len(part))


def test_a_key_stays_when_the_share_grows() -> None:
    """Keys in a tenth are also in a larger share."""
    small, large = (
        {
            key
            for key, version in zip(KEYS.to_pylist(), choice(share).versions_of(KEYS), strict=True)
            if version == "2"
        }
        for share in (0.1, 0.3)
    )
    assert small < large


def test_the_canaries_of_two_models_have_different_keys() -> None:
    """So no keys get everything that is new."""
    one, other = (np.array(choice(0.5, model).versions_of(KEYS)) == "2" for model in ("fraud", "churn"))
    assert 0.2 < (one & other).mean() < 0.3


def test_the_choice_is_the_same_on_every_machine() -> None:
    """The values are fixed, since a replay on another machine must choose alike."""
    assert choice(0.5).versions_of(pa.array(["a", "b", "c", "d", "e", "f"])) == ["2", "1", "2", "1", "1", "2"]
    assert choice(0.5).versions_of(pa.array(range(6))) == ["1", "1", "1", "1", "1", "2"]


def test_a_pinned_key_has_its_version_whatever_the_canary_has() -> None:
    """This includes keys of several fields."""
    assert choice(1.0, one=['"a"']).versions_of(pa.array(["a", "b"])) == ["1", "2"]
    pair = pa.array([(1, "x"), (2, "x")], pa.struct([("number", pa.int64()), ("text", pa.string())]))
    assert choice(1.0, one=['[1,"x"]']).versions_of(pair) == ["1", "2"]


def test_a_version_falls_back_to_the_one_before() -> None:
    """A canary falls back to the serving version, and that to the one that served before it."""
    versions = {
        "1": ModelVersion("RETIRED", "onnx", "", "", rank=1),
        "2": ModelVersion("RETIRED", "onnx", "", "", rank=2),
        "3": ModelVersion("SERVING", "onnx", "", "", rank=3),
        "4": ModelVersion("CANARY", "onnx", "", "", share=0.5),
        "5": ModelVersion("SHADOW", "onnx", "", ""),
        "6": ModelVersion("VALIDATED", "onnx", "", ""),
    }
    found = Choice.of("fraud", versions)
    assert found.before == {"3": "2", "4": "3"}
    assert set(found.needed) == {"2", "3", "4", "5"}
