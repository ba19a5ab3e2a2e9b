"""Tries which models of River and scikit-learn a job can learn. `python library_models.py` renews the table.

Each is created as in its library's own tests, or with the arguments below.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import river
from river import linear_model, preprocessing, stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import all_estimators

import penstock as ps
from penstock.errors import SchemaError
from penstock.learning.model_learner import ModelLearner

TABLE = Path(__file__).parents[3] / "docs" / "learning_models.md"
BEGIN = "<!-- models: made by tests/unit/learning/library_models.py -->\n"
END = "<!-- end of models -->\n"

# Models that cannot learn from records of a single key, and wrappers of other libraries.
NO_MODELS = {
    "api",
    "bandit",
    "base",
    "checks",
    "compat",
    "datasets",
    "metrics",
    "model_selection",
    "test",
    "utils",
}
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "compose.FuncTransformer": lambda: {"func": dict},
    "compose.Grouper": lambda: {"transformer": preprocessing.StandardScaler(), "by": "a"},
    "compose.Prefixer": lambda: {"prefix": "x"},
    "compose.Renamer": lambda: {"mapping": {"a": "x"}},
    "compose.Suffixer": lambda: {"suffix": "x"},
    "compose.TargetTransformRegressor": lambda: {
        "regressor": linear_model.LinearRegression(),
        "func": np.log,
        "inverse_func": np.exp,
    },
    "feature_extraction.Agg": lambda: {"on": "a", "by": "b", "how": stats.Mean()},
    "feature_extraction.TargetAgg": lambda: {"by": "a", "how": stats.Mean()},
    "feature_selection.PoissonInclusion": lambda: {"p": 0.5, "seed": 1},
    "imblearn.RandomOverSampler": lambda: sampler(),
    "imblearn.RandomSampler": lambda: sampler(),
    "imblearn.RandomUnderSampler": lambda: sampler(),
    "preprocessing.TargetMinMaxScaler": lambda: {"regressor": linear_model.LinearRegression()},
    "preprocessing.TargetStandardScaler": lambda: {"regressor": linear_model.LinearRegression()},
    "stats.AutoCorr": lambda: {"lag": 2},
    "stats.BayesianMean": lambda: {"prior": 1.0, "prior_weight": 2.0},
    "stats.Link": lambda: {"left": stats.Shift(1), "right": stats.Mean()},
    "stats.RollingQuantile": lambda: {"q": 0.5, "window_size": 5},
}


def sampler() -> dict[str, Any]:
    return {
        "classifier": linear_model.LogisticRegression(),
        "desired_dist": {False: 0.5, True: 0.5},
        "seed": 1,
    }


def river_models() -> Iterator[tuple[str, Any]]:
    """Return the name and the factory of each River model."""
    seen: set[Any] = set()
    for module in pkgutil.iter_modules(river.__path__):
        if module.name in NO_MODELS or module.name.startswith("_"):
            continue
        for name, kind in inspect.getmembers(
            importlib.import_module(f"river.{module.name}"), inspect.isclass
        ):
            learns = hasattr(kind, "learn_one") or hasattr(kind, "update")
            if name.startswith("_") or kind in seen or not learns or inspect.isabstract(kind):
                continue
            seen.add(kind)
            yield f"{module.name}.{name}", kind


def river_learner(name: str, kind: Any) -> ModelLearner:
    """Declare a model of River with the fields that it takes. Raises SchemaError as a job does."""
    try:
        own = next(iter(kind._unit_test_params()), {}) if hasattr(kind, "_unit_test_params") else {}
        given = ARGUMENTS[name]() if name in ARGUMENTS else dict(own)
        known = inspect.signature(kind).parameters
        if "window_size" in known and known["window_size"].default is inspect.Parameter.empty:
            given.setdefault("window_size", 5)
        model = kind(**given | ({"seed": 1} if "seed" in known else {}))
    except Exception as e:
        raise SchemaError(f"it cannot be made without more arguments: {e}") from e
    refusal = SchemaError("")
    attempts = itertools.product((("a",), ("a", "b")), (None, "y"), ((), ("a",)))
    for features, target, texts in sorted(attempts, key=lambda attempt: -len(attempt[0])):
        try:
            return ps.River(model, *features, target=target, texts=texts)
        except SchemaError as e:
            refusal = e if not str(refusal) or "pickle" in str(e) or "chance" in str(e) else refusal
    raise refusal


def scikit_models() -> Iterator[tuple[str, Any]]:
    """Return the name and the factory of each scikit-learn estimator with `partial_fit`."""
    for name, kind in all_estimators():
        if hasattr(kind, "partial_fit"):
            yield f"{kind.__module__.split('.')[1]}.{name}", kind


def scikit_learner(name: str, kind: Any) -> ModelLearner:
    """Declare an estimator with the fields that it takes. Raises SchemaError as a job does."""
    known = inspect.signature(kind).parameters
    given: dict[str, Any] = {"random_state": 1} if "random_state" in known else {}
    if "estimator" in known:
        module = importlib.import_module("sklearn.linear_model")
        given["estimator"] = module.SGDClassifier(random_state=1)
    try:
        model = kind(**given)
    except Exception as e:
        raise SchemaError(f"it cannot be made without more arguments: {e}") from e
    refusal = SchemaError("")
    for batch, target in itertools.product((1, 16), (None, "y")):
        try:
            return ps.ScikitLearn(model, "a", "b", target=target, batch=batch)
        except SchemaError as e:
            refusal = e if not str(refusal) or "pickle" in str(e) else refusal
    raise refusal


def interrupted(learner: ModelLearner, records: int = 36) -> None:
    """Check that a model stored and read after some records learns and scores as one that was not."""
    chance = np.random.default_rng(2)
    kept, moved = learner.start(), learner.start()
    for at in range(records):
        features: dict[str, Any] = dict(
            zip(learner.features, chance.random(len(learner.features)).tolist(), strict=True)
        )
        for name in learner.texts:
            features[name] = "abcd"[int(features[name] * 4)]
        target = (
            learner.classes[int(chance.random() * len(learner.classes))] if learner.classes else at % 7 / 7
        )
        for model in (kept, moved):
            learner.learn_one(model, features, target)
        if at % 5 == 4:
            stored = learner.write(moved)
            assert json.dumps(stored) == json.dumps(learner.write(kept)), "the same was learned"
            moved = learner.read(json.loads(json.dumps(stored)))
            said = [np.float64(learner.score_one(model, features)).tobytes() for model in (kept, moved)]
            assert said[0] == said[1], "the same is said"


def form_of(learner: ModelLearner) -> str:
    """Return how a model is stored: its number of columns, or as a document."""
    columns = len(learner.weight_types()) - 1 - (learner.records_at_once > 1)
    return f"{columns} column{'s' * (columns != 1)}" if columns else "document"


def tried(name: str, kind: Any, declare: Callable[[str, Any], ModelLearner]) -> tuple[bool, str]:
    """Return whether a model can be learned, and how it is stored or why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (RuntimeWarning, FutureWarning, ConvergenceWarning))
        try:
            learner = declare(name, kind)
            interrupted(learner)
        except SchemaError as e:
            return False, reason_of(str(e))
        more = ", texts" * bool(learner.texts) + f", `batch={learner.records_at_once}`" * (
            learner.records_at_once > 1
        )
        return True, form_of(learner) + more


def reason_of(refusal: str) -> str:
    """Return a refusal in a word or two, for the table."""
    for sign, reason in (
        ("_rust", "its state is in compiled code"),
        ("is a set", "it has a set, whose order differs between processes"),
        ("by chance", "it draws random numbers without a seed"),
        ("shares its memory", "arrays share memory"),
        ("without pickle", "it has functions or objects of other libraries"),
        ("more arguments", "it has no default arguments"),
        ("changes when it scores", "it changes when it scores"),
    ):
        if sign in refusal:
            return reason
    return "it takes other records than features and a target"


def table() -> str:
    """The table of all models."""
    lines: list[str] = []
    for title, models, declare in (
        ("River", river_models, river_learner),
        ("scikit-learn", scikit_models, scikit_learner),
    ):
        found = [(name, *tried(name, kind, declare)) for name, kind in models()]
        good = [f"| `{name}` | {form} |" for name, is_good, form in found if is_good]
        lines += [
            f"## {title}: {len(good)} of {len(found)}\n",
            "| model | stored as |",
            "|---|---|",
            *good,
            "",
        ]
        reasons: dict[str, list[str]] = {}
        for name, is_good, reason in found:
            if not is_good:
                reasons.setdefault(reason, []).append(f"`{name}`")
        lines += ["| cannot be learned, since | models |", "|---|---|"]
        lines += [f"| {reason} | {', '.join(names)} |" for reason, names in sorted(reasons.items())] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    before, after = TABLE.read_text().split(BEGIN)[0], TABLE.read_text().split(END)[1]
    TABLE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")
    sys.stdout.write(f"{TABLE}\n")
