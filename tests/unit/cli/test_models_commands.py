"""The `penstock models` commands: what they send, list and refuse."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer
from control_checkpoint import make_checkpoint
from typed_commands import refused, told, typed

from penstock.commands.command_catalog import CONTROL_FILE, CommandCatalog, StepEntry
from penstock.models.orders import MODEL_ORDERS

KINDS: dict[str, tuple[str, ...]] = dict.fromkeys([*MODEL_ORDERS, "set"], ("step",))


def shown(status: str, **more: Any) -> dict[str, Any]:
    about = {"format": "onnx", "sha256": "ab", "uri": "/m/1.onnx", "metadata": {}, "changed_by": "ann"}
    return {"status": status, **about, **more}


COUNTS = {
    "batch": 3,
    "settings": {"score": {"fraud-policy": {"max_drift": 0.2}}},
    "models": {
        "score": {
            "fraud": {"1": shown("SERVING", pinned=2), "2": shown("SHADOW"), "3": shown("CANARY", share=0.1)}
        }
    },
    "scores": {
        "score": {
            "fraud": {
                "1": {"records": 2000, "failures": 1, "seconds": 0.5, "bins": {"1": 1000, "9": 1000}},
                "2": {"records": 2000, "compared": 2000, "agreed": 1900, "bins": {"1": 1000, "9": 1000}},
                "3": {"records": 10, "bins": {"60": 10}},
            }
        }
    },
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return the checkpoint of a job with the model `fraud` in one step, and `churn` in two."""
    folder = make_checkpoint(tmp_path / "checkpoint")
    steps = {
        "score": StepEntry("string", KINDS, (), ("fraud-policy",), models=("fraud", "churn")),
        "again": StepEntry("string", KINDS, (), (), models=("churn",)),
    }
    catalog = CommandCatalog("cards", f"jsonl:{folder / 'commands'}", steps)
    (folder / CONTROL_FILE).write_bytes(msgspec.json.encode(catalog))
    (folder / "counts.json").write_text(json.dumps(COUNTS))
    (folder / "lineage.json").write_text("{}")
    return folder


def sent(checkpoint: Path) -> dict[str, Any]:
    """Return the only pending command."""
    (path,) = (checkpoint / "commands").glob("*.jsonl")
    command = json.loads(path.read_text())
    path.unlink()
    msgspec.convert(command["payload"], MODEL_ORDERS[command["kind"]])
    return {"kind": command["kind"], "step": command["target"]["step"], **command["payload"]}


def test_the_list_compares_versions(checkpoint: Path) -> None:
    """A shadow shows its agreement; another version shows drift."""
    fraud, *others = told(typed("models", "list", checkpoint, "-o", "json"))
    assert [(found["step"], found["model"], found["versions"]) for found in others] == [
        ("score", "churn", []),
        ("again", "churn", []),
    ]
    one, two, three = fraud["versions"]
    assert (one["ms"], one["failures"], one["drift"], one["pinned"]) == (250.0, 1, None, 2)
    assert (two["agreement"], two["drift"]) == (0.95, 0.0)
    assert three["drift"] > 1
    text = typed("models", "list", checkpoint).output
    assert all(word in text for word in ("SERVING +2 pinned", "CANARY 10%", "95.00%", "ann"))


def test_a_policy_is_shown_and_set(checkpoint: Path) -> None:
    """It is a setting of the step."""
    assert told(typed("models", "policy", checkpoint, "fraud", "-o", "json")) == {"max_drift": 0.2}
    assert "max_drift" in typed("models", "policy", checkpoint, "fraud").output
    typed("models", "policy", checkpoint, "fraud", '{"max_drift": 0.1}')
    (path,) = (checkpoint / "commands").glob("*.jsonl")
    command = json.loads(path.read_text())
    assert (command["kind"], command["target"]) == ("set", {"step": "score"})
    assert command["payload"] == {"fraud-policy": {"max_drift": 0.1}}
    refused(typed("models", "policy", checkpoint, "fraud", "0.1"), "POLICY is not a JSON object")


def test_a_file_here_is_loaded_with_its_hash(checkpoint: Path, tmp_path: Path) -> None:
    """The command has its sample, and is for the step that declares the model."""
    path = tmp_path / "2.onnx"
    path.write_bytes(b"model")
    sample = tmp_path / "sample.json"
    sample.write_text('{"inputs": {"amount": [1.0]}, "expected": {"score": [0.5]}}')
    words = ("--format", "onnx", "--sample", sample, "--metadata", '{"auc": 0.9}')
    typed("models", "load", checkpoint, "fraud", "2", path, *words)
    assert sent(checkpoint) == {
        "kind": "load-model",
        "step": "score",
        "model": "fraud",
        "version": "2",
        "uri": str(path),
        "sha256": hashlib.sha256(b"model").hexdigest(),
        "format": "onnx",
        "metadata": {"auc": 0.9},
        "sample": json.loads(sample.read_text()),
    }


REFUSED = b'{"refusal": "it is a pickle"}'


def test_a_version_is_examined_while_its_findings_count(checkpoint: Path) -> None:
    """Findings of a valid version count as long as its content is there."""
    models = checkpoint / "models"
    (models / "findings").mkdir(parents=True)

    def is_examined() -> bool:
        (one, *_) = told(typed("models", "list", checkpoint, "-o", "json"))[0]["versions"]
        return bool(one["is_examined"])

    assert not is_examined()
    (models / "findings" / "ab-0.json").write_bytes(b'{"ms": 1.0}')
    assert not is_examined()
    (models / "ab").touch()
    assert is_examined()
    (models / "ab").unlink()
    (models / "findings" / "ab-0.json").write_bytes(REFUSED)
    assert is_examined()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("findings/ab-0.json", REFUSED, ""),
        ("failures/score/fraud/1.json", b'"it is gone"', "Version 1 could not be fetched: it is gone."),
        ("other", b"", "has not examined version 1 yet"),
    ],
)
def test_a_load_that_waits_waits_for_the_examination(
    name: str, content: bytes, said: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version can be validated only after the examination beside the job; a timeout is reported."""
    path = tmp_path / "1.onnx"
    path.write_bytes(b"model")

    def is_applied(*_: object) -> None:
        found = checkpoint / "models" / name
        found.parent.mkdir(parents=True)
        found.write_bytes(content)
        raise typer.Exit(0)

    monkeypatch.setattr("penstock.cli.models.send_and_wait", is_applied)
    words = ("load", checkpoint, "fraud", "1", path, "--format", "onnx", "--wait", "--timeout", "0.5")
    found = typed("models", *words)
    assert found.exit_code == 0
    assert said in " ".join(found.output.split()) if said else not found.output


@pytest.mark.parametrize(("version", "is_known"), [("1", True), ("9", False)])
def test_a_validation_that_waits_is_sent_when_the_version_is_examined(
    version: str, is_known: bool, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that nobody has loaded is not waited for."""
    steps = []

    def looks(*_: object) -> None:
        steps.append("looks")
        (checkpoint / "models" / "findings").mkdir(parents=True)
        (checkpoint / "models" / "findings" / "ab-0.json").write_bytes(REFUSED)

    def is_sent(*_: object) -> None:
        steps.append("sent")

    # Not the module's own function, which other threads use too.
    monkeypatch.setattr("penstock.cli.models.time", SimpleNamespace(sleep=looks, monotonic=time.monotonic))
    monkeypatch.setattr("penstock.cli.models.send_and_wait", is_sent)
    typed("models", "change", checkpoint, "validate", "fraud", version, "--wait")
    assert steps == ["looks", "sent"] if is_known else ["sent"]


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (("validate", "fraud", "2"), {"kind": "validate-model", "version": "2"}),
        (("canary", "fraud", "2", "--share", "0.1"), {"kind": "canary-model", "version": "2", "share": 0.1}),
        (("remove", "fraud", "1"), {"kind": "remove-model", "version": "1"}),
        (("roll-back", "fraud", "--reason", "late"), {"kind": "roll-back-model", "reason": "late"}),
        (("pin", "fraud", "2", "--keys", '["a"]'), {"kind": "pin-model", "version": "2", "keys": ["a"]}),
        (("pin", "fraud", "--keys", '["a"]'), {"kind": "pin-model", "keys": ["a"]}),
    ],
)
def test_a_change_is_a_command(words: tuple[str, ...], order: dict[str, Any], checkpoint: Path) -> None:
    """The job accepts its payload."""
    typed("models", "change", checkpoint, *words)
    assert sent(checkpoint) == {"step": "score", "model": "fraud", **order}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("change", "promote", "fraud"), "promote needs a VERSION"),
        (("change", "promote", "fraud", "2", "--share", "0.1"), "--share goes with canary only"),
        (("change", "pin", "fraud", "2", "--keys", "[a"), "--keys is not a JSON array"),
        (("change", "promote", "other", "2"), "No step declares a model 'other'; the job has fraud of score"),
        (("change", "promote", "churn", "2"), "Several steps declare a model 'churn'"),
        (
            ("load", "fraud", "2", "s3://b/2.onnx", "--format", "onnx"),
            "give the hash of its content with --sha256",
        ),
        (("load", "fraud", "2", "/nowhere", "--format", "onnx"), "is not a file on this machine"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], said: str, checkpoint: Path) -> None:
    """The error comes before anything is sent."""
    verb, *rest = words
    refused(typed("models", verb, checkpoint, *rest), said)
    assert list((checkpoint / "commands").iterdir()) == []


def test_one_of_several_steps_is_named(checkpoint: Path) -> None:
    """By an option."""
    typed("models", "change", checkpoint, "retire", "churn", "1", "--step", "again")
    assert sent(checkpoint)["step"] == "again"
