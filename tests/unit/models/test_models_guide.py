"""The guide to models: its functions run, and its commands exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from guide_code import python_of
from onnx_models import named_model
from safetensors.numpy import save

from penstock.control.commands import Command
from penstock.models.orders import MODEL_ORDERS, LoadModel
from penstock.testing import JobHarness

GUIDE = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.fixture(scope="module")
def guide() -> Iterator[dict[str, Any]]:
    """Run the guide's Python code and return its names."""
    with python_of(GUIDE) as names:
        yield names


@pytest.mark.parametrize("name", ["ScoreFraud", "ScoreLinear"])
def test_the_functions_of_the_guide_score(guide: dict[str, Any], name: str) -> None:
    """A model of each kind is used."""
    job = guide["ps"].Job("cards")
    payments = job.data_stream("payments", schema="card STRING, amount DOUBLE, age DOUBLE")
    output = "card STRING, score DOUBLE, version STRING"
    payments.key_by("card").process("score", guide[name](), output=output).sink_to("scores")
    run = JobHarness(job)
    content, form = named_model([0.5, 2.0]), "onnx"
    if name == "ScoreLinear":
        content, form = save({"factors": np.array([0.5, 2.0]), "offset": np.array([0.0])}), "safetensors"
    run.load_model("score", "fraud", "1", content, format=form)
    for kind in ("validate-model", "promote-model"):
        run.send_command(kind, "score", {"model": "fraud", "version": "1"})
    run.send("payments", {"card": "a", "amount": 4.0, "age": 1.0})
    assert [(found.score, found.version) for found in run.run_batch().output("scores")] == [(4.0, "1")]


def test_the_command_of_the_guide_is_one() -> None:
    """Its payload fits the command's kind."""
    (block,) = re.findall(r"^```json\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    command = msgspec.json.decode(block, type=Command)
    order = msgspec.json.decode(command.payload, type=MODEL_ORDERS[command.kind])
    assert isinstance(order, LoadModel)


def test_the_guide_has_every_command() -> None:
    """They are in its table."""
    rows = re.findall(r"^\| `([a-z-]+-model)`", GUIDE.read_text(), re.MULTILINE)
    assert set(rows) == set(MODEL_ORDERS)
