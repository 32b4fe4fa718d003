"""The command line: ``structinf list``, ``structinf check NAME``, ``structinf warmup NAMES`` and ``structinf demo``."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import Oracle, __version__, testing
from ..calls import resolution
from ..calls.problem import Problem
from ..errors import InvalidInputError, PluginError, StructinfError, UnknownNameError
from ..registry import signature_options
from . import listing

__all__ = ["main"]

# Of the demos; named here, so that --help needs no extra.
SORT_METHODS = ("sparsemap-loss",)
LOSSES = ("perceptron", "svm", "crf", "sparsemap", "margin-sparsemap")

EXTRA = "demo"
IN_EXTRA = {"conllu": "conllu", "matplotlib": "matplotlib", "pyts": "pyts", "sklearn": "scikit-learn", "tqdm": "tqdm"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0; 1 if a check failed; 2 if the command could not be carried out."""
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what is checked has a θ in it, which not every console can show
    try:
        return arguments.run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in IN_EXTRA:
            raise
        reason = f"this needs {IN_EXTRA[package]}, which is not installed; run: pip install 'structinf[{EXTRA}]'"
    except BrokenPipeError:
        # The reader has had enough (`| head`); nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (StructinfError, OSError) as error:
        reason = str(error)
    print(f"structinf: {reason}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="structinf", description="Structures as differentiable PyTorch layers.")
    parser.add_argument("--version", action="version", version=f"structinf {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    about = (
        "print the supported combinations of oracles with relaxations and estimators, and the reasons for the others"
    )
    command = commands.add_parser("list", help=about, description=about)
    command.add_argument("names", metavar="NAME", nargs="*", help="an oracle (default: all)")
    command.set_defaults(run=lambda arguments: listing.run(arguments.names))

    about = "run the conformance suite of an oracle"
    command = commands.add_parser("check", help=about, description=about)
    command.add_argument("name", metavar="NAME", help="a registered name, or module:Class")
    command.add_argument(
        "--event-shape",
        metavar="N,M",
        type=_shape,
        action="append",
        help="shape of the scores without batch dimensions, small enough to enumerate; repeat the option for each "
        "tensor of a tuple (default: 4 in each dimension)",
    )
    command.add_argument(
        "-o",
        metavar="OPTION=VALUE",
        type=_option,
        action="append",
        default=[],
        dest="options",
        help="an option of the oracle",
    )
    command.add_argument("--relaxation", metavar="NAME", help="check this relaxation of the oracle instead")
    command.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default: 0)")
    command.add_argument(
        "-v", "--verbose", action="store_true", help="print the reason for each check that does not apply"
    )
    command.set_defaults(run=_check)

    about = "compile the kernels of structures, or of all, before their first use, and keep them on disk"
    command = commands.add_parser("warmup", help=about, description=about)
    command.add_argument(
        "names", metavar="NAME", nargs="*", help="a structure, or simplex for all maps to the simplex (default: all)"
    )
    command.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        nargs="+",
        default=["float32"],
        help="dtypes of the scores (default: float32)",
    )
    command.add_argument(
        "--relaxation",
        metavar="NAME",
        nargs="+",
        default=[],
        dest="relaxations",
        help="compile only these relaxations of the structures (default: all relaxations, and queries such as topk)",
    )
    command.set_defaults(run=_warmup)

    about = "train a small model, print its results and save a picture"
    command = commands.add_parser("demo", help=about, description=about)
    demos = command.add_subparsers(metavar="DEMO", required=True)
    _add_demos(demos)
    return parser


def _add_demos(demos: Any) -> None:
    picture, seed = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    picture.add_argument(
        "--out", metavar="FOLDER", type=Path, default=Path(), help="folder of the picture (default: the current folder)"
    )
    seed.add_argument("--seed", type=int, default=0, help="seed of the data and the parameters (default: 0)")

    about = "learn to sort images of digits from sorted lists, with relaxations of assignments"
    demo = demos.add_parser("sort", help=about, description=about, parents=[seed, picture])
    demo.add_argument(
        "--methods",
        metavar="METHOD",
        nargs="+",
        default=SORT_METHODS,
        help="methods to compare: RELAXATION-loss for a Fenchel-Young loss, or RELAXATION-layer for the squared error "
        f"of a layer, such as map-loss straight-through-layer; or all (default: {' '.join(SORT_METHODS)})",
    )
    demo.add_argument("--epochs", type=_positive, default=3, help="epochs for each method (default: 3)")
    demo.add_argument("--quick", action="store_true", help="train on a few batches, to test the program")
    demo.set_defaults(run=_demo_sort)

    about = "train a dependency parser on a Universal Dependencies treebank"
    demo = demos.add_parser("parse", help=about, description=about, parents=[seed, picture])
    demo.add_argument(
        "--treebank",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="folder with *train*, *dev* and *test* files in CoNLL-U: .conllu or .conllu.xz",
    )
    demo.add_argument("--loss", choices=LOSSES, default="sparsemap", help="training loss (default: sparsemap)")
    demo.add_argument("--epochs", type=_positive, default=10, help="number of epochs (default: 10)")
    demo.add_argument(
        "--max-sentences", metavar="N", type=_positive, help="number of sentences to read from each file (default: all)"
    )
    demo.add_argument(
        "--max-length",
        metavar="N",
        type=_positive,
        default=60,
        help="longest training sentence, in words (default: 60)",
    )
    demo.set_defaults(run=_demo_parse)

    about = "align and average recordings of a movement by dynamic time warping, hard and soft"
    demo = demos.add_parser("align", help=about, description=about, parents=[picture])
    demo.add_argument("--temperature", type=float, default=0.1, help="temperature of soft-DTW (default: 0.1)")
    demo.add_argument("--quick", action="store_true", help="use a few short recordings, to test the program")
    demo.set_defaults(run=_demo_align)


def _warmup(arguments: argparse.Namespace) -> int:
    from . import warmup

    with _one_thread():
        dtypes = [getattr(torch, name) for name in arguments.dtype]
        return warmup.run(arguments.names, dtypes, arguments.relaxations)


def _demo_sort(arguments: argparse.Namespace) -> int:
    _show_loading("sort")
    from ..demos import sort

    with _one_thread():
        sort.run(
            arguments.methods, epochs=arguments.epochs, seed=arguments.seed, out=arguments.out, quick=arguments.quick
        )
    return 0


def _demo_parse(arguments: argparse.Namespace) -> int:
    _show_loading("parse")
    from ..demos import parse

    with _one_thread():
        parse.run(
            arguments.treebank,
            loss=arguments.loss,
            epochs=arguments.epochs,
            max_sentences=arguments.max_sentences,
            max_length=arguments.max_length,
            seed=arguments.seed,
            out=arguments.out,
        )
    return 0


def _demo_align(arguments: argparse.Namespace) -> int:
    _show_loading("align")
    from ..demos import align

    with _one_thread():
        align.run(temperature=arguments.temperature, out=arguments.out, quick=arguments.quick)
    return 0


def _show_loading(demo: str) -> None:
    """Print a line before the import of the packages of a demo, which takes seconds."""
    print(f"Loading the packages and data of the demo {demo} ...", flush=True)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The demos' tensors are too small to gain from threads, and on a busy machine threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# ----------------------------------------------------------------------------- check


def _check(arguments: argparse.Namespace) -> int:
    oracle = _make(arguments.name, dict(arguments.options))
    shape = _event_shape(oracle, arguments.event_shape)
    check, target = functools.partial(testing.check_oracle, oracle), repr(oracle)
    if arguments.relaxation is not None:
        relaxation = resolution.get_relaxation(arguments.relaxation)
        resolution.check_supported(oracle, relaxation)
        check, target = functools.partial(testing.check_relaxation, relaxation, oracle), f"{relaxation!r} of {oracle!r}"
    print(f"{target}, scores of shape {shape}\n")
    first_failed: dict[str, str] = {}  # for each failure, the first check that it makes fail

    def print_result(result: testing.CheckResult) -> None:
        if result.reason is not None and not arguments.verbose:
            return
        mark = {"passed": "ok", "not applicable": "-", "failed": "FAILED"}[result.status]
        print(f"{mark:<6}  {result.check:<20}  {result.reason or result.requirement}", flush=True)
        if result.error is not None:
            first = first_failed.setdefault(result.error.failure_summary, result.check)
            _, _, details = str(result.error).partition("\n")  # after the name and the requirement
            if first != result.check:
                details = f"for the same reason as {first}"
            print(textwrap.indent(details or str(result.error), " " * 8))

    report = check(event_shape=shape, seed=arguments.seed, raise_on_failure=False, on_result=print_result)
    passed, failed = len(report.passed), len(report.failed)
    if report.not_applicable and not arguments.verbose:
        print(f"{'-':<6}  {report.inapplicable_checks} (option --verbose: the reasons)")
    reasons = f", for {len(first_failed)} reason{'s' * (len(first_failed) > 1)}" if len(first_failed) < failed else ""
    print(f"\n{passed} checks passed, {len(report.not_applicable)} do not apply, {failed} failed{reasons}")
    return 1 if failed else 0


def _make(name: str, options: dict[str, Any]) -> Oracle:
    """The oracle registered under ``name``, or that the class at ``module:Class`` makes."""
    try:
        module, colon, attribute = name.partition(":")
        if colon and "" not in sys.path:
            sys.path.insert(0, "")  # a module of the current folder, as with python -m
        factory = getattr(importlib.import_module(module), attribute) if colon else resolution.ORACLES.factory(name)
        known = signature_options(factory)
        if missing := [key for key, needed in known.items() if needed and key not in options]:
            unknown = next((f"; it has no option {key!r}" for key in options if key not in known), "")
            raise InvalidInputError(
                f"{name} has options without a default: pass {' '.join(f'-o {key}=...' for key in missing)}{unknown}"
            )
        if colon and known and (wrong := [key for key in options if key not in known]):
            raise InvalidInputError(f"{name} has no option {wrong[0]!r}; its options are {', '.join(known)}")
        made = factory(**options) if colon else resolution.get_oracle(name, **options)
        if not isinstance(made, Oracle):
            raise PluginError(f"{name} must construct an Oracle, got {made!r}")
        return made
    except (AttributeError, ImportError, TypeError, ValueError, UnknownNameError) as error:
        if isinstance(error, UnknownNameError) and (classes := _classes_of_file(name)):
            raise UnknownNameError(f"{error}. A file of this name exists: write {' or '.join(classes)}") from None
        if isinstance(error, StructinfError):
            raise
        raise InvalidInputError(f"{name}: {error}") from error


def _classes_of_file(name: str) -> list[str]:
    """Return ``module:Class`` for the classes of a module of the current folder; ``name`` may be the file's name."""
    module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
    place = Path(*module.split("."))
    file = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
    if file is None and (dot := module.rpartition("."))[0]:  # module.Class
        return [found for found in _classes_of_file(dot[0]) if found == f"{dot[0]}:{dot[2]}"]
    if file is None:
        return []
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        found = [node.name for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef)]
        return [f"{module}:{cls}" for cls in found[:5]] or [f"{module}:Class"]
    return [f"{module}:Class"]


def _event_shape(oracle: Oracle, given: list[tuple[int, ...]] | None) -> Any:
    """What was given, or 4 in each dimension if the oracle takes that."""
    ndims = oracle.event_ndim if isinstance(oracle.event_ndim, tuple) else (oracle.event_ndim,)
    several = isinstance(oracle.event_ndim, tuple)
    if given:
        return given[0] if len(given) == 1 and not (several and len(ndims) == 1) else tuple(given)
    shapes = tuple((4,) * n for n in ndims)
    zeros = tuple(torch.zeros(*shape, device="cpu") for shape in shapes)
    try:
        Problem.build(zeros if several else zeros[0], oracle, {})
    except InvalidInputError as error:
        tried = " and ".join(map(str, shapes))
        raise InvalidInputError(
            f"--event-shape must be given, because the oracle does not accept the default {tried}: {error}"
        ) from error
    return shapes if several else shapes[0]


# ----------------------------------------------------------------------------- arguments


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.replace("x", ",").strip("(),").split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"the shape must be sizes separated by commas, as in 4,4; got {text!r}"
        ) from None


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"an option must have the form OPTION=VALUE, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _positive(text: str) -> int:
    number = int(text) if text.lstrip("-").isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"the number must be an integer of at least 1, got {text!r}")
    return number
