"""The dashboard in a real Chromium, on a real server with a real job, as people use it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from debian import install_or_skip
from free_ports import free_port
from job_process import await_true
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from served import Served

# A JVM starts beside the browser, on a machine that may be busy.
PATIENCE_MS = 60_000
DEFINITION = """
job: turnstile_job.py
bindings:
  visits: jsonl:{root}/visits
  crowds: jsonl:{root}/crowds
  people: jsonl:{root}/people
parallelism: 2
batch_interval: 300ms
master: local[2]
"""
VIEWER = secrets.token_urlsafe(32)
OPERATOR = secrets.token_urlsafe(32)
PICTURES = os.environ.get("PENSTOCK_DOCS_IMAGES", "")
"""Where screenshots for the docs are written; none are when it is not set."""

CHROMIUM = "/usr/bin/chromium"
# Nothing but what the pages themselves do.
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
]


class Turnstiles:
    """A server with a running job, which visits come to all the time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("visits", "crowds", "people"):
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
        self._feeding = threading.Thread(target=self._feed)
        self._feeding.start()
        await_true(self._works, self.served.log)

    def _works(self) -> bool:
        progress = self.served.job(self.job_id)["progress"]
        return progress is not None and progress["rows_per_s"] > 0

    def _feed(self) -> None:
        number = 0
        while not self._stop.wait(0.5):
            now_ms = int(time.time() * 1000)
            lines = [
                json.dumps({"gate": f"gate-{n % 8}", "at": now_ms - n, "people": 1 + n % 3})
                for n in range(400)
            ]
            path = self.root / "visits" / f"{number:06}.jsonl"
            path.with_name(f".{path.name}").write_text("\n".join(lines) + "\n")
            path.with_name(f".{path.name}").rename(path)
            number += 1

    @property
    def url(self) -> str:
        """The server's URL."""
        url: str = self.served.started["url"]
        return url

    def asked(self) -> list[str]:
        """What was asked of the job so far, commands aside."""
        events = self.served.client.get("/v1/events", params={"job": self.job_id, "limit": 1000}).json()[
            "items"
        ]
        asked = [event["what"] for event in events if event["what"].startswith("asked for")]
        return [what for what in asked if what != "asked for: command"]

    def close(self) -> None:
        """End all."""
        self._stop.set()
        self._feeding.join()
        self.served.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Turnstiles]:
    """The server."""
    made = Turnstiles(tmp_path_factory.mktemp("dashboard"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium."""
    if shutil.which(CHROMIUM) is None:
        said = install_or_skip("chromium", "Chromium")
        assert shutil.which(CHROMIUM) is not None, said
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


class Visitor:
    """Somebody with a browser, whose pages may not complain, and may ask nobody but the server."""

    def __init__(self, context: BrowserContext, url: str, token: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []
        self.page = self.new_page()
        self.page.goto(f"{url}/login?token={token}")

    def new_page(self) -> Page:
        """Another tab."""
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._check(request.url))
        page.on("websocket", lambda socket: self._check(socket.url.replace("ws://", "http://", 1)))
        return page

    def _check(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:")):
            self.complaints.append(f"It asks {url}.")


@pytest.fixture
def visit(place: Turnstiles, browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors; at the end nothing may have been wrong for any of them."""
    visitors: list[Visitor] = []

    def make(token: str = OPERATOR, **settings: Any) -> Visitor:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **settings})
        visitors.append(Visitor(context, place.url, token))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.context.close()
    assert [complaint for visitor in visitors for complaint in visitor.complaints] == []


def job_page(place: Turnstiles, visitor: Visitor, tab: str = "") -> Page:
    visitor.page.goto(f"{place.url}/dashboard/jobs/{place.job_id}{tab}")
    expect(visitor.page.locator("h1")).to_have_text("turnstile")
    return visitor.page


def test_the_list_shows_the_job(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """With its health as a word, its throughput, and a filter; the title says where one is."""
    page = visit().page
    expect(page).to_have_url(f"{place.url}/dashboard/jobs")
    expect(page).to_have_title("Jobs - penstock")
    row = page.get_by_role("row").filter(has_text=place.job_id)
    expect(row).to_contain_text("Healthy", timeout=PATIENCE_MS)
    expect(row).to_contain_text(re.compile(r"[1-9][\d,.]*/s"), timeout=PATIENCE_MS)
    page.get_by_label("Filter the jobs").fill("something else")
    expect(row).to_have_count(0)
    page.get_by_label("Filter the jobs").fill("turn")
    row.get_by_role("link").click()
    expect(page).to_have_title("turnstile: Overview - penstock")


def test_charts_get_points(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Those of throughput, time, event time and state, without a reload; the time of a page that is read is UTC."""
    page = job_page(place, visit(), "/charts")
    for name in ("throughput", "batch", "watermark", "state", "busy"):
        chart = page.locator(f"[data-chart={name}]")
        expect(chart).not_to_have_attribute("data-points", re.compile("^[01]$"), timeout=PATIENCE_MS)
        expect(chart.locator("canvas")).to_be_visible()
    before = int(page.locator("[data-chart=throughput]").get_attribute("data-points") or 0)
    page.wait_for_function(
        "before => Number(document.querySelector('[data-chart=throughput]').dataset.points) > before",
        arg=before,
    )


def test_the_graph_shows_what_goes_where(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Streams, steps and sinks with their rates; a part that is chosen tells what it takes and holds."""
    page = job_page(place, visit(VIEWER), "/graph")
    graph = page.get_by_role("group", name="Graph of the job")
    parts = graph.get_by_role("button")
    expect(parts).to_have_count(5)
    expect(graph.locator("path")).to_have_count(4)
    watch = parts.filter(has_text="watch")
    expect(watch).to_contain_text(re.compile(r"[1-9][\d,.]*/s"), timeout=PATIENCE_MS)
    watch.click()
    row = page.get_by_role("row").filter(has_text="command limit")
    expect(row).to_contain_text("key")
    expect(page.get_by_role("row").filter(has_text="state people")).to_contain_text("int64")


def test_a_command_is_sent_and_applied(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """The form says the command line that does the same; receipts come by themselves, and the history has it."""
    page = job_page(place, visit(), "/control")
    expect(page.get_by_label("Kind")).to_be_enabled()
    page.get_by_label("Kind").fill("limit")
    page.get_by_label("Kind").press("Enter")
    page.get_by_label("Target").fill("watch/gate-3")
    page.get_by_label("Payload (JSON)").fill("{")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("The payload is no JSON")).to_be_visible()
    page.get_by_label("Payload (JSON)").fill("5")
    line = page.locator("code", has_text="control send")
    expect(line).to_have_text(
        f"penstock control send {place.job_id} --kind limit --target watch/gate-3 --json 5"
    )
    page.get_by_role("button", name="Send").click()
    receipts = page.get_by_role("list", name="Receipts")
    expect(receipts).to_contain_text("APPLIED", timeout=PATIENCE_MS)
    expect(receipts).to_contain_text("1 keys")
    row = page.get_by_role("row").filter(has_text="watch/gate-3")
    expect(row).to_contain_text("APPLIED")
    expect(row).to_contain_text("olga")
    await_true(lambda: any((place.root / "crowds").iterdir()), place.served.log)


def test_a_dialog_that_is_dismissed_does_nothing(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """It asks, naming the job and the command that does the same; Escape and the first button mean no."""
    page = job_page(place, visit())
    for dismiss in (
        lambda: page.keyboard.press("Escape"),
        lambda: page.get_by_role("button", name="Keep as it is").click(),
    ):
        page.get_by_role("button", name="Cancel", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"turnstile ({place.job_id})")
        expect(dialog).to_contain_text(f"penstock cancel {place.job_id}")
        dismiss()
        expect(dialog).to_have_count(0)
    assert place.asked() == ["asked for: submit"]
    assert place.served.job(place.job_id)["desired"] == "RUNNING"


def test_a_viewer_changes_nothing(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Buttons are disabled; events that are forged, for the viewer's own page or another's, do nothing."""
    operator = job_page(place, visit())
    page = job_page(place, visit(VIEWER))
    button = page.get_by_role("button", name="Cancel", exact=True)
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", "This needs the role operator")
    forge = """(client) => {
      const buttons = Object.entries(mounted_app.elements).filter(([_, e]) => e.tag === 'q-btn' && e.events.length);
      for (const [id, element] of buttons)
        for (const event of element.events.filter((e) => e.type === 'click'))
          window.socket.emit('event', {id: Number(id), client_id: client ?? window.clientId,
            listener_id: event.listener_id, args: []});
      return buttons.length;
    }"""
    assert page.evaluate(forge, None) >= 6
    assert page.evaluate(forge, operator.evaluate("window.clientId")) >= 6
    # The page goes on to be answered, so what was sent before has been dealt with.
    expect(page.locator(".p-head-line")).to_contain_text("RUNNING for")
    page.wait_for_timeout(1500)
    for one in (page, operator):
        expect(one.get_by_role("dialog")).to_have_count(0)
    assert place.asked() == ["asked for: submit"]


def test_a_page_ends_with_its_session(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Whoever signs out in one tab is signed out in all; the page that asks for a token takes one."""
    visitor = visit()
    other = visitor.page
    job_page(place, visitor)
    page = visitor.new_page()
    page.goto(f"{place.url}/dashboard/events")
    page.get_by_role("button", name="Sign out").click()
    for one in (page, other):
        expect(one).to_have_url(f"{place.url}/login", timeout=PATIENCE_MS)
    page.goto(f"{place.url}/dashboard/jobs/{place.job_id}/control")
    expect(page).to_have_url(f"{place.url}/login")
    page.get_by_label("Token").fill(OPERATOR)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{place.url}/dashboard/jobs")
    # Pages that have just lost their session may see that they are refused.
    visitor.complaints[:] = [text for text in visitor.complaints if "401" not in text and "403" not in text]


def test_pictures_for_the_docs(place: Turnstiles, browser: Browser) -> None:
    """Light and dark, of pages with something on them; only when they are asked for."""
    if not PICTURES:
        pytest.skip("PENSTOCK_DOCS_IMAGES says no folder")
    folder = Path(PICTURES).absolute()
    others(place)
    for name, scheme, path in (
        ("jobs", "light", "/dashboard/jobs"),
        ("graph", "light", f"/dashboard/jobs/{place.job_id}/graph"),
        ("charts", "dark", f"/dashboard/jobs/{place.job_id}/charts"),
        ("control", "dark", f"/dashboard/jobs/{place.job_id}/control"),
    ):
        context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        page = Visitor(context, place.url, OPERATOR).page
        page.goto(f"{place.url}{path}")
        expect(page.get_by_text("Healthy").first).to_be_visible(timeout=PATIENCE_MS)
        if name == "control":
            page.get_by_label("Kind").fill("limit")
            page.get_by_label("Kind").press("Enter")
            page.get_by_label("Target").fill("watch/gate-1,gate-2")
            page.get_by_label("Payload (JSON)").fill("250")
            page.get_by_label("Version").fill("4")
            page.get_by_role("button", name="Send").click()
            expect(page.get_by_role("list", name="Receipts")).to_contain_text("APPLIED", timeout=PATIENCE_MS)
            expect(page.locator(".q-notification")).to_have_count(0, timeout=PATIENCE_MS)
        page.wait_for_timeout(2500)
        path_of = folder / f"dashboard-{name}.png"
        page.screenshot(path=path_of)
        assert path_of.stat().st_size < 150_000
        context.close()


def others(place: Turnstiles) -> None:
    """Jobs that are not running, so that the list has more to show."""
    for name, desired in (("nightly-report", "CANCELED"), ("door-alerts", "PAUSED")):
        asked = place.served.client.post("/v1/jobs", json={"definition": "turnstile", "name": name})
        job_id = asked.raise_for_status().json()["job"]
        place.served.client.patch(f"/v1/jobs/{job_id}", json={"desired": desired}).raise_for_status()
        await_true(lambda: place.served.job(job_id)["status"] == desired, place.served.log)  # noqa: B023
    (place.served.definitions / "archive.yaml").write_text(
        "job: turnstile_job.py\nbindings:\n  visits: jsonl:/nowhere\n  crowds: jsonl:/nowhere\n"
        "  people: jsonl:/nowhere\nrestart: none\nmaster: local[1]\n"
    )
    asked = place.served.client.post("/v1/jobs", json={"definition": "archive"})
    job_id = asked.raise_for_status().json()["job"]
    await_true(lambda: place.served.job(job_id)["status"] == "FAILED", place.served.log)


def test_the_keyboard_is_enough(place: Turnstiles, visit: Callable[..., Visitor], browser: Browser) -> None:
    """From the token to a canceled job, in an order that people expect, with the focus in sight."""
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{place.url}/dashboard/jobs")
    page.keyboard.type(OPERATOR)
    page.keyboard.press("Enter")
    expect(page).to_have_title("Jobs - penstock")
    expect(page.get_by_role("link", name="turnstile")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    tab_to(page, "link", "turnstile")
    page.keyboard.press("Enter")
    expect(page).to_have_title("turnstile: Overview - penstock")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_visible()
    tab_to(page, "button", "Cancel")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(place.job_id)
    # What is safe has the focus, so that Enter alone does no harm.
    expect(dialog.get_by_role("button", name="Keep as it is")).to_be_focused()
    tab_to(page, "button", "Cancel the job")
    page.keyboard.press("Enter")
    expect(page.locator(".p-head-line")).to_contain_text("CANCELED", timeout=PATIENCE_MS)
    expect(page.get_by_text("Canceling turnstile: done.")).to_be_visible()
    assert place.asked() == ["asked for: submit", "asked for: cancel"]
    context.close()


def tab_to(page: Page, role: str, name: str) -> None:
    """Press Tab until something has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => [document.activeElement.tagName, (document.activeElement.getAttribute('aria-label')
               || document.activeElement.innerText.split('\\n').pop()).trim()]"""
        )
        if found == [{"link": "A", "button": "BUTTON"}[role], name]:
            return
    raise AssertionError(f"{name} never had the focus")


def test_a_server_that_starts_again_asks_for_a_token(
    place: Turnstiles, browser: Browser, visit: Callable[..., Visitor]
) -> None:
    """It knows no session of before: open pages lead to the login."""
    visitor = visit()
    job_page(place, visitor)
    place.served.process.send_signal(signal.SIGTERM)
    assert place.served.process.wait(30) == 0
    place.served.start()
    expect(visitor.page).to_have_url(f"{place.url}/login", timeout=PATIENCE_MS)
    assert list((place.root / "cwd").iterdir()) == []
    # While there is no server, nothing can be asked for.
    visitor.complaints.clear()
