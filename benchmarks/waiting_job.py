"""The job of the benchmark of autoscaling: asks a slow service about each record, which takes time but no core.

The service is simulated by waiting: it processes one order after the other, and a caller waits whenever it is some way
ahead of the service. So more tasks help as if each had its own core, even if the job has more tasks than the machine
has cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import penstock as ps

__all__ = ["ANSWER_S", "Order", "Priced", "job"]

ANSWER_S: Final = 0.004
"""How long the service takes to answer, in seconds: one task does at most 250 records per second."""

_AHEAD_S: Final = 0.1


@dataclass
class Order:
    """An order of a customer."""

    customer: int
    number: int


@dataclass
class Priced:
    """An order with its price, and the customer's number of orders so far."""

    customer: int
    number: int
    orders: int


class _Service:
    """A service that takes orders one after the other, for one worker."""

    def __init__(self) -> None:
        self._busy_until_s = 0.0

    def price(self) -> None:
        """Wait for the answer, for many orders at a time, since a busy machine wakes sleepers late."""
        now_s = time.monotonic()
        self._busy_until_s = max(self._busy_until_s, now_s) + ANSWER_S
        if self._busy_until_s - now_s >= _AHEAD_S:
            time.sleep(self._busy_until_s - now_s)


_service: Final = _Service()


class Price(ps.ProcessFunction):
    """Asks for the price of each order, one after the other."""

    orders = ps.ValueState(int)

    def process_record(self, order: Order, ctx: ps.Context) -> Iterator[Priced]:  # noqa: ARG002  # as declared
        """Ask for the price, and count the order."""
        _service.price()
        count = (self.orders.get() or 0) + 1
        self.orders.set(count)
        yield Priced(order.customer, order.number, count)


job = ps.Job("pricing")
orders = job.data_stream("orders", schema=Order)
orders.key_by("customer").process("price", Price()).sink_to("priced")
