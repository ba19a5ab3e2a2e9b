"""A server with the job of `turnstile_job.py`, and users who view its pages in a real Chromium."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from debian import find_or_install
from job_process import await_true
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from served import Served

from penstock.machine.local_server import free_port

__all__ = [
    "OPERATOR",
    "PATIENCE_MS",
    "PICTURES",
    "VIEWER",
    "Turnstiles",
    "Visitor",
    "browser",
    "contexts",
    "job_page",
    "place",
    "visit",
]

# A JVM starts beside the browser, on a machine that may be busy.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
DEFINITION = """
job: turnstile_job.py
bindings:
  visits: jsonl:{root}/visits
  crowds: jsonl:{root}/crowds
  people: jsonl:{root}/people
parallelism: 2
batch_interval: 500ms
master: local[2]
allow_read: ["{root}/models"]
"""
# A busy job would take CPU time from the browser.
FEED_S = 5.0
VIEWER = secrets.token_urlsafe(32)
OPERATOR = secrets.token_urlsafe(32)
PICTURES = os.environ.get("PENSTOCK_DOCS_IMAGES", "")
"""Where screenshots for the docs are written; none are when it is not set."""

CHROMIUM = "/usr/bin/chromium-headless-shell"
# Only the pages' own actions.
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
]


class Turnstiles:
    """A server with a running job that gets visits, except while it is at rest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("visits", "crowds", "people", "models"):
            (root / folder).mkdir()
        tokens = f"vera viewer {VIEWER}\nolga operator {OPERATOR}"
        self.served = Served(
            root,
            "turnstile_job.py",
            DEFINITION.format(root=root),
            {"PENSTOCK_SERVER_TOKENS": tokens},
            free_port(),
        )
        asked = self.served.client.post("/v1/jobs", json={"definition": "turnstile"}).raise_for_status()
        self.job_id: str = asked.json()["job"]
        self._stop = threading.Event()
        self._rests = threading.Event()
        self._feeding = threading.Thread(target=self._feed)
        self._feeding.start()
        await_true(self._works, self.served.log)

    def _works(self) -> bool:
        progress = self.served.job(self.job_id)["progress"]
        return progress is not None and progress["rows_per_s"] > 0

    def _feed(self) -> None:
        number = 0
        while not self._stop.wait(FEED_S):
            if self._rests.is_set():
                continue
            now_ms = int(time.time() * 1000)
            lines = [
                json.dumps({"gate": f"gate-{n % 8}", "at": now_ms - n, "people": 1 + n % 3})
                for n in range(400)
            ]
            path = self.root / "visits" / f"{number:06}.jsonl"
            path.with_name(f".{path.name}").write_text("\n".join(lines) + "\n")
            path.with_name(f".{path.name}").rename(path)
            number += 1

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Stop visits while the block runs. Dumps have the lowest priority, and would wait for the job."""
        self._rests.set()
        try:
            yield
        finally:
            self._rests.clear()

    @property
    def url(self) -> str:
        """The server's URL."""
        url: str = self.served.started["url"]
        return url

    def asked(self) -> list[str]:
        """Return the requests to the job so far, without commands."""
        events = self.served.client.get("/v1/events", params={"job": self.job_id, "limit": 1000}).json()[
            "items"
        ]
        asked = [event["what"] for event in events if event["what"].startswith("asked for")]
        return [what for what in asked if what != "asked for: command"]

    def close(self) -> None:
        """Stop everything."""
        self._stop.set()
        self._feeding.join()
        self.served.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Turnstiles]:
    """Start the server."""
    made = Turnstiles(tmp_path_factory.mktemp("dashboard"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium."""
    find_or_install(lambda: shutil.which(CHROMIUM), "chromium-headless-shell", "Chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


class Visitor:
    """A user with a browser, whose pages may log no errors, and may contact only the server."""

    def __init__(self, context: BrowserContext, url: str, token: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []
        self._pages: list[Page] = []
        # The page after the login is rendered only on navigation.
        context.request.get(f"{url}/login?token={token}", max_redirects=0)
        self.page = self.new_page()

    def new_page(self) -> Page:
        """Another tab."""
        page = self.context.new_page()
        self._pages.append(page)
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._check(request.url))
        page.on("websocket", lambda socket: self._check(socket.url.replace("ws://", "http://", 1)))
        return page

    def close(self) -> None:
        """Close the tabs."""
        for page in self._pages:
            page.close()

    def _check(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:")):
            self.complaints.append(f"It asks {url}.")


@pytest.fixture(scope="module")
def contexts() -> dict[str, BrowserContext]:
    """Return the browser context of each token, which keeps its cache."""
    return {}


@pytest.fixture
def visit(
    place: Turnstiles, browser: Browser, contexts: dict[str, BrowserContext]
) -> Iterator[Callable[..., Visitor]]:
    """Yield a function that creates visitors; at the end none may have had errors."""
    visitors: list[Visitor] = []

    def make(token: str = OPERATOR) -> Visitor:
        if token not in contexts:
            contexts[token] = browser.new_context(viewport={"width": 1360, "height": 860})
        visitors.append(Visitor(contexts[token], place.url, token))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.close()
    assert [complaint for visitor in visitors for complaint in visitor.complaints] == []


def job_page(place: Turnstiles, visitor: Visitor, tab: str = "") -> Page:
    visitor.page.goto(f"{place.url}/dashboard/jobs/{place.job_id}{tab}")
    expect(visitor.page.locator("h1")).to_have_text("turnstile")
    return visitor.page
