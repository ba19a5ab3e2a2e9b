"""Who may cause which access by REST: clients name ids, and no place of their choice is opened."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any

import msgspec
import pytest
from audited_opens import opened
from rest_support import RestPlace

from penstock.commands.command_catalog import CONTROL_FILE, CommandCatalog, StepEntry
from penstock.server.api.access import Role

CANARY = "canary-sesame"


@pytest.fixture
def canaries(tmp_path: Path) -> list[str]:
    """What a client might want to have opened: places outside of the home and the definitions."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.yaml").write_text(f"job: {CANARY}")
    path = str(outside / "secret.yaml")
    return [
        path,
        f"file://{path}",
        "../outside/secret.yaml",
        "../../outside",
        "..",
        "/etc/passwd",
        "~root",
        "%2e%2e",
    ]


def roles_above(role: Role) -> list[Role]:
    order = [Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    return order[order.index(role) :]


def test_a_viewer_opens_nothing(place: RestPlace, canaries: list[str]) -> None:
    """In each part of each route that a viewer may ask, and as each of its parameters."""
    job_id = place.submit()
    asked = 0
    with opened() as heard:
        for route, operations in place.app.openapi()["paths"].items():
            if "get" not in operations or route.endswith("/stream"):
                continue
            for hostile in canaries:
                quoted = urllib.parse.quote(hostile, safe="")
                path = route.replace("{job_id}", job_id)
                names = [
                    part["name"] for part in operations["get"].get("parameters", []) if part["in"] == "query"
                ]
                for one in {path, route}:
                    hostile_path = "/".join(
                        quoted if part.startswith("{") else part for part in one.split("/")
                    )
                    answer = place.ask("GET", hostile_path, Role.VIEWER, params=dict.fromkeys(names, hostile))
                    assert answer.status_code < 500, hostile_path
                    assert CANARY not in answer.text
                    asked += 1
    assert asked > 100
    inside = (str(place.home.root), str(place.definitions))
    assert [path for path in heard if "outside" in path or path in ("/etc/passwd", "/")] == []
    assert [path for path in heard if str(place.root) in path and not path.startswith(inside)] == []


@pytest.mark.parametrize("role", roles_above(Role.OPERATOR))
def test_submissions_name_ids(place: RestPlace, canaries: list[str], role: Role) -> None:
    """A definition, a savepoint and a job to continue are looked up by their ids; places, code, bindings, settings of
    Spark, and what commands may open are not to be said."""
    with opened() as heard:
        for hostile in canaries:
            bodies: list[dict[str, Any]] = [
                {"definition": hostile},
                {"definition": "small", "from_savepoint": hostile},
                {"definition": "small", "continues": hostile},
                {"definition": "small", "from_dump": hostile},
                {"definition": "small", "job": hostile},
                {"definition": "small", "bindings": {"readings": f"jsonl:{hostile}"}},
                {"definition": "small", "checkpoint": hostile},
                {"definition": "small", "spark": {"spark.jars": hostile}},
                {"definition": "small", "allow_read": [hostile]},
                {"definition": "small", "allow_write": [hostile]},
            ]
            for body in bodies:
                answer = place.ask("POST", "/v1/jobs", role, json=body)
                assert answer.status_code in (404, 422), body
                assert CANARY not in answer.text
    assert [path for path in heard if "outside" in path] == []


@pytest.mark.parametrize("role", roles_above(Role.OPERATOR))
def test_dumps_and_savepoints_go_where_the_server_puts_them(
    place: RestPlace, canaries: list[str], role: Role
) -> None:
    """A destination is not to be said: not with the operation, not by a command."""
    job_id = place.submit()
    place.begin(job_id)
    for hostile in canaries:
        for path in ("savepoints", "state/dumps", "dumps"):
            for body in ({"to": hostile}, {"uri": hostile}, {"format": hostile}):
                answer = place.ask("POST", f"/v1/jobs/{job_id}/{path}", role, json=body)
                assert answer.status_code in (404, 405, 409, 422), (path, body, answer.text)
        command = {"kind": "dump-state", "payload": {"to": hostile}}
        assert place.ask("POST", f"/v1/jobs/{job_id}/commands", role, json=command).status_code == 422
    assert place.store.unfinished_operations(["savepoint", "dump"]) == []


def test_a_command_of_an_operator_opens_nothing_in_the_server(place: RestPlace, canaries: list[str]) -> None:
    """It is written to where the job reads commands; what the job then opens, its own run has to allow."""
    job_id = place.submit()
    commands = place.root / "commands"
    commands.mkdir()
    step = StepEntry("int64", {"reload-config": ("step",)}, (), ("limit",))
    checkpoint = place.service.checkpoint(job_id)
    checkpoint.mkdir(parents=True)
    entry = CommandCatalog("rooms", f"jsonl:{commands}", {"thermostat": step})
    (checkpoint / CONTROL_FILE).write_bytes(msgspec.json.encode(entry))
    with opened() as heard:
        for hostile in canaries:
            command = {"kind": "reload-config", "target": "thermostat", "payload": {"from": hostile}}
            answer = place.ask("POST", f"/v1/jobs/{job_id}/commands", Role.OPERATOR, json=command)
            assert answer.status_code == 202, answer.text
    assert [path for path in heard if "outside" in path or path == "/etc/passwd"] == []
    assert len(list(commands.iterdir())) == len(canaries)
