"""What system tests share: a real RabbitMQ for those that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rabbitmq_node import RabbitNode, require_rabbitmq


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A broker for the whole session. Restart it behind what was declared, which a kill may lose otherwise."""
    require_rabbitmq()
    with RabbitNode(tmp_path_factory.mktemp("rabbitmq")) as started:
        yield started
