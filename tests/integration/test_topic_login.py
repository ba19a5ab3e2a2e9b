"""A job logs in to a real broker with a password that is only in its environment."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from integration_support import RunJob
from kept_numbers import keep_job, write_numbers
from secured_broker import SecuredBroker

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.errors import BindingError, ExternalSystemError
from penstock.sources.stored_topics import TOPIC_FILES


def test_a_job_logs_in(
    run_job: RunJob, kafka: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source and sink log in; no file of the checkpoint has the password, and a wrong or missing one is
    reported.
    """
    numbers, kept = (f"login-{part}-{uuid.uuid4().hex[:8]}" for part in ("in", "out"))
    kafka.create_topic(numbers)
    kafka.create_topic(kept)
    write_numbers(kafka, numbers, range(5))
    secret = tmp_path / "password"
    login = f"security.protocol=SASL_PLAINTEXT&sasl.mechanisms=PLAIN&sasl.username=ann&sasl.password=file:{secret}"
    bindings = {
        "numbers": f"kafka://{kafka.secured}/{numbers}?start=earliest&{login}",
        "kept": f"kafka://{kafka.secured}/{kept}?delivery=exactly-once&{login}",
    }
    binding = parse_binding("numbers", bindings["numbers"], "data")
    assert isinstance(binding, KafkaBinding)
    with pytest.raises(BindingError, match=r"sasl\.password=file:.*/password, but that file cannot be read"):
        run_job(keep_job(), bindings)
    secret.write_text("wrong-secret\n")
    with pytest.raises(ExternalSystemError, match=r"SASL|Authentication") as caught:
        check_topic(binding, binding.client)
    assert "wrong-secret" not in str(caught.value)
    # The checkpoint has this file too, as code of the job.
    password = "-".join(["ann", "secret"])
    secret.write_text(f"{password}\n")
    checkpoint = tmp_path / "checkpoint"
    run_job(keep_job(), bindings, checkpoint=str(checkpoint))
    assert list((checkpoint / "sources").glob(TOPIC_FILES))
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert not [path for path in files if password.encode() in path.read_bytes()]
