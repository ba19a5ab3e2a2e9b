"""Models in jobs: which version scores which record, receipts, and failing versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from model_parts import (
    CARDS,
    OUTPUT,
    Linear,
    Scored,
    ScoreRecords,
    bring_in,
    last,
    order,
    pay,
    scoring_job,
    weights,
)
from onnx_models import named_model

import penstock as ps
from penstock.errors import JobDefinitionError, SchemaError, StateError
from penstock.models.tallies import VersionTally, drift_psi
from penstock.testing import JobHarness, saved_states


def serving(run: JobHarness, version: str = "1", factor: float = 2.0, **more: float) -> None:
    bring_in(run, version, weights(factor, **more))
    order(run, "promote", version)


@pytest.mark.parametrize("function", [None, ScoreRecords()])
def test_a_version_serves_from_its_cut_on(function: ps.ProcessFunction | None) -> None:
    """Both forms are tested; before the cut the default scores, and a crash changes nothing."""
    run = JobHarness(scoring_job(function), parallelism=2)
    assert set(pay(run).values()) == {""}
    serving(run)
    assert set(pay(run, 3.0).values()) == {"1"}
    run.crash()
    assert {record.score for record in run.outcomes[-1].output("scores")} == {6.0}
    serving(run, "2", 5.0)
    assert set(pay(run).values()) == {"2"}


@pytest.mark.parametrize("function", [None, ScoreRecords()])
def test_the_keys_of_a_canary_are_the_same_everywhere(function: ps.ProcessFunction | None) -> None:
    """Both forms are tested, after a rescaling, and in a job from a savepoint."""
    run = JobHarness(scoring_job(function), parallelism=2)
    serving(run)
    bring_in(run, "2", weights(3.0))
    order(run, "canary", "2", share=0.5)
    first = pay(run)
    assert 4 < sum(version == "2" for version in first.values()) < 20
    run.crash()
    run.rescale(3)
    assert pay(run) == first
    other = JobHarness(scoring_job(ScoreRecords()), from_savepoint=run.savepoint())
    assert pay(other) == first


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_job_starts_from_a_dump_of_its_versions(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All formats are tested; the dump contains the versions' files, too."""
    run = JobHarness(scoring_job(), parallelism=2)
    serving(run)
    bring_in(run, "2", weights(3.0), metadata={"trained on": "2026-11"})
    order(run, "canary", "2", share=0.5)
    order(run, "pin", "1", keys=["card-1"])
    first = pay(run)
    assemble = saved_states.assemble

    def dump(place: str, contents: Any, *more: Any) -> Any:
        return assemble(place, dataclasses.replace(contents, kind="dump", format=form), *more)

    monkeypatch.setattr(saved_states, "assemble", dump)
    place = run.savepoint(tmp_path / "dump").place
    assert pay(JobHarness(scoring_job(), from_savepoint=place)) == first


def test_a_pinned_key_keeps_its_version() -> None:
    """It does so when another version is promoted, until it is unpinned."""
    run = JobHarness(scoring_job(), parallelism=2)
    serving(run)
    bring_in(run, "2", weights(3.0))
    order(run, "pin", "1", keys=["card-3"])
    order(run, "promote", "2")
    assert pay(run) == dict.fromkeys(CARDS, "2") | {"card-3": "1"}
    order(run, "pin", keys=["card-3"])
    assert pay(run) == dict.fromkeys(CARDS, "2")


def test_a_shadow_emits_nothing_and_is_compared() -> None:
    """Agreement, failures and the drift of its scores are counted."""
    run = JobHarness(scoring_job(), parallelism=2)
    serving(run)
    bring_in(run, "2", weights(2.01, fails_from=50.0))
    order(run, "shadow", "2")
    assert set(pay(run).values()) == {"1"}
    assert set(pay(run, 60.0).values()) == {"1"}
    tallies = [tally(run.outcomes[-1 - back]) for back in (0, 1)]
    assert [found["2"].failures for found in tallies] == [24, 0]
    assert [found["2"].agreed for found in tallies] == [0, 24]
    assert drift_psi(tallies[1]["1"], tallies[1]["2"]) == pytest.approx(0.0)
    assert drift_psi(tallies[0]["1"], tallies[1]["2"]) > 0.25  # type: ignore[operator]


def tally(outcome: Any) -> dict[str, VersionTally]:
    found: dict[str, VersionTally] = {}
    from penstock.models.tallies import add_tallies

    for kind, _, _, _, body in outcome.reports:
        if kind == "scores":
            add_tallies(found, msgspec.json.decode(body, type=dict[str, dict[str, VersionTally]])["fraud"])
    return found


def test_the_receipts_of_a_life_say_what_changed() -> None:
    """The register has who requested each change."""
    run = JobHarness(scoring_job(), parallelism=2)
    serving(run)
    bring_in(run, "2", weights(3.0))
    command = run.send_command("promote-model", "score", {"model": "fraud", "version": "2"}, issued_by="ann")
    back = order(run, "roll-back", reason="too many alarms")
    pay(run)
    *_, promoted, undone = run.receipts(command)
    assert (undone.status, undone.reason) == ("DEGRADED", "too many alarms")
    assert msgspec.json.decode(promoted.details) == {
        "model": "fraud",
        "versions": {"1": "RETIRED", "2": "SERVING"},
    }
    assert msgspec.json.decode(last(run, back).details) == {
        "model": "fraud",
        "reason": "too many alarms",
        "versions": {"1": "SERVING", "2": "RETIRED"},
    }
    (shown,) = {body for kind, _, _, _, body in run.outcomes[-1].reports if kind == "models"}
    versions = msgspec.json.decode(shown)["fraud"]
    assert [versions[name]["status"] for name in "12"] == ["SERVING", "RETIRED"]


@pytest.mark.parametrize("fault", [{"fails_from": 10.0}, {"nan_from": 10.0}])
@pytest.mark.parametrize("function", [None, ScoreRecords()])
def test_the_version_before_scores_where_one_fails(
    fault: Mapping[str, float], function: ps.ProcessFunction | None
) -> None:
    """Only the failing records use it, for any batch boundaries."""
    run = JobHarness(scoring_job(function), parallelism=2)
    serving(run)
    serving(run, "2", 3.0, **fault)
    run.send("payments", [{"card": card, "amount": float(place)} for place, card in enumerate(CARDS)])
    found = run.run_batch().output("scores")
    assert {(r.version, r.score) for r in found} == {("2", 3.0 * n) for n in range(10)} | {
        ("1", 2.0 * n) for n in range(10, 24)
    }
    assert run.dead_letters() == []
    assert tally(run.outcomes[-1])["2"].failures == 14


@pytest.mark.parametrize("function", [None, ScoreRecords()])
def test_a_record_without_any_score_is_a_dead_letter_with_its_input(
    function: ps.ProcessFunction | None,
) -> None:
    """The other records are scored."""
    run = JobHarness(scoring_job(function), parallelism=2)
    serving(run, "1", 2.0, nan_from=10.0)
    run.send("payments", [{"card": card, "amount": float(place)} for place, card in enumerate(CARDS)])
    assert len(run.run_batch().output("scores")) == 10
    letters = run.dead_letters()
    assert len(letters) == 14
    assert all(b"card-" in letter.raw and "no usable score" in letter.reason for letter in letters)
    assert tally(run.outcomes[-1])["1"].records == 10


class Both(ps.ProcessFunction):
    """Two models: the one scores only large payments, with the score of the other."""

    first = ps.Model("first", inputs="amount DOUBLE", output="score DOUBLE", weights=Linear)
    second = ps.Model("second", inputs="amount DOUBLE, age DOUBLE", output="score DOUBLE")

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        if self.second.serving is None:
            return None
        large = np.flatnonzero(records.column("amount").to_numpy() >= 2)
        one = self.first.predict({"amount": records.column("amount").take(pa.array(large))}, ctx, large)
        two = self.second.predict({"amount": np.asarray(one), "age": one.values}, ctx, large)
        return ctx.select(large, "card", "amount", score=two.values, version=two.versions)


def test_a_step_may_have_two_models_and_score_some_rows() -> None:
    """Each model has its own versions and format."""
    run = JobHarness(scoring_job(Both()))
    run.load_model("score", "first", "1", weights(10.0), format="safetensors")
    run.load_model("score", "second", "a", named_model([1.0, 2.0]), format="onnx")
    for model, version in (("first", "1"), ("second", "a")):
        for kind in ("validate-model", "promote-model"):
            run.send_command(kind, "score", {"model": model, "version": version})
    run.send("payments", [{"card": "b", "amount": 1.0}])
    assert run.run_batch().output("scores") == []
    run.send("payments", [{"card": "a", "amount": 1.0}, {"card": "a", "amount": 2.0}])
    assert [(r.score, r.version) for r in run.run_batch().output("scores")] == [(60.0, "a")]
    wrong = run.send_command("promote-model", "score", {"model": "third", "version": "1"})
    run.run_batch()
    assert "no model 'third'; it has first, second" in last(run, wrong).reason


class NoDefault(ps.ProcessFunction):
    """A model without a default."""

    model = ps.Model("fraud", inputs="amount DOUBLE", output="score DOUBLE", weights=Linear)

    def process_record(self, payment: Any, ctx: ps.Context) -> Any:
        return [Scored(payment.card, 0.0, self.model.predict(payment, ctx).value, "")]


def test_without_a_version_and_a_default_records_are_dead_letters() -> None:
    """The dead letter says what to do."""
    run = JobHarness(scoring_job(NoDefault()))
    assert pay(run) == {}
    assert "Load, validate and promote one, or declare a default" in run.dead_letters()[0].reason


def test_what_a_step_cannot_declare() -> None:
    """Such are two models of one name, a handler of a model command, columns unfit for a model, and an unfit
    default.
    """

    class Twice(NoDefault):
        other = ps.Model("fraud", inputs="amount DOUBLE", output="score DOUBLE")

    class Handles(NoDefault):
        @ps.on_command("load-model", scope="step")
        def load(self, payload: str, ctx: ps.CommandContext) -> None:
            """Do nothing."""

    class Dates(NoDefault):
        model = ps.Model("fraud", inputs="at TIMESTAMP", output="score DOUBLE")

    class Default(NoDefault):
        model = ps.Model("fraud", inputs="amount DOUBLE", output="score DOUBLE", default={"other": 1})

    for function, kind, reason in (
        (Twice(), JobDefinitionError, "two models 'fraud'"),
        (Handles(), JobDefinitionError, "choose another kind"),
        (Dates(), SchemaError, "numbers, booleans and text"),
        (Default(), SchemaError, "its output is score"),
    ):
        with pytest.raises(kind, match=reason):
            scoring_job(function)


def test_a_step_without_a_key_has_no_canary() -> None:
    """A canary's share is a share of keys."""
    job = ps.Job("cards", key_groups=8)
    payments = job.data_stream("payments", schema="card STRING, amount DOUBLE")
    payments.process("score", NoDefault(), output=OUTPUT).sink_to("scores")
    kinds = JobHarness(job).runner.plan.accepting.steps["score"].kinds
    assert "promote-model" in kinds
    assert not {"canary-model", "pin-model"} & kinds.keys()


def test_a_job_whose_checkpoint_has_lost_a_model_stops_and_says_so() -> None:
    """No record becomes a dead letter, since no record is to blame."""
    run = JobHarness(scoring_job())
    serving(run, factor=77.0)
    pay(run)
    from penstock.models import bound_model
    from penstock.models.loaded import LoadedModels

    store = run.runner.model_store
    for path in (store.path / "models").glob("[0-9a-f]*"):
        if path.is_file():
            path.write_bytes(b"other")
    before = bound_model.loaded_models
    bound_model.loaded_models = LoadedModels()  # type: ignore[misc]  # a new worker
    try:
        with pytest.raises(StateError, match=r"is damaged\. Restore it from a savepoint"):
            pay(run)
    finally:
        bound_model.loaded_models = before  # type: ignore[misc]
