"""The dashboard in a real Chromium, with a real server and job, used as people use it."""

from __future__ import annotations

import hashlib
import itertools
import re
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from job_process import await_true
from playwright.sync_api import Browser, Page, expect
from turnstile_pages import (
    OPERATOR,
    PATIENCE_MS,
    PICTURES,
    VIEWER,
    Turnstiles,
    Visitor,
    browser,
    contexts,
    job_page,
    place,
    visit,
)

__all__ = ["browser", "contexts", "place", "visit"]


def test_the_list_shows_the_job(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """It shows health as a word, throughput, and a filter; the title names the current page."""
    page = visit().page
    page.goto(f"{place.url}/login?token={OPERATOR}")
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
    """Charts of throughput, time, event time and state grow without a reload; a static page shows UTC times."""
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
    """It shows streams, steps and sinks with their rates; a selected part shows what it takes and holds."""
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
    """The form shows the equivalent command line; receipts appear by themselves, and the history lists the
    command.
    """
    page = job_page(place, visit(), "/control")
    expect(page.get_by_label("Kind")).to_be_enabled()
    page.get_by_label("Kind").fill("limit")
    page.get_by_label("Kind").press("Enter")
    expect(page.get_by_text("For watch/KEY, watch/KEY,KEY, watch/*. Payload: int.")).to_be_visible()
    page.get_by_role("button", name="Use the example").click()
    expect(page.get_by_label("Payload (JSON)")).to_have_value("1")
    settings = page.get_by_role("row").filter(has_text="people-per-gate")
    expect(settings.filter(has_text="size").first).to_contain_text("5s")
    page.get_by_label("Target").fill("watch/gate-3")
    page.get_by_label("Payload (JSON)").fill("{")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("The payload is not JSON")).to_be_visible()
    page.get_by_label("Payload (JSON)").fill("5")
    line = page.locator("code", has_text="control send")
    expect(line).to_have_text(
        f"penstock control send {place.job_id} --kind limit --target watch/gate-3 --json 5"
    )
    page.get_by_role("button", name="Send").click()
    receipts = page.get_by_role("list", name="Receipts")
    expect(receipts).to_contain_text("APPLIED", timeout=PATIENCE_MS)
    expect(receipts).to_contain_text("1 key")
    row = page.get_by_role("row").filter(has_text="watch/gate-3")
    expect(row).to_contain_text("APPLIED")
    expect(row).to_contain_text("olga")
    await_true(lambda: any((place.root / "crowds").iterdir()), place.served.log)


def bring_models(place: Turnstiles) -> None:
    """Load and validate two versions of the model, and promote the first one."""
    for version, factor in (("1", 2.0), ("2", 2.5)):
        content = pa.BufferOutputStream()
        table = pa.table({"factor": [factor]})
        with pa.ipc.new_file(content, table.schema) as writer:
            writer.write_table(table)
        path = place.root / "models" / f"{version}.arrow"
        path.write_bytes(content.getvalue().to_pybytes())
        load = {"uri": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "format": "arrow"}
        send(place, "load-model", {"model": "risk", "version": version, **load})
        await_true(lambda name=version: is_examined(place, name), place.served.log)
        send(place, "validate-model", {"model": "risk", "version": version})
    send(place, "promote-model", {"model": "risk", "version": "1"})


def is_examined(place: Turnstiles, version: str) -> bool:
    """Return whether the job has examined a version."""
    (model,) = place.served.client.get(f"/v1/jobs/{place.job_id}/models").json()
    return any(one["version"] == version and one["is_examined"] for one in model["versions"])


def send(place: Turnstiles, kind: str, payload: dict[str, Any]) -> None:
    """Send a command to the step `watch`."""
    command = {"kind": kind, "target": "watch", "payload": payload}
    place.served.client.post(f"/v1/jobs/{place.job_id}/commands", json=command).raise_for_status()


def test_a_version_is_brought_to_serve_on_the_page_of_models(
    place: Turnstiles, visit: Callable[..., Visitor]
) -> None:
    """A version is shadowed, with charts that compare it, then promoted, and rolled back with a reason."""
    bring_models(place)
    page = job_page(place, visit(), "/models")
    second = page.get_by_role("row").filter(has_text="watch / risk / 2")
    expect(page.get_by_role("row").filter(has_text="watch / risk / 1")).to_contain_text(
        "SERVING", timeout=PATIENCE_MS
    )
    expect(second).to_contain_text("VALIDATED", timeout=PATIENCE_MS)
    page.get_by_role("button", name="watch / risk / 2").click()
    expect(page.get_by_text("risk 2 of watch is VALIDATED: arrow from")).to_be_visible()
    for button, status in (("Shadow", "SHADOW"), ("Promote", "SERVING")):
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text(f"--kind {button.lower()}-model --target watch")
        page.get_by_role("button", name="Send the command").click()
        expect(second).to_contain_text(status, timeout=PATIENCE_MS)
        if status == "SHADOW":
            for name in ("drift", "agreement", "failures", "time"):
                chart = page.locator(f"[data-chart=model-{name}]")
                expect(chart).not_to_have_attribute("data-points", "0", timeout=PATIENCE_MS)
                expect(chart.locator("canvas")).to_be_visible()
            picture(page, "models", whole=True)
    page.get_by_label("Reason for a rollback").fill("too careful")
    page.get_by_role("button", name="Roll back", exact=True).click()
    page.get_by_role("button", name="Send the command").click()
    expect(second).to_contain_text("RETIRED", timeout=PATIENCE_MS)
    expect(second).to_contain_text("olga")


def test_a_narrow_window_shows_all(place: Turnstiles, browser: Browser) -> None:
    """At 480 pixels no part of the navigation bar overlaps anything, and no page is wider than the window."""
    context = browser.new_context(viewport={"width": 480, "height": 800})
    context.request.get(f"{place.url}/login?token={OPERATOR}", max_redirects=0)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    job = f"/jobs/{place.job_id}"
    for path in ("/jobs", "/events", "/savepoints", job, f"{job}/charts", f"{job}/control", f"{job}/state"):
        page.goto(f"{place.url}/dashboard{path}")
        expect(page.locator("#content .p-card").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 480, path
        parts = page.locator("header a, header button, header .p-person, #content").all()
        boxes = [box for part in parts if (box := part.bounding_box()) is not None]
        assert len(boxes) > 5
        for one, other in itertools.combinations(boxes, 2):
            beside = one["x"] + one["width"] <= other["x"] + 1 or other["x"] + other["width"] <= one["x"] + 1
            above = one["y"] + one["height"] <= other["y"] + 1 or other["y"] + other["height"] <= one["y"] + 1
            assert beside or above, (path, one, other)
    context.close()


def test_a_dialog_that_is_dismissed_does_nothing(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """The dialog names the job and the equivalent command; Escape and the first button cancel it."""
    asked = place.asked()
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
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("code", has_text="penstock stop")).to_have_text(
        f"penstock stop {place.job_id} --savepoint"
    )
    page.get_by_role("checkbox", name="Take a savepoint").click()
    page.get_by_role("checkbox", name="Drain").click()
    expect(page.locator("code", has_text="penstock stop")).to_have_text(
        f"penstock stop {place.job_id} --drain"
    )
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Rescale", exact=True).click()
    page.get_by_label("Parallelism").fill("3")
    expect(page.locator("code", has_text="rescale")).to_have_text(
        f"penstock rescale {place.job_id} --parallelism 3"
    )
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert place.asked() == asked
    assert place.served.job(place.job_id)["desired"] == "RUNNING"


def test_a_viewer_changes_nothing(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Buttons are disabled; forged events, for the viewer's own page or another's, have no effect."""
    asked = place.asked()
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
    # The page still gets answers, so earlier events have been handled.
    expect(page.locator(".p-head-line")).to_contain_text("RUNNING for")
    page.wait_for_timeout(1500)
    for one in (page, operator):
        expect(one.get_by_role("dialog")).to_have_count(0)
    assert place.asked() == asked


def test_a_page_ends_with_its_session(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Signing out in one tab signs out all; the login page accepts a token."""
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
    # Pages that have just lost their session may be refused.
    visitor.complaints[:] = [text for text in visitor.complaints if "401" not in text and "403" not in text]


def find(page: Page) -> None:
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("status")).to_contain_text("after micro-batch", timeout=PATIENCE_MS)


def picture(page: Page, name: str, *, whole: bool = False) -> None:
    """Take a screenshot for the docs, if requested: of the window, or of the whole page."""
    if PICTURES:
        # The page must be at rest, without traces of the last action.
        expect(page.get_by_role("alert")).to_have_count(0, timeout=PATIENCE_MS)
        page.screenshot(path=Path(PICTURES) / f"dashboard-{name}.png", full_page=whole)


def test_keys_are_found_with_what_they_hold(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """It lists all keys of a step, those with a part of the key, or one whole key, with windows and timers."""
    page = job_page(place, visit(), "/state")
    expect(page.get_by_role("row").filter(has_text="watch").first).to_contain_text(
        "limit", timeout=PATIENCE_MS
    )
    # The job has committed something.
    expect(page.get_by_role("row").filter(has_text="watch").first).to_contain_text(
        "8", timeout=2 * PATIENCE_MS
    )
    find(page)
    for gate in range(8):
        expect(page.get_by_role("row").filter(has_text=f"gate-{gate}")).to_have_count(1)
    page.get_by_label("Contains").fill("te-3")
    find(page)
    row = page.get_by_role("row").filter(has_text="gate-3")
    expect(page.get_by_role("row").filter(has_text="gate-4")).to_have_count(0, timeout=PATIENCE_MS)
    expect(row).to_contain_text(re.compile(r"[1-9]\d+"))
    row.get_by_role("button", name="gate-3").click()
    expect(page.locator("pre").filter(has_text="gate-3")).to_contain_text('"people":')
    expect(page.locator("code", has_text="state get")).to_contain_text("--step watch --key gate-3")
    picture(page, "state")
    check_query(page)
    page.get_by_label("Key", exact=True).fill("attic")
    page.get_by_label("Contains").fill("")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("No such key")).to_be_visible(timeout=PATIENCE_MS)
    page.get_by_label("Key", exact=True).fill("")
    page.get_by_label("Step").click()
    page.get_by_role("option", name="people-per-gate").click()
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("columnheader", name="windows")).to_be_visible(timeout=PATIENCE_MS)


def check_query(page: Page) -> None:
    """Check a result and its micro-batch, or an error and its position."""
    page.get_by_label("SQL").fill("SELECT count(*) AS gates_seen FROM state.watch")
    page.get_by_role("button", name="Run the query").click()
    told = page.get_by_role("log", name="Result of the query")
    expect(told).to_contain_text("1 row after micro-batch", timeout=PATIENCE_MS)
    expect(page.get_by_role("columnheader", name="gates_seen")).to_be_visible()
    expect(page.locator("code", has_text="penstock query")).to_contain_text("gates_seen")
    page.get_by_label("SQL").fill("SELECT gates_seen FROM state.watch")
    page.get_by_role("button", name="Run the query").click()
    expect(told).to_contain_text("(at line 1, column 8)", timeout=PATIENCE_MS)


def test_a_viewer_sees_no_values(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """A viewer sees which states exist, but gets no pages with record content."""
    page = job_page(place, visit(VIEWER), "/state")
    expect(page.get_by_role("row").filter(has_text="watch").first).to_contain_text(
        "limit", timeout=PATIENCE_MS
    )
    expect(page.get_by_role("button", name="Find")).to_have_count(0)
    expect(page.get_by_role("button", name="Run the query")).to_have_count(0)
    expect(page.get_by_role("button", name="Dump the state")).to_be_disabled()
    tabs = page.get_by_role("navigation", name="Pages on this job")
    expect(tabs.get_by_role("link", name="Checkpoints")).to_have_count(1)
    for hidden in ("Errors", "Log"):
        expect(tabs.get_by_role("link", name=hidden)).to_have_count(0)


@pytest.mark.chaos  # a process with a Spark; tests/unit/server/test_rest_states.py downloads a dump without one
def test_a_dump_is_taken_away(place: Turnstiles, visit: Callable[..., Visitor], tmp_path: Path) -> None:
    """The browser saves it as a file; it is deleted after a confirmation that names it."""
    page = job_page(place, visit(), "/state")
    expect(page.locator("code", has_text="state dump")).to_contain_text("--format csv")
    with place.at_rest():
        page.get_by_role("button", name="Dump the state").click()
        expect(page.get_by_text("Dumping the state as CSV: done.")).to_be_visible(timeout=2 * PATIENCE_MS)
    row = page.get_by_role("row").filter(has_text="olga")
    with page.expect_download() as saved:
        row.get_by_role("link", name="Download").click()
    target = tmp_path / saved.value.suggested_filename
    saved.value.save_as(target)
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert "manifest.json" in archive.namelist()
        assert any(b"gate-3" in archive.read(name) for name in archive.namelist() if name.endswith(".csv"))
    row.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(target.stem)
    dialog.get_by_role("button", name="Delete the dump").click()
    expect(row).to_have_count(0)
    assert not list((place.served.home / "dumps").iterdir())


@pytest.mark.chaos  # two more Sparks; test_serve.py does so by HTTP and the command line
def test_a_savepoint_is_taken_begun_with_and_deleted(
    place: Turnstiles, visit: Callable[..., Visitor]
) -> None:
    """Only permitted users can; another job continues from it, and the savepoint stays until that is done."""
    page = job_page(place, visit())
    page.get_by_role("button", name="Savepoint", exact=True).click()
    with place.at_rest():
        page.get_by_role("dialog").get_by_role("button", name="Take savepoint").click()
        expect(page.get_by_text("Taking a savepoint of turnstile: done.")).to_be_visible(
            timeout=2 * PATIENCE_MS
        )
    page.get_by_role("link", name="Savepoints").click()
    expect(page).to_have_title("Savepoints - penstock")
    name = page.get_by_role("button", name=re.compile("^sp-"))
    savepoint = (name.text_content() or "").strip()
    name.click()
    expect(page.get_by_role("row").filter(has_text="people-per-gate").first).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_be_disabled()
    picture(page, "savepoints")
    owner = visit(place.served.started["token"]).page
    page.get_by_role("button", name="Start a job from it").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"penstock submit turnstile --from-savepoint {savepoint}")
    dialog.get_by_role("button", name="Submit").click()
    expect(page).to_have_title("turnstile: Overview - penstock")
    job_id = page.url.rsplit("/", 1)[1]
    assert job_id != place.job_id
    owner.goto(f"{place.url}/dashboard/savepoints")
    owner.get_by_role("button", name=savepoint).click()
    expect(owner.get_by_text(f"Job {job_id} started from it.")).to_be_visible()

    def delete() -> None:
        owner.get_by_role("button", name="Delete", exact=True).click()
        asked = owner.get_by_role("dialog")
        expect(asked).to_contain_text(f"{savepoint} (turnstiles, micro-batch")
        asked.get_by_role("button", name="Delete the savepoint").click()

    delete()
    expect(owner.get_by_text("Stop or cancel the job first.")).to_be_visible()
    canceled = place.served.client.patch(f"/v1/jobs/{job_id}", json={"desired": "CANCELED"})
    assert canceled.status_code == 202
    expect(page.locator(".p-head-line")).to_contain_text("CANCELED", timeout=PATIENCE_MS)
    assert place.served.client.get(canceled.headers["Location"]).json()["state"] == "DONE"
    delete()
    expect(owner.get_by_text("No savepoints.")).to_be_visible(timeout=PATIENCE_MS)
    place.served.client.delete(f"/v1/jobs/{job_id}").raise_for_status()
    assert not list((place.served.home / "savepoints").glob("*/manifest.json"))


def test_the_log_is_followed(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """The log is the newest run's, or that of a selected run."""
    page = job_page(place, visit(), "/log")
    line = page.locator("code", has_text="penstock logs")
    expect(line).to_have_text(f"penstock logs {place.job_id} --follow")
    page.get_by_label("Run", exact=True).click()
    page.get_by_role("option", name=re.compile("^Run 1, begun")).click()
    page.get_by_role("switch", name="Follow").click()
    expect(line).to_have_text(f"penstock logs {place.job_id} --run 1")
    expect(page.locator(".p-log-text")).not_to_be_empty()


def test_checkpoints_come_as_they_are_committed(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """They are listed newest first, with their times and sizes."""
    page = job_page(place, visit(), "/checkpoints")
    first = page.get_by_role("table").get_by_role("row").nth(1)
    expect(first).to_contain_text(re.compile(r"\d ms"), timeout=PATIENCE_MS)
    before = first.text_content()
    expect(first).not_to_have_text(before or "", timeout=PATIENCE_MS)
    expect(page.locator(".p-tiles")).to_contain_text("of 100")


def test_pictures_for_the_docs(place: Turnstiles, browser: Browser) -> None:
    """Pages with content, light and dark, before the job has any dead letters; taken only when requested."""
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
    """Submit jobs that do not run, so that the list has more to show."""
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


def test_what_could_not_be_processed_is_shown(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Each has its reason and the source's content."""
    hidden = place.root / "visits" / ".bad.jsonl"
    hidden.write_text('{"gate": "gate-1", "at": "noon"}\n')
    hidden.rename(place.root / "visits" / "bad.jsonl")
    page = job_page(place, visit(), "/errors")
    expect(page.get_by_text("No run has failed")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="noon")
    expect(row).to_have_count(1, timeout=PATIENCE_MS)
    row.get_by_role("button").click()
    picture(page, "errors")
    expect(page.locator("pre")).to_contain_text('{"gate": "gate-1", "at": "noon"}')


def test_the_keyboard_is_enough(place: Turnstiles, visit: Callable[..., Visitor], browser: Browser) -> None:
    """From the token to a canceled job, focus is visible and moves in the expected order."""
    asked = place.asked()
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{place.url}/dashboard/jobs")
    expect(page.get_by_role("textbox", name="Token")).to_be_focused()
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
    # The safe button has the focus, so that Enter alone does no harm.
    expect(dialog.get_by_role("button", name="Keep as it is")).to_be_focused()
    tab_to(page, "button", "Cancel the job")
    page.keyboard.press("Enter")
    expect(page.locator(".p-head-line")).to_contain_text("CANCELED", timeout=PATIENCE_MS)
    expect(page.get_by_text("Canceling turnstile: done.")).to_be_visible()
    assert place.asked() == [*asked, "asked for: cancel"]
    context.close()


def tab_to(page: Page, role: str, name: str) -> None:
    """Press Tab until an element has the focus."""
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
    """The new server knows no earlier session: open pages lead to the login."""
    visitor = visit()
    job_page(place, visitor)
    place.served.process.send_signal(signal.SIGTERM)
    assert place.served.process.wait(30) == 0
    place.served.start()
    expect(visitor.page).to_have_url(f"{place.url}/login", timeout=PATIENCE_MS)
    assert list((place.root / "cwd").iterdir()) == []
    # While there is no server, no page can be loaded.
    visitor.complaints.clear()
