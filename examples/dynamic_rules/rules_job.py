"""Check payments against rules that change while the job runs."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import penstock as ps


@dataclass
class Payment:
    """A card payment: `amount` in cents, `country` of the card, `at` the time of the payment."""

    account: str
    country: str
    merchant: str
    amount: int
    at: dt.datetime


@dataclass
class Rule:
    """A rule that raises an alert if the matching payments of an account exceed the threshold.

    The rule counts payments or sums their amounts: of the last `last` ones, or of those in the last `minutes`. A
    payment matches if it meets every condition; an empty list is not a condition. The author numbers the versions of
    each rule.
    """

    name: str
    version: int
    measure: Literal["count", "sum"]
    threshold: int
    action: str
    last: int = 1
    minutes: int | None = None
    amount_over: int = 0
    country_in: list[str] = field(default_factory=list)
    merchant_in: list[str] = field(default_factory=list)
    paused: bool = False
    deleted: bool = False

    def fits(self, payment: Payment) -> bool:
        return (
            payment.amount > self.amount_over
            and (not self.country_in or payment.country in self.country_in)
            and (not self.merchant_in or payment.merchant in self.merchant_in)
        )

    def window(self, seen: list[Payment]) -> tuple[list[Payment], list[Payment]]:
        """Return the payments to keep for an account, and those to measure, after the last of the given ones."""
        if self.minutes is None:
            kept = seen[-max(self.last, 1) :]
            return kept, kept
        now, span = seen[-1].at, dt.timedelta(minutes=self.minutes)
        # Twice the span, so that a payment late by at most the span is checked as if it were in time.
        oldest = max(one.at for one in seen) - 2 * span
        return [one for one in seen if one.at > oldest], [one for one in seen if now - span < one.at <= now]


@dataclass
class Alert:
    """An alert of a rule, with the rule's version and the reason."""

    account: str
    rule: str
    rule_version: int
    action: str
    at: dt.datetime
    why: str


class Judge(ps.ConnectedProcessFunction):
    """Checks every payment against the rules in force at the cut."""

    rules = ps.BroadcastState(str, Rule)
    seen = ps.ValueState(dict[str, list[Payment]])  # by rule

    def process_record(self, payment: Payment, ctx: ps.Context) -> Iterator[Alert]:
        for rule in self.rules.values():
            if rule.paused or not rule.fits(payment):
                continue
            seen = self.seen.get() or {}
            kept, measured = rule.window([*seen.get(rule.name, []), payment])
            self.seen.set({**seen, rule.name: kept})
            total = len(measured) if rule.measure == "count" else sum(one.amount for one in measured)
            if total > rule.threshold:
                why = f"{rule.measure} of {len(measured)} payments is {total}, over {rule.threshold}"
                yield Alert(payment.account, rule.name, rule.version, rule.action, payment.at, why)

    def process_control(self, rule: Rule, ctx: ps.Context) -> None:
        if rule.deleted:
            self.rules.remove(rule.name)
            self.forget(rule.name, ctx)
        else:
            self.rules.put(rule.name, rule)

    @ps.on_command("add-rule", scope="step")
    def add(self, rule: Rule, ctx: ps.CommandContext) -> None:
        if rule.name in self.rules:
            raise ValueError(f"there is a rule {rule.name!r} already; send update-rule")
        self.rules.put(rule.name, rule)

    @ps.on_command("update-rule", scope="step")
    def update(self, rule: Rule, ctx: ps.CommandContext) -> None:
        if rule.version <= (known := self.known(rule.name).version):
            raise ValueError(f"{rule.name!r} has version {known} already; give a later one")
        self.rules.put(rule.name, rule)

    @ps.on_command("delete-rule", scope="step")
    def delete(self, name: str, ctx: ps.CommandContext) -> None:
        self.process_control(replace(self.known(name), deleted=True), ctx)

    @ps.on_command("pause-rule", scope="step")
    def pause(self, name: str, ctx: ps.CommandContext) -> None:
        self.rules.put(name, replace(self.known(name), paused=True))

    @ps.on_command("resume-rule", scope="step")
    def resume(self, name: str, ctx: ps.CommandContext) -> None:
        self.rules.put(name, replace(self.known(name), paused=False))

    @ps.on_command("clear-rule", scope="step")
    def forget(self, name: str, ctx: ps.Context) -> None:
        for _ in ctx.keys():
            seen = self.seen.get() or {}
            if name in seen:
                self.seen.set({rule: kept for rule, kept in seen.items() if rule != name})

    @ps.on_command("list-rules", scope="step")
    def list_rules(self, payload: None, ctx: ps.CommandContext) -> None:
        ctx.reply([rule for rule in self.rules.values() if not rule.paused])

    def known(self, name: str) -> Rule:
        rule = self.rules.get(name)
        if rule is None:
            raise ValueError(f"there is no rule {name!r}; the rules are {', '.join(self.rules) or 'none'}")
        return rule


job = ps.Job("dynamic-rules")
payments = job.data_stream("payments", schema=Payment)
rules = job.control_stream("rules", schema=Rule)

judged = payments.key_by("account").connect(rules.broadcast()).process("judge", Judge())
judged.stamp_control_version().sink_to("alerts")
