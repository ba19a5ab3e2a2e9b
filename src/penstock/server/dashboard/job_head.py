"""The head of a job: its name, status and health, and the buttons that control it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import duration
from penstock.server.dashboard.health import health_of
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.lifecycle.statuses import ENDED, Desired, JobStatus
from penstock.server.service.job_resources import Job, Operation

__all__ = ["show"]

_MAX_TASKS = 32768


def show(visit: JobVisit, job: Job) -> None:
    """Show the head of a job, and refresh it."""
    head = _Head(visit, job)
    head.update(job)
    visit.poll(lambda: visit.service.get(visit.job_id), head.update, key=("job", visit.job_id))


class _Head:
    def __init__(self, visit: JobVisit, job: Job) -> None:
        self._visit = visit
        self._name = job.name
        self._seen: Job = job
        with ui.element("div").classes("p-head"):
            with ui.element("div").classes("p-head-name"):
                components.heading(job.name)
                with ui.element("div").classes("p-head-line"):
                    self._pill = ui.element("span").classes("p-health")
                    with self._pill:
                        self._icon = ui.icon("pending").props("aria-hidden=true")
                        self._word = ui.label("")
                    self._status = ui.label("").classes("p-muted")
                self._reason = ui.label("").classes("p-reason")
            with ui.element("div").classes("p-actions").props('role=group aria-label="Actions on this job"'):
                self._buttons = {
                    "pause": self._button("Pause", "pause", self._pause),
                    "resume": self._button("Resume", "play_arrow", self._resume, primary=True),
                    "savepoint": self._button("Savepoint", "bookmark_add", self._take_savepoint),
                    "rescale": self._button("Rescale", "unfold_more", self._rescale),
                    "stop": self._button("Stop", "stop", self._stop),
                    "cancel": self._button("Cancel", "close", self._cancel, danger=True),
                }

    def _button(
        self,
        label: str,
        icon: str,
        act: Callable[[], Awaitable[object]],
        *,
        primary: bool = False,
        danger: bool = False,
    ) -> ui.button:
        return components.action_button(
            self._visit, label, icon, Role.OPERATOR, act, primary=primary, danger=danger
        )

    def update(self, job: Job) -> None:
        """Show the current status of a job."""
        self._seen = job
        now_ms = int(time.time() * 1000)
        health = health_of(job, now_ms)
        if self._word.text != health.word:
            self._word.set_text(health.word)
            self._icon.set_name(health.icon)
            self._pill.classes(replace=f"p-health p-{health.level}")
        wanted = "" if job.desired.status is job.status else f", to be {job.desired.lower()}"
        components.set_text(
            self._status, f"{job.status}{wanted} for {duration(now_ms - job.since_ms)} · {job.id}"
        )
        components.set_text(self._reason, health.why)
        over = job.status in ENDED
        paused = job.desired is Desired.PAUSED
        for name, shown in {
            "pause": not over and not paused,
            "resume": not over and paused,
            "savepoint": job.run > 0,
            "rescale": not over,
            "stop": not over,
            "cancel": not over,
        }.items():
            if self._buttons[name].visible != shown:
                self._buttons[name].set_visibility(shown)

    # The actions of the buttons, each with its equivalent command

    async def _pause(self) -> None:
        await self._ask_and_do(
            "Pause this job?",
            "It processes nothing until resumed, then continues where it stopped.",
            command=cli_equivalents.pause_job(self._visit.job_id),
            confirm="Pause",
            doing="Pausing",
            do=self._visit.service.pause,
        )

    async def _resume(self) -> None:
        await self._ask_and_do(
            "Resume this job?",
            "It continues from its checkpoint.",
            command=cli_equivalents.resume_job(self._visit.job_id),
            confirm="Resume",
            doing="Resuming",
            do=self._visit.service.resume,
        )

    async def _take_savepoint(self) -> None:
        await self._ask_and_do(
            "Take a savepoint of this job?",
            "The job keeps running. The savepoint is yours until you delete it.",
            command=cli_equivalents.take_savepoint(self._visit.job_id),
            confirm="Take savepoint",
            doing="Taking a savepoint of",
            do=self._visit.service.savepoint,
        )

    async def _cancel(self) -> None:
        await self._ask_and_do(
            "Cancel this job?",
            "It ends at once, without a savepoint. It cannot be resumed; another job can take over its checkpoint.",
            command=cli_equivalents.cancel_job(self._visit.job_id),
            confirm="Cancel the job",
            doing="Canceling",
            do=self._visit.service.cancel,
            danger=True,
        )

    async def _ask_and_do(
        self,
        title: str,
        about: str,
        *,
        command: str,
        confirm: str,
        doing: str,
        do: Callable[[str, str], Operation],
        danger: bool = False,
    ) -> None:
        """Ask for confirmation, then call `do` with the id of the job and the name of the user."""
        job = self._visit.job_id
        target = f"{self._name} ({job})"
        if await components.ask(title, about, command=command, confirm=confirm, target=target, danger=danger):
            await self._visit.carry_out(Role.OPERATOR, f"{doing} {self._name}", lambda who: do(job, who))

    async def _stop(self) -> None:
        job = self._visit.job_id
        running = self._seen.status is JobStatus.RUNNING
        with components.form_dialog("Stop this job?") as dialog:
            ui.label("It ends between two micro-batches.").classes("p-dialog-text")
            components.name_target(f"{self._name} ({job})")
            savepoint = ui.checkbox("Take a savepoint", value=running)
            drain = ui.checkbox("Drain: first process everything that has arrived, and close all windows")
            components.end_form(
                dialog,
                "Stop the job",
                (savepoint, drain),
                lambda: {"savepoint": savepoint.value, "drain": drain.value},
                lambda chosen: cli_equivalents.stop_job(job, **chosen),
            )
        chosen = await components.answer_of(dialog)
        if chosen is not None:
            await self._visit.carry_out(
                Role.OPERATOR,
                f"Stopping {self._name}",
                lambda who: self._visit.service.stop(job, who, **chosen),
            )

    async def _rescale(self) -> None:
        job = self._visit.job_id
        tasks_now = int(self._seen.settings.get("parallelism") or 1)
        with components.form_dialog("Rescale this job?") as dialog:
            ui.label("It pauses for some seconds, then continues with another number of tasks.").classes(
                "p-dialog-text"
            )
            components.name_target(f"{self._name} ({job})")
            tasks = ui.number(
                "Parallelism", value=tasks_now, min=1, max=_MAX_TASKS, step=1, precision=0
            ).props("outlined dense autofocus")
            components.end_form(
                dialog,
                "Rescale",
                [tasks],
                lambda: int(tasks.value or 1),
                lambda wanted: cli_equivalents.rescale_job(job, wanted),
            )
        chosen = await components.answer_of(dialog)
        if chosen is not None:
            await self._visit.carry_out(
                Role.OPERATOR,
                f"Rescaling {self._name} to {chosen}",
                lambda who: self._visit.service.rescale(job, chosen, who),
            )
