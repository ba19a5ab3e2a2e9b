"""Known topics: compare the Kafka topics of a job with those that its checkpoint has read."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.bindings.types import Binding, KafkaBinding
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.runtime.cuts import newest_batch
from penstock.savepoints.snapshot_capture import positions_of
from penstock.sources.offset_fields import offsets_by_topic
from penstock.sources.topic_identity import TopicIdentity

__all__ = ["known_topics"]


def known_topics(
    bindings: Iterable[Binding], checkpoint: Checkpoint, lineage: Lineage
) -> tuple[TopicIdentity, list[str]]:
    """Return the topics of the sources, each the one that the checkpoint has read, and notes for the user about them.

    Raises CheckpointError for a topic that was recreated or has lost records, PlaceMissingError for one that is gone,
    and ExternalSystemError when its brokers do not answer.
    """
    topics = TopicIdentity(checkpoint.folder / "sources")
    notes: list[str] = []
    of_kafka = [binding for binding in bindings if isinstance(binding, KafkaBinding)]
    if not of_kafka:
        return topics, notes
    # Up to the end of a planned micro-batch, since that is done before any other.
    planned = newest_batch(checkpoint.spark_folder / "offsets")
    positions = positions_of(checkpoint, lineage, lineage.first_batch + planned)
    for binding in of_kafka:
        # The position may name other topics than the binding.
        position = positions.get(binding.stream)
        # A stream that was bound to something else has a position without topics.
        read_to = None if position is None or "position" in position else offsets_by_topic(position)
        notes += topics.begin(binding, binding.client, read_to)
    return topics, notes
