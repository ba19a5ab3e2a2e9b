"""The dashboard's pages on what a job holds, in a real Chromium: state, dumps, savepoints, errors, log, checkpoints."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect
from turnstile_pages import (
    PATIENCE_MS,
    PICTURES,
    VIEWER,
    Turnstiles,
    Visitor,
    browser,
    job_page,
    place,
    visit,
)

__all__ = ["browser", "place", "visit"]


def find(page: Page) -> None:
    page.get_by_role("button", name="Find").click()
    # A process of its own starts a Spark.
    expect(page.get_by_role("status")).to_contain_text("after micro-batch", timeout=2 * PATIENCE_MS)


def picture(page: Page, name: str) -> None:
    """A screenshot for the docs, when they are wanted."""
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"dashboard-{name}.png")


def test_keys_are_found_with_what_they_hold(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """All of a step, those with a part of the key, and one of them whole; windows and timers, too."""
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
    expect(page.get_by_role("row").filter(has_text="gate-4")).to_have_count(0)
    expect(row).to_contain_text(re.compile(r"[1-9]\d+"))
    row.get_by_role("button", name="gate-3").click()
    expect(page.locator("pre").filter(has_text="gate-3")).to_contain_text('"people":')
    expect(page.locator("code", has_text="state get")).to_contain_text("--step watch --key gate-3")
    picture(page, "state")
    page.get_by_label("Key", exact=True).fill("attic")
    page.get_by_label("Contains").fill("")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("There is no such key")).to_be_visible(timeout=PATIENCE_MS)
    page.get_by_label("Key", exact=True).fill("")
    page.get_by_label("Step").click()
    page.get_by_role("option", name="people-per-gate").click()
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("columnheader", name="windows")).to_be_visible(timeout=PATIENCE_MS)


def test_a_viewer_sees_no_values(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """But which states there are; pages with what records hold are not there."""
    page = job_page(place, visit(VIEWER), "/state")
    expect(page.get_by_role("row").filter(has_text="watch").first).to_contain_text(
        "limit", timeout=PATIENCE_MS
    )
    expect(page.get_by_role("button", name="Find")).to_have_count(0)
    expect(page.get_by_role("button", name="Dump the state")).to_be_disabled()
    tabs = page.get_by_role("navigation", name="Pages on this job")
    expect(tabs.get_by_role("link", name="Checkpoints")).to_have_count(1)
    for hidden in ("Errors", "Log"):
        expect(tabs.get_by_role("link", name=hidden)).to_have_count(0)


def test_a_dump_is_taken_away(place: Turnstiles, visit: Callable[..., Visitor], tmp_path: Path) -> None:
    """As a file that the browser saves; it is deleted when the question, which names it, is answered so."""
    page = job_page(place, visit(accept_downloads=True), "/state")
    expect(page.locator("code", has_text="state dump")).to_contain_text("--format csv")
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


def test_a_savepoint_is_taken_begun_with_and_deleted(
    place: Turnstiles, visit: Callable[..., Visitor]
) -> None:
    """By those who may: another job goes on from it; while that is not over the savepoint stays."""
    page = job_page(place, visit())
    page.get_by_role("button", name="Savepoint", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Take savepoint").click()
    expect(page.get_by_text("Taking a savepoint of turnstile: done.")).to_be_visible(timeout=2 * PATIENCE_MS)
    page.get_by_role("link", name="Savepoints").click()
    expect(page).to_have_title("Savepoints - penstock")
    name = page.get_by_role("button", name=re.compile("^sp-"))
    savepoint = (name.text_content() or "").strip()
    name.click()
    expect(page.get_by_role("row").filter(has_text="people-per-gate").first).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_be_disabled()
    picture(page, "savepoints")
    page.get_by_role("button", name="Begin a job with it").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"penstock run --detached turnstile --from-savepoint {savepoint}")
    dialog.get_by_role("button", name="Submit").click()
    expect(page).to_have_title("turnstile: Overview - penstock")
    job_id = page.url.rsplit("/", 1)[1]
    assert job_id != place.job_id
    owner = visit(place.served.started["token"]).page
    owner.goto(f"{place.url}/dashboard/savepoints")
    owner.get_by_role("button", name=savepoint).click()
    expect(owner.get_by_text(f"The job {job_id} began with it.")).to_be_visible()

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
    delete()
    expect(owner.get_by_text("No savepoints.")).to_be_visible(timeout=PATIENCE_MS)
    assert not list((place.served.home / "savepoints").glob("*/manifest.json"))


def test_what_could_not_be_processed_is_shown(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """With its reason and what the source had."""
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


def test_the_log_is_followed(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """The newest run's, or that of a run which is chosen."""
    page = job_page(place, visit(), "/log")
    line = page.locator("code", has_text="penstock logs")
    expect(line).to_have_text(f"penstock logs {place.job_id} --follow")
    page.get_by_label("Run", exact=True).click()
    page.get_by_role("option", name=re.compile("^Run 1, begun")).click()
    page.get_by_role("switch", name="Follow").click()
    expect(line).to_have_text(f"penstock logs {place.job_id} --run 1")
    expect(page.locator(".p-log-text")).not_to_be_empty()


def test_checkpoints_come_as_they_are_committed(place: Turnstiles, visit: Callable[..., Visitor]) -> None:
    """Newest first, with their times and sizes."""
    page = job_page(place, visit(), "/checkpoints")
    first = page.get_by_role("table").get_by_role("row").nth(1)
    expect(first).to_contain_text(re.compile(r"\d ms"), timeout=PATIENCE_MS)
    before = first.text_content()
    expect(first).not_to_have_text(before or "", timeout=PATIENCE_MS)
    expect(page.locator(".p-tiles")).to_contain_text("of 100")
