"""Rules and queries on metrics, which Prometheus' own tool checks and tests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import find_promtool, promtool

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> str:
    return find_promtool(tmp_path_factory.mktemp("promtool"))


def test_alert_rules_are_sound_and_do_what_they_say(tool: str) -> None:
    """Prometheus accepts each rule, and each fires and stays quiet as in its unit test."""
    rules, tests = (DEPLOY / "prometheus" / name for name in ("alerts.yml", "alerts_test.yml"))
    promtool(tool, "check", "rules", "--lint=all", "--lint-fatal", rules)
    promtool(tool, "test", "rules", tests)
    names = {
        rule["alert"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]
    }
    tried: dict[str, list[bool]] = {}
    for case in yaml.safe_load(tests.read_text())["tests"]:
        for expected in case["alert_rule_test"]:
            tried.setdefault(expected["alertname"], []).append(bool(expected.get("exp_alerts")))
    assert set(tried) == names
    assert [name for name, fires in tried.items() if set(fires) != {True, False}] == []


def test_queries_of_the_dashboard_can_be_asked(tool: str, tmp_path: Path) -> None:
    """Prometheus parses each of them, after Grafana's variables are substituted."""
    found = queries(json.loads((DEPLOY / "grafana" / "penstock.json").read_text()))
    rules = [
        {
            "record": f"query{number}",
            "expr": text.replace("$__rate_interval", "1m").replace("$job_name", ".*"),
        }
        for number, text in enumerate(found)
    ]
    assert not any("$" in rule["expr"] for rule in rules)
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert re.search(rf"\b{len(found)} rules found", promtool(tool, "check", "rules", path))


def queries(dashboard: Any) -> list[str]:
    """Return the queries in all panels of a dashboard."""
    if isinstance(dashboard, dict):
        own = [dashboard["expr"]] if isinstance(dashboard.get("expr"), str) else []
        return own + [found for value in dashboard.values() for found in queries(value)]
    if isinstance(dashboard, list):
        return [found for value in dashboard for found in queries(value)]
    return []
