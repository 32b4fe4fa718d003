"""The pictures of the documentation: there is one of each structure, pages show all, and they are as drawn now."""

from __future__ import annotations

import io
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("ortools")
import structinf
import structinf.distributions.sparse
from docs.code_blocks import blocks
from docs.pictures import HERE, PICTURES, save
from docs.pictures.pages import PAGES, draw
from figure_contents import words_of_svg
from structinf.parts import map_parts
from structinf.plot.mixture import Mixture
from uniqueness import find_rivals

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
TEXTS = {path: path.read_text("utf-8") for path in sorted(HERE.parent.glob("*.md"))}
BUILT_IN = {
    point.name for point in entry_points(group="structinf.oracles") if point.value.startswith("structinf_oracles.")
}


def test_there_is_one_of_each_structure():
    assert set(PICTURES) & BUILT_IN == BUILT_IN


def test_there_are_no_pictures_of_anything_else():
    assert sorted(path.stem for path in HERE.glob("*.svg")) == sorted(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_small_and_has_words(name):
    file = (HERE / f"{name}.svg").read_bytes()
    assert len(file) < 60_000
    assert b"date" not in file
    assert len(words_of_svg(file)) > 3


@pytest.fixture
def drawn_calls(monkeypatch):
    """Arguments of each call of ``infer`` whose solution is drawn. The potentials get relative noise of 1e-6."""
    infer, read = structinf.infer, Mixture.of
    generator = torch.Generator().manual_seed(0)
    calls, drawn = {}, []

    def noisy(t):
        return t * (1 + 1e-6 * torch.randn(t.shape, dtype=t.dtype, generator=generator))

    def recording_infer(theta, *arguments, generator=None, **options):
        theta = map_parts(noisy, theta)
        solution = infer(theta, *arguments, generator=generator, **options)
        if generator is None:  # the weights of samples are no decomposition of a mean
            calls[id(solution.weights)] = solution, (theta, *arguments), options
        return solution

    def recording_read(solution):
        mixture = read(solution)
        if mixture.weights is not None and id(mixture.weights) in calls:
            drawn.append(calls[id(mixture.weights)][1:])
        return mixture

    for module in (structinf, structinf.distributions.sparse):
        monkeypatch.setattr(module, "infer", recording_infer)
    monkeypatch.setattr(Mixture, "of", recording_read)
    return drawn


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_what_is_drawn_also_under_noise(name, drawn_calls):
    """Rounding changes no words, and all weights that are drawn are unique."""
    drawn = io.BytesIO()
    save(PICTURES[name](), name, drawn)
    assert words_of_svg(drawn.getvalue()) == words_of_svg((HERE / f"{name}.svg").read_bytes()), "run `make pictures`"
    for arguments, options in drawn_calls:
        assert not find_rivals(*arguments, **options), "take an example whose minimal face is a simplex"


@pytest.mark.parametrize("name", PICTURES)
def test_pages_show_it_and_say_what_is_drawn(name):
    found = [re.findall(rf"!\[([^\]]*)\]\(pictures/{name}\.svg\)", text) for text in TEXTS.values()]
    alternatives = [alternative for page in found for alternative in page]
    assert alternatives
    assert min(map(len, alternatives)) > 20
    if name in BUILT_IN:
        assert f"(pictures/{name}.svg)" in TEXTS[HERE.parent / "structures.md"]


def test_a_picture_is_drawn_by_one_page():
    names = [block.picture for text in TEXTS.values() for block in blocks(text) if block.picture]
    assert sorted(names) == sorted(PAGES)


def test_a_page_draws_its_picture_away_from_here(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    figure = draw("categorical")
    assert figure.texts[0].get_text() == "“I’d love a cup of …”"
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""
