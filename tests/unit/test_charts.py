"""Charts of benchmarks: what is drawn is where it should be, and the picture loads nothing from elsewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchmarks.autoscaling import complaint
from benchmarks.chart import Panel, draw_chart

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"


def test_a_series_is_drawn_over_its_time() -> None:
    """The first panel's line goes from left to right, steps hold until the next value, and words are escaped."""
    panels = [Panel("a < b", [(0, 0), (30, 10), (60, 5)], steps=True), Panel("c", [(0, 1), (60, 3)])]
    drawn = draw_chart("T", panels, [(30, "up & up")], 60)
    root = ET.fromstring(drawn)
    steps, line = (path.attrib["d"] for path in root.iter(f"{SVG}path"))
    assert re.fullmatch(r"M56\.0 (\S+)H400\.0V\S+H744\.0V\S+H744\.0", steps)
    assert re.fullmatch(r"M56\.0 \S+L744\.0 \S+", line)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"T", "a < b", "c", "up & up", "0 min", "1 min"} <= set(texts)


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_of_the_documentation_load_nothing(path: Path) -> None:
    """They are whole by themselves."""
    text = path.read_text()
    ET.fromstring(text)
    assert not re.findall(r"(?:href|src)=|url\(|@import", text.replace("url(#", ""))


def test_a_run_that_was_not_as_it_should_be_is_told() -> None:
    """Too many rescales, none, or lag that stays."""
    good = {"rescales": [{}, {}], "lag_before_s": 0.0, "lag_top_s": 2.9, "lag_after_s": 0.0}
    assert complaint(good) == ""
    assert "5 rescales" in complaint({**good, "rescales": [{}] * 5})
    assert "0 rescales" in complaint({**good, "rescales": []})
    assert "level" in complaint({**good, "lag_after_s": 3.1})
