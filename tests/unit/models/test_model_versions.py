"""Versions: the transitions of a version's status, as a table, and the register's response to commands."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.models.orders import (
    CanaryModel,
    LoadModel,
    PinModel,
    PromoteModel,
    RemoveModel,
    RetireModel,
    RollBackModel,
    ShadowModel,
    ValidateModel,
)
from penstock.models.refusals import ModelRefusedError
from penstock.models.versions import Cause, ModelVersion, next_versions

ORDERS = {
    "validate": lambda v: ValidateModel("fraud", v),
    "shadow": lambda v: ShadowModel("fraud", v),
    "canary": lambda v: CanaryModel("fraud", v, 0.1),
    "promote": lambda v: PromoteModel("fraud", v),
    "retire": lambda v: RetireModel("fraud", v),
    "roll-back": lambda v: RollBackModel("fraud", v),
    "remove": lambda v: RemoveModel("fraud", v),
}
LEGAL: dict[str, dict[str, str | None]] = {
    "REGISTERED": {"validate": "VALIDATED", "remove": None},
    "VALIDATED": {
        "validate": "VALIDATED",
        "shadow": "SHADOW",
        "canary": "CANARY",
        "promote": "SERVING",
        "retire": "RETIRED",
        "remove": None,
    },
    "SHADOW": {"canary": "CANARY", "promote": "SERVING", "retire": "RETIRED", "roll-back": "VALIDATED"},
    "CANARY": {
        "shadow": "SHADOW",
        "canary": "CANARY",
        "promote": "SERVING",
        "retire": "RETIRED",
        "roll-back": "VALIDATED",
    },
    "RETIRED": {
        "shadow": "SHADOW",
        "canary": "CANARY",
        "promote": "SERVING",
        "retire": "RETIRED",
        "remove": None,
    },
}


def version(status: str, rank: int = 0, **more: Any) -> ModelVersion:
    return ModelVersion(status, "onnx", "0" * 64, "/m", rank=rank, **more)


def after(versions: dict[str, ModelVersion], order: object) -> dict[str, ModelVersion]:
    found = dict(versions)
    for name, changed in next_versions(versions, order, Cause("ann")).items():
        if changed is None:
            del found[name]
        else:
            found[name] = changed
    return found


@pytest.mark.parametrize("status", list(LEGAL))
@pytest.mark.parametrize("kind", list(ORDERS))
def test_a_version_takes_the_steps_of_its_status_and_no_others(status: str, kind: str) -> None:
    """Another version serves; the refusal states the status."""
    versions = {"1": version("SERVING", 1), "2": version(status)}
    if kind not in LEGAL[status]:
        with pytest.raises(ModelRefusedError, match=f"{status}|neither serves nor scores beside"):
            after(versions, ORDERS[kind]("2"))
        return
    found = after(versions, ORDERS[kind]("2"))
    wanted = LEGAL[status][kind]
    if wanted is None:
        assert list(found) == ["1"]
        return
    assert found["2"].status == wanted
    assert found["1"].status == ("RETIRED" if kind == "promote" else "SERVING")
    assert found["2"].changed_by == "ann"


def test_a_roll_back_lets_the_version_before_serve_and_forgets_the_bad_one() -> None:
    """A second rollback goes further back; a rolled-back version is never a fallback."""
    versions = {name: version("VALIDATED") for name in "123"}
    for name in "12":
        versions = after(versions, PromoteModel("fraud", name))
    versions = after(versions, RollBackModel("fraud"))
    assert [versions[name].status for name in "12"] == ["SERVING", "RETIRED"]
    versions = after(versions, PromoteModel("fraud", "3"))
    versions = after(versions, RollBackModel("fraud"))
    assert [versions[name].status for name in "123"] == ["SERVING", "RETIRED", "RETIRED"]
    with pytest.raises(ModelRefusedError, match="has served before '1'"):
        after(versions, RollBackModel("fraud"))


def test_there_is_one_canary_and_none_before_a_version_serves() -> None:
    """A shadow needs a serving version to compare with as well."""
    with pytest.raises(ModelRefusedError, match="serves yet"):
        after({"1": version("VALIDATED")}, ShadowModel("fraud", "1"))
    versions = {"1": version("SERVING", 1), "2": version("CANARY"), "3": version("VALIDATED")}
    with pytest.raises(ModelRefusedError, match="'2' is the canary"):
        after(versions, CanaryModel("fraud", "3", 0.5))


def test_a_key_is_pinned_to_one_version() -> None:
    """A later pin replaces an earlier one, and a pin without a version removes it."""
    versions = {"1": version("SERVING", 1), "2": version("VALIDATED")}
    versions = after(versions, PinModel("fraud", ["a", "b"], "2"))
    versions = after(versions, PinModel("fraud", ["b"], "1"))
    assert [versions[name].pinned for name in "12"] == [['"b"'], ['"a"']]
    versions = after(versions, PinModel("fraud", ["a"]))
    assert [versions[name].pinned for name in "12"] == [['"b"'], []]


def test_a_version_is_loaded_once_and_the_oldest_idle_one_is_forgotten() -> None:
    """A register's size is bounded."""
    load = LoadModel("fraud", "new", "/m", "0" * 64, "onnx")
    with pytest.raises(ModelRefusedError, match="give the new one another name"):
        after({"new": version("RETIRED")}, load)
    many = {str(number): version("RETIRED") for number in range(200)}
    found = after(many, load)
    assert "0" not in found
    assert found["new"].status == "REGISTERED"
    with pytest.raises(ModelRefusedError, match="retire some"):
        after({name: version("VALIDATED") for name in many}, load)


def test_what_keys_or_a_roll_back_need_is_not_removed() -> None:
    """It stays until it is retired, or is no longer a rollback target."""
    versions = {name: version("VALIDATED") for name in "123"}
    versions = after(after(versions, PromoteModel("fraud", "1")), PromoteModel("fraud", "2"))
    with pytest.raises(ModelRefusedError, match="a rollback returns to it"):
        after(versions, RemoveModel("fraud", "1"))
    many = {str(number): version("RETIRED", int(number == 0)) for number in range(199)}
    load = LoadModel("fraud", "new", "/m", "0" * 64, "onnx")
    left = after({**many, "serves": version("SERVING", 2)}, load)
    assert "0" in left, "nor is it forgotten when the register is full"
    assert "1" not in left
    versions = after(versions, PromoteModel("fraud", "3"))
    versions = after(versions, RemoveModel("fraud", "1"))
    versions = after(versions, PromoteModel("fraud", "2"))
    versions = after(versions, PinModel("fraud", ["a"], "3"))
    with pytest.raises(ModelRefusedError, match=r"serves 1 pinned keys; retire it first"):
        after(versions, RemoveModel("fraud", "3"))


def test_what_is_not_there_cannot_change() -> None:
    """The refusal lists the existing versions."""
    with pytest.raises(ModelRefusedError, match=r"no version '9'; it has 1\. Send load-model first"):
        after({"1": version("SERVING", 1)}, PromoteModel("fraud", "9"))
