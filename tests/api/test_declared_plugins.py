"""Names that distributions declare: loaded on first use, broken plugins, and suggestions for other terms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import structinf as si
from structinf import Oracle, PluginError, UnknownNameError
from structinf.calls import resolution
from structinf.registry import Registry
from toy_oracles import Explicit


@dataclass
class Installer:
    """Puts distributions on the path: metadata, entry points and a module each."""

    folder: Path

    def __call__(self, distribution: str, entry_points: dict[str, str], code: str = "") -> None:
        module = distribution.replace("-", "_")
        (self.folder / f"{module}.py").write_text(code)
        info = self.folder / f"{module}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[toy.oracles]", *lines]) + "\n")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installer]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Installer(tmp_path)
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def registry() -> Registry[Oracle]:
    return Registry("oracle", Oracle, "toy.oracles")


CODE = """
import structinf

class Mine(structinf.Oracle):
    event_ndim = 1
    def argmax(self, theta):
        return (theta > 0).to(theta)
"""


LEAVES = """
import sys

def leaves():
    sys.exit(1)
"""


def test_a_plugin_is_found_by_name_and_loaded_when_asked_for(install, registry):
    install("toy-plugin", {"mine": "toy_plugin:Mine"}, CODE)
    assert registry.names() == ["mine"]
    assert "toy_plugin" not in sys.modules
    made = registry.get("mine")
    assert type(made).__module__ == "toy_plugin"
    assert made.label() == "mine"


def test_a_broken_plugin_fails_only_when_asked_for(install, registry):
    install("toy-broken", {"broken": "toy_broken:Mine"}, "import no_such_module")
    install("toy-plugin", {"mine": "toy_plugin:Mine"}, CODE)
    assert registry.names() == ["broken", "mine"]
    assert registry.get("mine").label() == "mine"
    with pytest.raises(PluginError) as error:
        registry.get("broken")
    message = str(error.value)
    assert "oracle 'broken' of toy_broken:Mine (distribution toy-broken 1.5) cannot be loaded" in message
    assert "no_such_module" in message
    assert isinstance(error.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("toy_odd:Missing", "cannot be loaded: AttributeError"),
        ("toy_odd:NUMBER", "must be a class or function, got 3"),
        ("no_such_module:Mine", "cannot be loaded: ModuleNotFoundError"),
        ("toy_odd:fails", "must construct an object of Oracle, got None"),
        ("toy_odd:leaves", r"'odd' cannot be constructed: SystemExit\(2\)"),
        (
            "toy_odd:Other",
            "must be a subclass of Oracle, or a function that returns an object of the class, got <class",
        ),
        ("builtins:int", "must be a subclass of Oracle, or a function .*; correct the entry point"),
        ("no module at all", "cannot be loaded: "),
        ("", "cannot be loaded: "),
    ],
)
def test_other_ways_to_be_broken(install, registry, value, message):
    code = "import sys\nNUMBER = 3\ndef fails(): pass\ndef leaves(): sys.exit(2)\nclass Other: pass\n"
    install("toy-odd", {"odd": value}, code)
    with pytest.raises(PluginError, match=message):
        registry.get("odd")


@pytest.mark.parametrize("raised", ["SystemExit(3)", "GeneratorExit()", "BaseException('stop')"])
def test_a_module_that_ends_the_program_is_a_broken_plugin(install, registry, raised):
    install("toy-exit", {"exits": "toy_exit:Mine"}, f"raise {raised}\n")
    install("toy-plugin", {"mine": "toy_plugin:Mine"}, CODE)
    with pytest.raises(PluginError, match=r"'exits' of toy_exit:Mine \(distribution toy-exit 1.5\) cannot be loaded: "):
        registry.get("exits")
    with pytest.raises(UnknownNameError, match=r"did you mean 'mine'\?"):
        registry.get("mime")
    assert registry.names() == ["exits", "mine"]


def test_ctrl_c_during_an_import_reaches_the_caller(install, registry):
    install("toy-slow", {"slow": "toy_slow:Mine"}, "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        registry.get("slow")


def test_an_entry_point_with_a_bad_name_fails_only_when_asked_for(install, registry):
    install("toy-plugin", {"mine": "toy_plugin:Mine", "a b": "toy_plugin:Mine", "": "toy_plugin:Mine"}, CODE)
    assert registry.names() == ["", "a b", "mine"]
    assert registry.get("mine").label() == "mine"
    for name in ("a b", ""):
        with pytest.raises(
            PluginError, match=rf"^oracle '{name}' of .*cannot be loaded: a name must be a word .*rename"
        ):
            registry.get(name)
    with pytest.raises(UnknownNameError, match=r"no oracle is called 'mime'; did you mean 'mine'\?"):
        registry.get("mime")


def test_search_terms_of_a_wrong_kind_are_ignored(registry):
    for i, terms in enumerate([3, None, "abc", [None, "conifer"]]):
        registry.register(f"tree{i}", type(f"Tree{i}", (Explicit,), {"search_terms": terms}))
    with pytest.raises(UnknownNameError, match=r"did you mean 'tree3'\?"):
        registry.get("conifer")


def test_broken_plugins_leave_the_command_line_working(install, monkeypatch, capsys):
    from structinf.command_line.main import main

    install("toy-exit", {"exits": "toy_exit:Mine"}, "import sys\nsys.exit(3)\n")
    install(
        "toy-other", {"number": "builtins:int", "a b": "toy_other:Mine", "leaves": "toy_other:leaves"}, CODE + LEAVES
    )
    monkeypatch.setattr(resolution.ORACLES, "entry_point_group", "toy.oracles")
    monkeypatch.delattr(resolution.ORACLES, "_entry_points", raising=False)
    monkeypatch.setattr(resolution.ORACLES, "_factories", {})
    monkeypatch.setattr(resolution.ORACLES, "_options", {})
    try:
        assert main(["list"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        for name in ("exits", "number", "a b"):
            assert f"oracle '{name}' of " in shown
            with pytest.raises(PluginError, match=f"oracle '{name}' of "):
                si.relax(torch.zeros(3), name, "map")
        assert "oracle 'leaves' cannot be constructed: SystemExit(1)" in shown
    finally:
        monkeypatch.undo()
        vars(resolution.ORACLES).pop("_entry_points", None)


def test_a_name_declared_twice_names_both_distributions(install, registry):
    install("toy-one", {"mine": "toy_one:Mine", "other": "toy_one:Mine"}, CODE)
    install("toy-two", {"mine": "toy_two:Mine"}, CODE)
    assert registry.names() == ["mine", "other"]
    with pytest.raises(PluginError) as error:
        registry.get("mine")
    message = str(error.value)
    assert "toy_one:Mine (distribution toy-one 1.5)" in message
    assert "toy_two:Mine (distribution toy-two 1.5)" in message
    assert "uninstall one or pass the object itself" in message
    assert registry.get("other").label() == "other"


def test_the_same_object_declared_by_two_copies_of_its_metadata(install, registry):
    install("toy-one", {"mine": "toy_one:Mine"}, CODE)
    install("toy-copy", {"mine": "toy_one:Mine"})
    assert registry.get("mine").label() == "mine"


def test_a_local_name_and_a_declared_one(install, registry):
    install("toy-plugin", {"mine": "toy_plugin:Mine"}, CODE)
    with pytest.raises(PluginError, match=r"'mine' is taken by toy_plugin:Mine \(distribution toy-plugin .*register"):
        registry.register("mine", Explicit)


def test_a_declared_name_that_came_later(install, registry):
    registry.register("mine", Explicit)
    install("toy-plugin", {"mine": "toy_plugin:Mine"}, CODE)
    del registry._entry_points
    with pytest.raises(
        PluginError, match=r"declared twice: by toy_plugin:Mine .* and by toy_oracles\.Explicit, registered"
    ):
        registry.get("mine")


def test_an_empty_registry(registry):
    assert registry.names() == []
    with pytest.raises(UnknownNameError, match=r"no oracle is called 'mine'\. Known: none"):
        registry.get("mine")


# ----------------------------------------------------------------------------- other names in the field


@pytest.mark.parametrize(
    ("get", "term", "suggested"),
    [
        (si.get_oracle, "hungarian", "'assignment'"),
        (si.get_oracle, "Viterbi", "'chain'"),
        (si.get_oracle, "chu-liu/edmonds", "'arborescence'"),
        (si.get_oracle, "smith waterman", "'needleman_wunsch'"),
        (si.get_oracle, "kruskals", "'spanning_tree'"),
        (si.get_relaxation, "CRF", "'marginals'"),
        (si.get_relaxation, "gumbel-softmax", "'stochastic'"),
    ],
)
def test_a_term_of_the_field_suggests_the_name(get, term, suggested):
    with pytest.raises(UnknownNameError, match=rf"called '{term}'; did you mean {suggested}\?"):
        get(term)


def test_every_search_term_leads_to_its_class():
    for registry in (resolution.ORACLES, resolution.RELAXATIONS):
        for name in registry.names():
            for term in getattr(registry.factory(name), "search_terms", ()):
                with pytest.raises(UnknownNameError, match=rf"did you mean .*'{name}'"):
                    registry.get(term)


def test_plugins_that_cannot_be_loaded_suggest_nothing(install):
    install("pines", {"pine": "pines:Mine"}, CODE + "Mine.search_terms = ('conifer',)\n")
    install("wreck", {"oak": "wreck:Tree"}, "raise RuntimeError('broken')")
    with pytest.raises(UnknownNameError, match="did you mean 'pine'"):
        Registry("oracle", Oracle, "toy.oracles").get("conifer")
