"""The autoscaler over a real store: its requests, its respect for users' wishes, and its durable memory."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from simulated_job import BEGUN, Nature, SimulatedJob
from typer.testing import CliRunner

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.cli import app
from penstock.errors import LeadershipLostError
from penstock.metrics.batch_metrics import BatchMetricsWriter
from penstock.server.lifecycle.decisions import Decision
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager.autoscaler import Autoscaler
from penstock.server.manager.scaling_state import AUTOSCALER
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.service.job_resources import Submission
from penstock.server.service.service import JobService
from penstock.server.store.engine import connect, sqlite_url
from penstock.server.store.row_types import OperationRow
from penstock.server.store.store import Store
from penstock.server.store.transactions import EngineTransactions

KEY_GROUPS = 128
LEASE_MS = 1_000_000_000


class World:
    """A store, a definition with a policy, and a simulated job; time is the job's."""

    def __init__(self, root: Path, job: SimulatedJob, scaling: str = "{}", mode: Any = None) -> None:
        self.job = job
        definitions = root / "definitions"
        definitions.mkdir()
        (definitions / "shop.py").write_text("")
        (definitions / "shop.yaml").write_text(f"job: shop.py\nscaling: {scaling}\n")
        self.home = ServerDirectory(root / "home")
        self.store = Store(EngineTransactions(connect(sqlite_url(self.home.store))), self.now_ms)
        self.service = JobService(self.store, Catalog([definitions]), self.home)
        self.start_manager("first")
        submission = Submission(definition="shop", scaling=mode)
        result = self.service.submit(submission, "ann").result
        assert result is not None
        self.id: str = result["job"]
        self.become(JobStatus.STARTING, JobStatus.RUNNING)
        checkpoint = self.service.checkpoint(self.id)
        checkpoint.mkdir(parents=True)
        Checkpoint(checkpoint).begin(Lineage("a", "shop", KEY_GROUPS, job.tasks, ("visits",)))
        self.writer = BatchMetricsWriter(checkpoint)
        self.written = 0

    def start_manager(self, name: str) -> None:
        """Let another manager lead, which knows only what is in the store."""
        if name != "first":
            self.store.resign(self.manager)
        leader = self.store.lead(name, LEASE_MS)
        assert leader is not None
        self.leader, self.manager = leader, name
        self.autoscaler = Autoscaler(self.store, self.home, self.now_ms)

    def now_ms(self) -> int:
        return int(BEGUN.timestamp() * 1000 + self.job.now * 1000)

    def become(self, *statuses: JobStatus) -> None:
        for status in statuses:
            row = self.store.job(self.id)
            self.store.record(self.leader, row, Decision(status, reason="so it is"), host="here")

    def look(self) -> bool:
        for metrics in self.job.metrics[self.written :]:
            self.writer.append(metrics)
        self.written = len(self.job.metrics)
        return self.autoscaler.look(self.leader)

    def run(self, seconds: float, look_s: float = 20.0) -> None:
        """Run the job, with passes of the manager, and rescales on request."""
        end = self.job.now + seconds
        looked = self.job.now
        while self.job.now < end:
            self.job.batch()
            if self.job.now >= looked + look_s:
                looked = self.job.now
                self.look()
                self.carry_out()

    def carry_out(self) -> None:
        """Act as the driver: rescale the job, which pauses meanwhile."""
        for operation in self.store.unfinished_of(self.id):
            before, after = self.job.tasks, int(operation.arguments["parallelism"])
            self.job.tasks = after
            self.job.now += self.job.nature.downtime_s
            details = {"before": before, "after": after, "downtime_s": self.job.nature.downtime_s}
            self.store.end_operation(self.leader, operation, result=details)

    def rescales(self) -> list[OperationRow]:
        return self.store.rescales(self.id)

    def told(self) -> list[tuple[str, Any]]:
        return [
            (event.what, event.detail.get("cause")) for event in self.store.events_by(self.id, AUTOSCALER)
        ]

    def close(self) -> None:
        self.writer.close()
        self.store.close()


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Any]:
    made: list[World] = []

    def make(job: SimulatedJob, scaling: str = "{}", mode: Any = None) -> World:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(World(root, job, scaling, mode))
        return made[-1]

    yield make
    for world in made:
        world.close()


def busy(rate: float = 1500.0, **nature: Any) -> SimulatedJob:
    """Return a job with one task, which is overloaded from 850 records/s on."""
    return SimulatedJob(Nature(**{"interval_s": 5, **nature}), lambda s: rate * (1 + 0.1 * math.sin(s / 20)))


def test_a_rescale_is_asked_for_by_the_autoscaler(worlds: Any) -> None:
    """The request has the decision, the reason and the rate; the job shows policy and decision, events the
    downtime.
    """
    world = worlds(busy(), "{max_tasks: 4}")
    world.run(60, look_s=40)
    (operation,) = world.rescales()
    assert operation.created_by == AUTOSCALER
    assert (operation.arguments["before"], operation.arguments["parallelism"]) == (1, 2)
    assert operation.arguments["cause"] == "more"
    assert "With 2 tasks the load would be" in operation.arguments["reason"]
    assert operation.arguments["rate"] == pytest.approx(1500, rel=0.1)
    assert operation.arguments["capacity"] == pytest.approx(970, rel=0.1)
    events = [(event.who, event.what) for event in world.store.events(world.id)]
    assert events[-2:] == [(AUTOSCALER, "asked for: rescale"), ("manager", "rescale is done")]
    assert world.store.events(world.id)[-1].detail == {
        "operation": operation.id,
        "before": 1,
        "after": 2,
        "downtime_s": 5.0,
    }
    world.run(60)
    info = world.service.get(world.id)
    assert info.scaling is not None
    assert info.scaling.policy == {"max_tasks": 4}
    assert info.scaling.decision is not None
    assert info.scaling.decision["cause"] == "cool-down"
    assert info.scaling.at_ms is not None
    (listed,) = world.service.list_jobs()
    assert listed.scaling is not None
    assert listed.scaling.decision is None


def test_advice_and_autoscaling_say_the_same(worlds: Any, tmp_path: Path) -> None:
    """`penstock advise` with the same policy gives the same decision and reason."""
    world = worlds(busy(), "{max_tasks: 4}")
    world.job.run(60)
    assert world.look()
    (operation,) = world.rescales()
    policy = tmp_path / "policy.yaml"
    policy.write_text("max_tasks: 4")
    checkpoint = str(world.service.checkpoint(world.id))
    result = CliRunner().invoke(app, ["advise", checkpoint, "--policy", str(policy), "-o", "json"])
    told = json.loads(result.stdout)["decision"]
    assert (told["cause"], told["reason"]) == (operation.arguments["cause"], operation.arguments["reason"])
    assert told["tasks"] == operation.arguments["parallelism"]


def test_a_job_without_a_policy_is_left_alone(worlds: Any) -> None:
    """A job submitted with scaling off is not changed either."""
    for scaling, mode in (("null", None), ("{}", "off")):
        world = worlds(busy(), scaling, mode)
        world.run(120)
        assert world.rescales() == []
        assert world.told() == []
        assert world.service.get(world.id).scaling is None


def test_a_dry_run_tells_each_decision_once(worlds: Any) -> None:
    """It is an event without an operation; the job keeps its tasks."""
    world = worlds(busy(950.0), "{}", "dry-run")
    world.run(3600)
    assert world.rescales() == []
    assert world.job.tasks == 1
    assert world.told() == [("would rescale", "more")]
    assert world.service.get(world.id).scaling.decision["dry_run"]


def test_a_refusal_is_told_once(worlds: Any) -> None:
    """It is reported again only for another reason."""
    world = worlds(busy(), "{max_tasks: 1}")
    world.run(1200)
    assert world.told() == [("no rescale", "at-most")]


def test_what_did_not_help_is_known_after_a_restart(worlds: Any) -> None:
    """The next manager does not give a hot key group more tasks either."""
    world = worlds(busy(1100.0, hot_share=0.9, seed=1), "{max_rescales_per_hour: 100}")
    world.job.tasks = 2
    world.run(400)
    assert [(o.arguments["before"], o.arguments["parallelism"]) for o in world.rescales()] == [(2, 4)]
    world.start_manager("second")
    world.run(1200)
    assert len(world.rescales()) == 1
    assert world.told()[-1] == ("no rescale", "in-vain")


@pytest.mark.parametrize("wish", ["pause", "stop", "cancel", "rescale", "savepoint"])
def test_a_job_that_a_user_has_a_wish_for_is_left_alone(worlds: Any, wish: str) -> None:
    """It is not changed while the request is pending."""
    world = worlds(busy())
    world.job.run(60)
    arguments = (3,) if wish == "rescale" else ()
    getattr(world.service, wish)(world.id, *arguments, "ann")
    assert not world.look()
    assert [o.created_by for o in world.rescales()] == (["ann"] if wish == "rescale" else [])


def test_the_cool_down_counts_from_a_users_rescale(worlds: Any) -> None:
    """A user's setting stays for a while, even if the load suggests another."""
    world = worlds(busy(3000.0, max_records=10_000))
    world.job.run(60)
    world.service.rescale(world.id, 2, "ann")
    world.carry_out()
    done = world.job.now
    world.run(400)
    users, own = world.rescales()[:2]
    assert (users.created_by, own.created_by) == ("ann", AUTOSCALER)
    assert own.created_ms - (BEGUN.timestamp() + done) * 1000 >= 180_000


def test_a_rescale_beside_the_manager_counts(worlds: Any) -> None:
    """`penstock rescale CHECKPOINT` is visible only in the metrics."""
    world = worlds(busy(3000.0))
    world.job.run(60)
    world.job.tasks = 2
    world.job.run(120)
    assert not world.look()
    assert world.service.get(world.id).scaling.decision["cause"] == "cool-down"


def test_a_failed_rescale_is_not_tried_again_at_once(worlds: Any) -> None:
    """It starts the cool-down."""
    world = worlds(busy())
    world.job.run(60)
    assert world.look()
    (operation,) = world.rescales()
    world.store.end_operation(world.leader, operation, error="the disk is full")
    world.job.run(120)
    assert not world.look()
    world.job.run(300)
    assert world.look()


def test_one_that_does_not_lead_changes_nothing(worlds: Any) -> None:
    """It finds out when it is about to act."""
    world = worlds(busy())
    world.job.run(60)
    world.store.resign("first")
    assert world.store.lead("second", LEASE_MS) == world.leader + 1
    with pytest.raises(LeadershipLostError):
        world.look()
    assert world.rescales() == []


def test_metrics_of_a_run_that_has_died_do_not_count(worlds: Any) -> None:
    """A restarted job is judged by its new run."""
    world = worlds(busy())
    world.job.run(60)
    world.job.now += 1
    world.become(JobStatus.RESTARTING, JobStatus.STARTING, JobStatus.RUNNING)
    assert not world.look()
    assert not world.home.scaling(world.id).exists()


def test_damaged_metrics_hold_up_nobody(worlds: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The job keeps its tasks, and the log has the error."""
    world = worlds(busy())
    world.job.run(60)
    world.look()
    path = next((world.service.checkpoint(world.id) / "metrics").iterdir())
    with path.open("ab") as file:
        file.write(b"{}\n")
    world.carry_out()
    assert not world.look()
    assert "cannot be read" in caplog.text


def test_a_policy_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    """The error concerns the definition, and names the field."""
    (tmp_path / "shop.py").write_text("")
    (tmp_path / "shop.yaml").write_text("job: shop.py\nscaling: {target: 0.5}\n")
    (problem,) = Catalog([tmp_path]).definitions()[1]
    assert "'target'" in problem.problem
    assert "cool_down" in problem.problem


def test_a_definition_without_a_policy_can_be_run_dry(tmp_path: Path) -> None:
    """The defaults apply."""
    (tmp_path / "shop.py").write_text("")
    (tmp_path / "shop.yaml").write_text("job: shop.py\n")
    catalog = Catalog([tmp_path])
    service = JobService(
        Store.open(sqlite_url(tmp_path / "s.db")), catalog, ServerDirectory(tmp_path / "home")
    )
    result = service.submit(Submission(definition="shop", scaling="dry-run"), "ann").result
    assert result is not None
    scaling = service.get(result["job"]).scaling
    assert scaling is not None
    assert scaling.policy == {"dry_run": True}


@examples(3)
@given(
    st.builds(
        Nature,
        task_rate=st.floats(300, 3000),
        fixed_s=st.floats(0.5, 1.0),
        noise=st.floats(0, 0.15),
        interval_s=st.just(5.0),
        downtime_s=st.floats(2, 15),
        seed=st.integers(0, 100),
    ),
    st.floats(0.25, 0.5),
    st.lists(st.floats(30, 900), min_size=3, max_size=6),
)
def test_restarts_of_the_manager_change_nothing(nature: Nature, share: float, lives: list[float]) -> None:
    """The load rises fourfold and falls again while managers change: at most four rescales, and lag recovers."""
    base = share * nature.task_rate

    def load(seconds: float) -> float:
        return base * (4 if 600 <= seconds < 2400 else 1)

    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root), SimulatedJob(nature, load))
        try:
            for number, life in zip(range(1000), itertools.cycle(lives), strict=False):
                if world.job.now > 4800:
                    break
                world.run(life)
                if 2000 < world.job.now < 2400:
                    assert world.job.waits_s() < 20
                world.start_manager(f"manager-{number}")
            changes = [(o.arguments["before"], o.arguments["parallelism"]) for o in world.rescales()]
            assert 2 <= len(changes) <= 4
            ups = [after > before for before, after in changes]
            # It goes up once and down once, without oscillation.
            assert ups == sorted(ups, reverse=True)
            assert world.job.waits_s() < 20
        finally:
            world.close()
