"""Transaction marks: the ends of transactions in topics, which take an offset each."""

from __future__ import annotations

from confluent_kafka import Producer

__all__ = ["await_marks"]


def await_marks(bootstrap: str, transactional_id: str) -> None:
    """Wait until the transactions with an id have their marks, which may reach a topic after the answer to their end.

    Another producer with the id begins only then.
    """
    Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id}).init_transactions(30)
