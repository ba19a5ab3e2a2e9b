"""Known topics: the Kafka topics of a job against what its checkpoint has read of them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.bindings.types import Binding, KafkaBinding
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.errors import BindingError
from penstock.runtime.cuts import batch_numbers
from penstock.savepoints.snapshot_capture import positions_of
from penstock.sources.kafka_source import client_settings
from penstock.sources.topic_identity import TopicIdentity

__all__ = ["known_topics"]


def known_topics(
    bindings: Iterable[Binding], checkpoint: Checkpoint, lineage: Lineage
) -> tuple[TopicIdentity, list[str]]:
    """The topics of sources, each the one that the checkpoint has read, and what the user should know of them.

    Raises CheckpointError for a topic that was made anew or has lost records, ExternalSystemError when its brokers do
    not answer.
    """
    topics = TopicIdentity(checkpoint.folder / "sources")
    notes: list[str] = []
    of_kafka = [binding for binding in bindings if isinstance(binding, KafkaBinding)]
    if not of_kafka:
        return topics, notes
    # As far as a micro-batch goes that was planned, since it is done before any other.
    planned = max(batch_numbers(checkpoint.spark_folder / "offsets"), default=-1)
    positions = positions_of(checkpoint, lineage, lineage.first_batch + planned)
    for binding in of_kafka:
        try:
            settings = client_settings(binding)
        except BindingError:
            notes.append(
                f"The connection of the stream {binding.stream!r} is secured for Kafka's Java client alone, so whether "
                f"the topic {binding.topic!r} was deleted and made anew is not looked at."
            )
            continue
        found = positions.get(binding.stream, {})
        # By topic, of which there is one; the binding may name another than the one that was read.
        read_to = next(iter(found.values()), None)
        note = topics.begin(binding, settings, read_to)
        notes += [note] if note is not None else []
    return topics, notes
