"""Models of River and scikit-learn as state: as columns or a document, restored exactly, without code from
storage.
"""

from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace
from typing import Any

import library_models
import numpy as np
import pytest
from library_models import interrupted, river_learner, river_models, scikit_learner, scikit_models
from river import anomaly, drift, linear_model, naive_bayes, preprocessing, proba, stats, tree
from sklearn.cluster import Birch, MiniBatchKMeans
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.preprocessing import StandardScaler

import penstock as ps
from penstock.errors import SchemaError
from penstock.learning.document_form import ClosedModelError
from penstock.learning.document_reader import read_model
from penstock.learning.document_writer import write_model
from penstock.learning.library_models import LibraryModels

pytestmark = pytest.mark.filterwarnings("ignore:.*(invalid value|deprecated|subclusters)")

RIVER = {
    "anomaly.OneClassSVM",
    "cluster.KMeans",
    "covariance.EmpiricalCovariance",
    "drift.PageHinkley",
    "ensemble.BaggingClassifier",
    "facto.FMRegressor",
    "linear_model.SoftmaxRegression",
    "naive_bayes.GaussianNB",
    "neighbors.KNNClassifier",
    "preprocessing.StandardScaler",
    "stats.PearsonCorr",
    "tree.HoeffdingTreeRegressor",
}
SCIKIT = {
    "cluster.MiniBatchKMeans",
    "decomposition.IncrementalPCA",
    "linear_model.PassiveAggressiveClassifier",
    "linear_model.Perceptron",
    "linear_model.SGDClassifier",
    "naive_bayes.GaussianNB",
    "naive_bayes.MultinomialNB",
    "preprocessing.StandardScaler",
}


def pipeline() -> ps.River:
    return ps.River(
        preprocessing.StandardScaler() | linear_model.LinearRegression(), "km", "stops", target="minutes"
    )


def learned(learner: Any, records: int) -> Any:
    """Return a model after some records."""
    model, chance = learner.start(), random.Random(1)
    for at in range(records):
        features = {name: chance.random() for name in learner.features}
        learner.learn_one(model, features, at % 2 == 0 if learner.classes else sum(features.values()))
    return model


def test_weights_have_names() -> None:
    """They are names of attributes, pipeline steps, and record fields."""
    learner = pipeline()
    stored = learner.write(learned(learner, 50))
    assert stored["document"] is None
    assert stored["StandardScaler_counts_km"] == 50
    assert stored["StandardScaler_means_km"] == pytest.approx(0.5, abs=0.1)
    assert {"LinearRegression_intercept", "LinearRegression_weights_stops"} <= stored.keys()
    by_class = ps.River(naive_bayes.GaussianNB(), "km", target="late", classes=("no", "yes")).weight_types()
    assert "gaussians_yes_km_var_mean_mean" in by_class


@pytest.mark.parametrize("name", sorted(RIVER))
def test_a_model_of_river_is_the_same_again(name: str) -> None:
    """`make chaos` tries all others."""
    interrupted(river_learner(name, dict(river_models())[name]))


@pytest.mark.parametrize("name", sorted(SCIKIT))
def test_an_estimator_is_the_same_again(name: str) -> None:
    """`make chaos` tries all others."""
    interrupted(scikit_learner(name, dict(scikit_models())[name]))


@pytest.mark.chaos
def test_the_table_tells_which_models_can_be_learned() -> None:
    """If this fails after a version change: python tests/unit/learning/library_models.py."""
    page = library_models.TABLE.read_text()
    assert (
        page.split(library_models.BEGIN)[1].split(library_models.END)[0].strip()
        == library_models.table().strip()
    )


def test_a_model_of_another_shape_is_a_document() -> None:
    """This goes for new and for growing models; both are restored, and both are plain JSON."""
    learner = ps.River(tree.HoeffdingTreeRegressor(grace_period=5), "km", target="minutes")
    assert [*learner.weight_types()] == ["document"]
    stored = json.loads(learner.write(learned(learner, 60))["document"])
    assert stored["#"] == "river.tree.hoeffding_tree_regressor:HoeffdingTreeRegressor"
    young = pipeline()
    assert young.write(young.start())["document"] is not None


def test_what_is_null_is_as_in_a_fresh_model() -> None:
    """So a user may set a few weights, and a model gets a weight for a new field later."""
    learner = pipeline()
    few = dict.fromkeys(learner.weight_types()) | {"LinearRegression_weights_km": 2.0}
    model = learner.read(few)
    assert model["LinearRegression"]._weights == {"km": 2.0}
    assert learner.score_one(model, {"km": 3.0, "stops": 1.0}) == 0.0  # the scaler has no distances yet
    stored = learner.write(learned(learner, 50))
    more = ps.River(learner.model, "km", "stops", "rain", target="minutes")
    again = more.read(dict.fromkeys(more.weight_types()) | stored)
    assert more.score_one(again, {"km": 0.4, "stops": 0.1, "rain": 1.0}) != 0.0


def test_what_a_document_lacks_is_not_shared() -> None:
    """A model from an old document, whose class had fewer attributes, does not share the fresh one's."""
    fresh = preprocessing.StandardScaler()
    again = read_model({"#": "river.preprocessing.scale:StandardScaler"}, fresh, "river")
    again.learn_one({"km": 1.0})
    assert not fresh.counts
    grown = ps.River(tree.HoeffdingTreeRegressor(), "km", target="minutes")
    with pytest.raises(ValueError, match="is its document, and there is none"):
        grown.read({"document": None})


def test_arguments_are_code() -> None:
    """A model declared with another rate uses it with the earlier weights."""
    before = ps.River(linear_model.PARegressor(C=0.01), "km", target="minutes")
    after = ps.River(linear_model.PARegressor(C=0.5), "km", target="minutes")
    assert not any("C" in name.split("_") for name in before.weight_types())
    assert after.read(before.write(learned(before, 30))).C == 0.5


def test_a_model_is_shown_as_its_library_has_it() -> None:
    """It is built from weights just learned or from storage; without records nothing changes."""
    learner = ps.ScikitLearn(SGDRegressor(random_state=1), "km", target="minutes", batch=2)
    models = LibraryModels(learner)
    held: Any = None
    for km in (1.0, 2.0):
        score, held = models.learn(held, {"km": km, "minutes": 2 * km}, SimpleNamespace, scored=True)
        assert math.isnan(score)
    for shown in (models.model(held), LibraryModels(learner).model(held)):
        assert shown.coef_.tolist() == [held.coef_0]
    none = np.zeros(0, np.int64)
    learned_none = models.learn_columns(
        none.astype(bool), {}, none, {"km": none, "minutes": none}, scored=True
    )
    assert (len(learned_none.keys), len(learned_none.scores)) == (0, 0)


class Innocent:
    """A class that no document may name."""


@pytest.mark.parametrize(
    "document",
    [
        {"#": "os:system"},
        {"#": "subprocess:Popen", "args": "true"},
        {"#": f"{__name__}:Innocent"},
        {"#": "river.datasets.base:Dataset"},
        {"#": "river.stats.mean:stats"},
        {"#": "river.stats.mean:Nothing"},
        {"#": "defaultdict", "#of": {"#": "function", "#name": "os:getcwd"}, "a": 1},
        {"#": "defaultdict", "#of": {"#": "class", "#name": "builtins.eval"}, "a": 1},
        {"#": "defaultdict", "#of": {"#": "function", "#name": "river.utils.math:softmax"}, "a": 1},
        {"#": "river.nothing:Model"},
        {"#": "partial", "#of": {"#": "code"}, "#arguments": [], "#named": {}},
        {"#": "method", "#of": {"#": "river.stats.mean:Mean"}, "#name": "__init_subclass__"},
        {"#": "method", "#of": [], "#name": "append"},
        {"#": "array", "#type": "|O", "#shape": [1], "#order": "C", "#values": [1]},
        {"#": "object", "#value": 1},
        {"#": "same", "#as": 7},
        {"#": "Generator", "#state": {"bit_generator": "Other"}},
    ],
)
def test_a_document_runs_no_code(document: Any) -> None:
    """It may only name classes of its library, which get attributes without a constructor call."""
    with pytest.raises(ClosedModelError):
        read_model(document, stats.Mean(), "river")


def test_shared_objects_and_odd_numbers_come_back() -> None:
    """Covered are shared objects, cycles, tuples as keys, and numbers that JSON lacks."""
    first, second = stats.Mean(), stats.Mean()
    first.loop = [first, second, second]
    first.odd = {(1, "a"): float("inf"), None: float("nan"), "#": -0.0}
    again = read_model(
        json.loads(json.dumps(write_model(first, stats.Mean(), "river"))), stats.Mean(), "river"
    )
    assert again.loop[0] is again
    assert again.loop[1] is again.loop[2]
    assert repr(again.odd) == repr(first.odd)


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda: ps.River(stats.EWMean(), "a"), "RsEWMean, whose state only pickle could read"),
        (lambda: ps.River(drift.ADWIN(), "a"), "cannot be stored without pickle"),
        (lambda: ps.River(stats.KolmogorovSmirnov(), "a", "b"), "learns by chance"),
        (lambda: ps.River(anomaly.HalfSpaceTrees(), "a"), "seed=1"),
        (lambda: ps.River(proba.Gaussian(), "a"), "seed=1"),
        (lambda: ps.River(linear_model.LinearRegression(), "a"), "needs a target"),
        (lambda: ps.River(stats.Mean(), "a", target="y"), "learns without a target"),
        (lambda: ps.River(linear_model.LinearRegression(), "a", target="a"), "different fields"),
        (
            lambda: ps.River(linear_model.LinearRegression(), "a", target="y", classes=(0, 1)),
            "not a classifier",
        ),
        (
            lambda: ps.River(linear_model.LogisticRegression(), "a", target="y", classes=(1, 1)),
            "different values",
        ),
        (lambda: ps.River(linear_model.LinearRegression, "a", target="y"), "has learn_one"),
        (lambda: ps.River(StandardScaler(), "a"), "has learn_one"),
        (lambda: ps.River(preprocessing.StandardScaler(), "a", texts=("b",)), "must be among its features"),
        (
            lambda: ps.River(
                preprocessing.OneHotEncoder() | linear_model.LogisticRegression(),
                "a",
                target="y",
                texts=("a",),
            ),
            "a set, whose order differs",
        ),
        (lambda: ps.ScikitLearn(SGDRegressor(), "a", target="y"), "random_state=1"),
        (lambda: ps.ScikitLearn(SGDRegressor(random_state=1), "a"), "needs a target"),
        (lambda: ps.ScikitLearn(StandardScaler(), "a", batch=0), "at least 1"),
        (lambda: ps.ScikitLearn(Birch(), "a"), "shares its memory"),
        (lambda: ps.ScikitLearn(MiniBatchKMeans(8, random_state=1), "a"), "cannot learn"),
        (lambda: ps.ScikitLearn(stats.Mean(), "a"), "partial_fit"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_a_reason(declare: Any, reason: str) -> None:
    """The error comes at the declaration, before a job starts."""
    with pytest.raises(SchemaError, match=reason):
        declare()


def test_a_classifier_with_many_classes_says_which() -> None:
    """Its position among the classes gives the class, for text and numbers."""
    labels = ("red", "green", "blue")
    for learner in (
        ps.River(naive_bayes.GaussianNB(), "a", target="colour", classes=labels),
        ps.ScikitLearn(SGDClassifier(random_state=1), "a", target="colour", classes=labels),
    ):
        model, chance = learner.start(), random.Random(1)
        for _ in range(300):
            place = chance.randrange(3)
            learner.learn_one(model, {"a": place * 10 + chance.random()}, labels[place])
        assert learner.score_one(model, {"a": 20.5}) == 2.0
        with pytest.raises(ValueError, match="none of the classes"):
            learner.target_of("grey")
