"""The pictures of the documentation: there is one of each structure, and pages show them."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
PAGES = {
    "attention": "attention",
    "attention_heads": "attention",
    "samples": "perturbation",
    "support": "choosing",
}
BUILT_IN = sorted(
    point.name for point in entry_points(group="structinf.oracles") if point.value.startswith("structinf_oracles.")
)


def test_the_script_draws_all():
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    assert sorted(draw.PICTURES) == sorted([*BUILT_IN, *PAGES])
    assert draw.HERE == FOLDER


@pytest.mark.parametrize("name", [*BUILT_IN, *PAGES])
def test_there_is_a_picture(name):
    path = FOLDER / f"{name}.svg"
    assert path.stat().st_size < 60_000
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    words = [element.text for element in root.iter() if element.tag.endswith("text") and element.text]
    assert len(words) > 3  # text, and not outlines of letters
    assert "date" not in path.read_text("utf-8")


@pytest.mark.parametrize("name", [*BUILT_IN, *PAGES])
def test_the_page_shows_it_and_says_what_is_drawn(name):
    page = (ROOT / "docs" / f"{PAGES.get(name, 'structures')}.md").read_text("utf-8")
    (alternative,) = re.findall(rf"!\[([^\]]*)\]\(pictures/{name}\.svg\)", page)
    assert len(alternative) > 20


def test_there_are_no_pictures_of_anything_else():
    assert sorted(path.stem for path in FOLDER.glob("*.svg")) == sorted([*BUILT_IN, *PAGES])
