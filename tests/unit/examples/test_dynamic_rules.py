"""The dynamic-rules example: alerts and receipts are those of a model in plain Python that never forgets a payment."""

from __future__ import annotations

import datetime as dt
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from encoded_commands import command_to, commands
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay

from penstock.jobs.job_loader import load_job
from penstock.streams.job_description import JobDescription
from penstock.testing.batch_runner import NOW, BatchRunner

EXAMPLE = Path(__file__).parents[3] / "examples" / "dynamic_rules"
JOB: JobDescription = load_job(str(EXAMPLE / "rules_job.py")).job
rules_job: Any = sys.modules["rules_job"]

Record = dict[str, Any]
# A rule's window is part of its name, so that an update never needs payments that were not kept.
WINDOWS: dict[str, Record] = {"a": {"last": 2}, "b": {"minutes": 3}, "c": {"minutes": 10}, "d": {}}
MAX_LATE_MINUTES = 3


class Model:
    """The model, one record after another; it keeps every payment that a rule has ever measured."""

    def __init__(self) -> None:
        self.rules: dict[str, Record] = {}
        self.seen: dict[tuple[str, str], list[Record]] = defaultdict(list)
        self.controls = 0

    def command(self, kind: str, payload: Any) -> tuple[str, Any]:
        """Return the status of a command, and its reply."""
        name = payload["name"] if isinstance(payload, dict) else payload
        rule = self.rules.get(name)
        if kind in ("delete-rule", "pause-rule", "resume-rule", "update-rule") and rule is None:
            return "DEGRADED", None
        if kind == "add-rule" and rule is not None:
            return "DEGRADED", None
        if kind == "update-rule" and rule is not None and payload["version"] <= rule["version"]:
            return "DEGRADED", None
        self.controls += 1
        if kind in ("add-rule", "update-rule"):
            self.rules[name] = payload
        elif kind in ("pause-rule", "resume-rule"):
            self.rules[name] = {**self.rules[name], "paused": kind == "pause-rule"}
        elif kind in ("clear-rule", "delete-rule"):
            self.forget(name)
            if kind == "delete-rule":
                del self.rules[name]
        else:
            names = [known for known, one in self.rules.items() if not one.get("paused")]
            return "APPLIED", names
        return "APPLIED", None

    def take_rule(self, rule: Record) -> None:
        self.controls += 1
        if rule.get("deleted"):
            self.forget(rule["name"])
            self.rules.pop(rule["name"], None)
        else:
            self.rules[rule["name"]] = rule

    def forget(self, name: str) -> None:
        for account, rule in list(self.seen):
            if rule == name:
                del self.seen[account, rule]

    def judge(self, payment: Record) -> list[tuple[str, int, int, str]]:
        """Return rule, version, control version and reason of each alert."""
        alerts = []
        for name, rule in self.rules.items():
            fits = (
                not rule.get("paused")
                and payment["amount"] > rule.get("amount_over", 0)
                and payment["country"] in (rule.get("country_in") or [payment["country"]])
                and payment["merchant"] in (rule.get("merchant_in") or [payment["merchant"]])
            )
            if not fits:
                continue
            history = self.seen[payment["account"], name]
            history.append(payment)
            if "minutes" in rule:
                span = dt.timedelta(minutes=rule["minutes"])
                measured = [one for one in history if payment["at"] - span < one["at"] <= payment["at"]]
            else:
                measured = history[-rule.get("last", 1) :]
            total = len(measured)
            if rule["measure"] == "sum":
                total = sum(one["amount"] for one in measured)
            if total > rule["threshold"]:
                why = f"{rule['measure']} of {len(measured)} payments is {total}, over {rule['threshold']}"
                alerts.append((name, rule["version"], self.controls, why))
        return alerts


names = st.sampled_from(list(WINDOWS))
some_countries = st.lists(st.sampled_from(["DE", "US"]), max_size=1)
some_merchants = st.lists(st.sampled_from(["fuel", "books", "travel"]), max_size=2)


@st.composite
def any_rule(draw: st.DrawFn, *, deletable: bool = False) -> Record:
    name = draw(names)
    measure = draw(st.sampled_from(["count", "sum"]))
    found = {
        "name": name,
        "version": draw(st.integers(1, 4)),
        "measure": measure,
        "threshold": draw(st.integers(0, 3) if measure == "count" else st.integers(0, 30)),
        "action": "look",
        "amount_over": draw(st.sampled_from([0, 0, 3])),
        "country_in": draw(some_countries),
        "merchant_in": draw(some_merchants),
        **WINDOWS[name],
    }
    if deletable and draw(st.booleans()):
        found["deleted"] = True
    return found


any_command = st.one_of(
    st.tuples(st.sampled_from(["add-rule", "update-rule"]), any_rule()),
    st.tuples(st.sampled_from(["delete-rule", "pause-rule", "resume-rule", "clear-rule"]), names),
    st.just(("list-rules", None)),
)
any_payment = st.fixed_dictionaries(
    {
        "account": st.sampled_from(["A1", "A2", "A3", "A4"]),
        "country": st.sampled_from(["DE", "US"]),
        "merchant": st.sampled_from(["fuel", "books", "travel"]),
        "amount": st.integers(1, 12),
        "minute": st.integers(0, 2),
        "late": st.integers(0, MAX_LATE_MINUTES),
    }
)
any_batch = st.tuples(
    st.lists(any_command, max_size=3),
    st.lists(any_rule(deletable=True), max_size=2),
    st.lists(any_payment, max_size=12),
)


class Driver:
    """The job beside its model; each micro-batch runs twice, in two orders, and must give the same bytes."""

    def __init__(self, partitions: int) -> None:
        self.job = BatchRunner(JOB, parallelism=partitions)
        self.model = Model()
        self.minute = 0
        self.sent = 0

    def run(self, given: list[tuple[str, Any]], rules: list[Record], payments: list[Record]) -> list[str]:
        """Return the rules that gave alerts, in order."""
        sent = [self.command(kind, payload) for kind, payload in given]
        timed = [self.timed(payment) for payment in payments]
        # An account's payments come from one partition, since partitions have no order among them.
        halves: list[list[Record]] = [
            [p for p in timed if (p["account"] in ("A1", "A3")) == half] for half in (True, False)
        ]
        inputs = {
            **commands(*map(msgspec.json.encode, sent)),
            "rules": [("r", [msgspec.convert(rule, rules_job.Rule) for rule in rules])],
            "payments": [(f"p{n}", [rules_job.Payment(**p) for p in half]) for n, half in enumerate(halves)],
        }
        inputs = {name: [run for run in runs if run[1]] for name, runs in inputs.items()}  # type: ignore[misc]
        result = run_and_replay(self.job, inputs, seed=1)
        expected = {one["id"]: self.model.command(one["kind"], one["payload"]) for one in sent}
        for rule in rules:
            self.model.take_rule(rule)
        final = {one.id: one for one in result.receipts}
        assert {i: one.status for i, one in final.items()} == {
            i: status for i, (status, _) in expected.items()
        }
        for i, (_, listed) in expected.items():
            if listed is not None:
                assert [rule["name"] for rule in msgspec.json.decode(final[i].details)] == listed
        wanted, found = defaultdict(list), defaultdict(list)
        for payment in [*halves[0], *halves[1]]:
            wanted[payment["account"]] += self.model.judge(payment)
        for alert in result.output("alerts"):
            found[alert.account].append((alert.rule, alert.rule_version, alert.control_version, alert.why))
        assert found == {account: alerts for account, alerts in wanted.items() if alerts}
        degraded = sum(status == "DEGRADED" for status, _ in expected.values())
        assert len(result.dead_letters) == degraded
        return [alert.rule for alert in result.output("alerts")]

    def command(self, kind: str, payload: Any) -> Record:
        self.sent += 1
        return {"id": f"{self.sent}", "kind": kind, "target": {"step": "judge"}, "payload": payload}

    def timed(self, payment: Record) -> Record:
        """Return the payment with its own time: older than the newest one by at most the lateness."""
        self.minute += payment["minute"]
        at = NOW + dt.timedelta(minutes=self.minute - payment["late"])
        return {**{name: payment[name] for name in ("account", "country", "merchant", "amount")}, "at": at}


@examples(20)
@given(run=st.lists(any_batch, max_size=5), partitions=st.integers(1, 4))
def test_alerts_and_receipts_are_those_of_the_model(run: list[Any], partitions: int) -> None:
    """This holds for any changes to the rules among the payments, any number of tasks and any order."""
    driver = Driver(partitions)
    for sent, rules, payments in run:
        driver.run(sent, rules, payments)


def test_a_rule_that_does_not_fit_is_rejected() -> None:
    """The receipt says what is wrong with it; the rules do not change."""
    job = BatchRunner(JOB, parallelism=2)
    payload = {"name": "a", "version": 1, "measure": "average", "threshold": 1, "action": "look"}
    result = job.run(commands(command_to("judge", "add-rule", payload)))
    assert result.receipts[-1].status == "REJECTED"
    assert "'average'" in result.receipts[-1].reason


@pytest.mark.parametrize("late_minutes", [0, 10])
def test_a_late_payment_is_judged_by_its_own_time(late_minutes: int) -> None:
    """Earlier payments count, later ones do not, up to one window of lateness."""
    rule = rules_job.Rule("r", 1, "count", 1, "look", minutes=10)
    at = [NOW, NOW + dt.timedelta(minutes=15), NOW + dt.timedelta(minutes=15 - late_minutes)]
    payments = [rules_job.Payment("A1", "DE", "fuel", 1, time) for time in at]
    result = BatchRunner(JOB).run({"rules": [("r", [rule])], "payments": [("p", payments)]})
    (alert,) = result.output("alerts")
    assert alert.at == at[2]
    assert alert.why == "count of 2 payments is 2, over 1"


def test_one_rule_is_paused_resumed_cleared_and_deleted() -> None:
    """Other rules continue; a paused rule does not see payments meanwhile, and a cleared one starts anew."""
    driver = Driver(partitions=3)
    payment = {"account": "A1", "country": "DE", "merchant": "fuel", "amount": 5, "minute": 0, "late": 0}
    rule = {"version": 1, "measure": "sum", "threshold": 9, "action": "look", **WINDOWS["a"]}
    driver.run([], [{"name": "a", **rule}, {"name": "d", **rule, "threshold": 1}], [payment])
    expected = {
        "": ["a", "d"],
        "pause-rule": ["d"],
        "resume-rule": ["a", "d"],
        "clear-rule": ["d"],
        "delete-rule": ["d"],
        "add-rule": ["d"],
    }
    for kind, alerts in expected.items():
        payload = {"name": "a", **rule} if kind == "add-rule" else "a"
        assert driver.run([(kind, payload)] if kind else [], [], [payment]) == alerts, kind
    assert driver.run([], [], [payment]) == ["d", "a"]


def test_a_listed_rule_is_whole_however_it_came() -> None:
    """It includes the fields that its command left at their defaults."""
    job = BatchRunner(JOB)
    rule = {"name": "a", "version": 1, "measure": "count", "threshold": 1, "action": "look"}
    result = job.run(commands(command_to("judge", "add-rule", rule), command_to("judge", "list-rules")))
    (listed,) = msgspec.json.decode(result.receipts[-1].details)
    assert (listed.get("last"), listed.get("paused")) == (1, False)
