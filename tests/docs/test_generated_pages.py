"""What pages say about the code, in the parts that docs/generate.py writes, is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import structinf as si
from structinf.calls.resolution import ORACLES
from structinf.registry import signature_options

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_a_page_is_up_to_date(generate, page):
    path = ROOT / page
    assert path.read_text("utf-8") == generate.pages()[path], "run `make generated`"


def test_the_table_is_what_the_relaxations_say(generate):
    first, _, *rows = (line.strip("|").split("|") for line in generate.support_table().splitlines())
    for row in rows:
        for structure in row[0].replace("`", "").split(","):
            answers = [
                (relaxation.strip(), cell.strip())
                for heading, cell in zip(first[1:], row[1:], strict=True)
                for relaxation in heading.replace("`", "").partition(":")[2].split(",")
            ]
            factory = ORACLES.factory(structure.strip())
            oracle = factory() if not any(signature_options(factory).values()) else object.__new__(factory)
            for relaxation, cell in answers:
                assert (cell == "✓") == (si.get_relaxation(relaxation).unsupported_reason(oracle) is None)


def test_plugins_are_no_part_of_the_table(generate, registries):
    before = generate.support_table()

    @si.register_oracle("of_a_plugin")
    class OfAPlugin(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            return theta

    assert "of_a_plugin" in si.list_oracles()
    assert generate.support_table() == before


@pytest.fixture
def registries(monkeypatch):
    monkeypatch.setattr(ORACLES, "_registered", dict(ORACLES._registered))


def test_the_graph_is_that_of_import_linter(generate):
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("structinf", exclude_type_checking_imports=True, cache_dir=None)
    ours = generate.imports()
    for module in ours:
        graph.squash_module(f"structinf.{module}")
    for module, imported in ours.items():
        found = graph.find_modules_directly_imported_by(f"structinf.{module}")
        assert imported == {name.split(".")[1] for name in found if name != "structinf"} - {module}


def test_every_module_stands_above_what_it_imports(generate):
    graph = generate.imports()
    drawn = generate.layers().splitlines()
    line = {word: number for number, text in enumerate(drawn) for word in text.strip("│ ").split()}
    for module, imported in graph.items():
        assert all(line[module] < line[other] for other in imported)


def test_what_is_left_out_comes_along(generate):
    graph = generate.imports()
    for module, imported in graph.items():
        near = generate.direct_imports(graph, module)
        assert imported == imported & set(near).union(*(generate.transitive_imports(graph, other) for other in near))
        assert not any(one in generate.transitive_imports(graph, other) for one in near for other in near)
