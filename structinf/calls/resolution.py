"""Resolve names to objects: registries, options of named objects, and checks of combinations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, cast

from ..errors import PluginError, UnsupportedError
from ..oracle import Oracle
from ..registry import ORACLES, Registry, did_you_mean
from ..relaxation import RELAXATIONS, Relaxation
from .arguments import OnInfeasible, mask_hint
from .problem import Problem

__all__ = [
    "ORACLES",
    "RELAXATIONS",
    "check_supported",
    "get_oracle",
    "get_relaxation",
    "list_oracles",
    "list_relaxations",
    "prepare",
    "prepare_oracle",
    "refuse_name",
    "register_oracle",
    "register_relaxation",
    "resolve",
    "resolve_in",
    "without_instance_data",
    "works_with",
]

ORACLES.others, RELAXATIONS.others = (RELAXATIONS,), (ORACLES,)


class Serves(Protocol):
    """An object that works with a subset of the oracles: a relaxation or an estimator."""

    name: ClassVar[str]

    def label(self) -> str: ...

    def unsupported_reason(self, oracle: Oracle) -> str | None: ...


S = TypeVar("S", bound=Serves)


def register_oracle(name: str, factory: Callable[..., Oracle] | None = None) -> Any:
    """Register an oracle class under ``name``. Use it as a decorator, or call it with the class.

    Parameters
    ----------
    name : str
        The name for :func:`structinf.relax` and :func:`get_oracle`.
    factory : type or callable, optional
        The class, or a function that returns an oracle from options. Without it, the call returns a decorator.

    Raises
    ------
    PluginError
        If the name is taken by another class.
    """
    return ORACLES.register(name, factory)  # type: ignore[arg-type]


def register_relaxation(name: str, factory: Callable[..., Relaxation] | None = None) -> Any:
    """Register a relaxation class under ``name``. Use it as a decorator, or call it with the class.

    Parameters
    ----------
    name : str
        The name for :func:`structinf.relax` and :func:`get_relaxation`.
    factory : type or callable, optional
        The class, or a function that returns a relaxation from options. Without it, the call returns a decorator.
    """
    return RELAXATIONS.register(name, factory)  # type: ignore[arg-type]


def list_oracles() -> list[str]:
    """Return the names of all oracles: built-in oracles, installed plugins, and oracles registered at run time.

    Examples
    --------
    >>> "arborescence" in list_oracles()
    True
    """
    return ORACLES.names()


def list_relaxations() -> list[str]:
    """Return the names of all relaxations.

    Examples
    --------
    >>> "sparsemap" in list_relaxations()
    True
    """
    return RELAXATIONS.names()


def get_oracle(oracle: str | Oracle, **options: Any) -> Oracle:
    """Return the oracle of a name and options; return an object unchanged.

    Parameters
    ----------
    oracle : str or Oracle
        A name of :func:`list_oracles`, or an object.
    **options
        Options of the oracle, for a name. The classes of the reference page "Structures" list the options.

    Raises
    ------
    UnknownNameError
        If no oracle has this name. The message suggests names and lists the known names.
    TypeError
        If the oracle does not have one of the options.
    PluginError
        If the plugin cannot be loaded, or two distributions declare the name.

    Examples
    --------
    >>> get_oracle("arborescence", single_root=True)
    Arborescence(single_root=True)
    """
    return ORACLES.get(oracle, **options)


def get_relaxation(relaxation: str | Relaxation, **options: Any) -> Relaxation:
    """Return the relaxation of a name and options; return an object unchanged.

    Parameters
    ----------
    relaxation : str or Relaxation
        A name of :func:`list_relaxations`, or an object.
    **options
        Options of the relaxation, for a name. The classes of the reference page "Relaxations" list the options.

    Raises
    ------
    UnknownNameError, TypeError, PluginError
        In the cases listed for :func:`get_oracle`.

    Examples
    --------
    >>> get_relaxation("marginals", temperature=0.5)
    Marginals(temperature=0.5)
    """
    return RELAXATIONS.get(relaxation, **options)


def resolve(
    oracle: str | Oracle, relaxation: str | Relaxation, options: Mapping[str, Any], kind: type[Relaxation] = Relaxation
) -> tuple[Oracle, Relaxation]:
    """Call :func:`resolve_in` with the registry of relaxations; error messages list relaxations of ``kind``."""
    return resolve_in(RELAXATIONS, oracle, relaxation, options, kind)


def refuse_name(attribute: str, value: Any) -> None:
    """Raise TypeError if the attribute ``oracle`` or ``relaxation`` of a module is about to become a string.

    Parameters
    ----------
    attribute : str
        The name of an attribute of a module.
    value : object
        The value that the attribute is about to get.
    """
    if isinstance(value, str) and attribute in ("oracle", "relaxation"):
        raise TypeError(
            f"the attribute {attribute} must be an object, got the name {value!r}; make a new module, or set the "
            f"attribute to si.get_{attribute}({value!r})"
        )


def resolve_in(
    registry: Registry[S],
    oracle: str | Oracle,
    item: str | S,
    options: Mapping[str, Any],
    kind: type = object,
) -> tuple[Oracle, S]:
    """Resolve both names, and pass each option to its owner.

    Raises TypeError for an option of neither or of both, and UnsupportedError for an unsupported combination.
    """
    shares = _split_options(registry, oracle, item, options) if options else ({}, {})
    found = ORACLES.get(oracle, **shares[0]), registry.get(item, **shares[1])
    check_supported(*found, registry, kind)
    return found


def _split_options(
    registry: Registry[S], oracle: str | Oracle, item: str | S, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the oracle and of the item; raise TypeError for an option of neither or of both."""
    known = [
        ORACLES.options(oracle) if isinstance(oracle, str) else [],
        registry.options(item) if isinstance(item, str) else [],
    ]
    shares: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in options.items():
        owners = [i for i in (0, 1) if key in known[i]]
        if len(owners) == 2:
            raise TypeError(
                f"the option {key!r} is ambiguous, because both {oracle} and {item} have it; set it in "
                f"get_oracle({oracle!r}, ...) or get_{registry.kind}({item!r}, ...) and pass the object"
            )
        if not owners:
            owners = list(zip((oracle, item), known, strict=True))
            raise TypeError(_unknown_option(key, owners, _instance_names(oracle, options)))
        shares[owners[0]][key] = value
    return shares


def _unknown_option(key: str, owners: list[tuple[Any, list[str]]], data: list[str]) -> str:
    """Return the message for a keyword of a call, given the names or objects of the call with their options.

    ``data`` holds the names of instance data.
    """
    if key in data:
        return (
            f"{key!r} is instance data, not an option; pass it with the scores: layer(theta, {key}=...), or "
            f"loss(theta, y, {key}=...)"
        )
    takes = [
        f"{one} has {', '.join(names) or 'none'}"
        if isinstance(one, str)
        else f"the object {one!r} takes options in its constructor"
        for one, names in owners
    ]
    from ..factor_graphs import FactorGraph  # only for the message

    hints = [one.hint_at_data(key) for one, _ in owners if isinstance(one, FactorGraph)]
    known = [*(name for _, names in owners for name in names), *data]
    hint = "".join(hints) or did_you_mean(key, known) or mask_hint(key, data)
    return f"there is no option {key!r} ({'; '.join(takes)}; instance data: {', '.join(data) or 'none'}){hint}"


def check_supported(oracle: Oracle, item: Serves, registry: Registry[Any] = RELAXATIONS, kind: type = object) -> None:
    """Raise UnsupportedError with the reason and the alternatives of ``kind`` if the combination is unsupported."""
    missing = item.unsupported_reason(oracle)
    if missing is not None:
        others = [name + " with default options" * (name == item.name) for name in works_with(oracle, registry, kind)]
        raise UnsupportedError(
            f"{item.label()} does not work for {oracle.label()}: {missing}. "
            f"Supported {registry.kind}s: {', '.join(others) or 'none'}"
        )


def works_with(oracle: Oracle, registry: Registry[Any] = RELAXATIONS, kind: type = object) -> list[str]:
    """Return the names in ``registry`` whose objects work with ``oracle`` with default options."""
    return [name for name in registry.names() if _default_works(name, oracle, registry, kind)]


def _default_works(name: str, oracle: Oracle, registry: Registry[Any], kind: type) -> bool:
    try:
        if registry.required(name):
            return False  # some options have no default
        made = registry.get(name)
        return isinstance(made, kind) and made.unsupported_reason(oracle) is None
    except PluginError:
        return False  # an error of a broken plugin belongs to calls with its name


def prepare(
    registry: Registry[S],
    theta: Any,
    oracle: str | Oracle,
    item: str | S,
    options: dict[str, Any],
    on_infeasible: OnInfeasible = "raise",
) -> tuple[S, Problem]:
    """Return the resolved ``item`` and the problem. ``options`` holds options of both and instance data."""
    # An error about a wrong oracle, such as a second tensor of scores, comes before an error about the item.
    of_item = registry.options(item) if options and isinstance(item, str) and isinstance(oracle, Oracle | str) else ()
    names = _instance_data(oracle, options, of_item)
    instance_data = {key: options.pop(key) for key in names}
    found_oracle, found = resolve_in(registry, oracle, item, options)
    return found, Problem.build(theta, found_oracle, instance_data, on_infeasible)


def without_instance_data(oracle: str | Oracle, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` without the instance data."""
    names = _instance_data(oracle, options)
    return {key: value for key, value in options.items() if key not in names}


def _instance_data(oracle: str | Oracle, options: Mapping[str, Any], of_item: Container[str] = ()) -> list[str]:
    """Return the keys of ``options`` that are instance data of the oracle, and not options of the same name.

    ``of_item`` holds the options of a relaxation or an estimator given by name.
    """
    if not options and isinstance(oracle, Oracle | str):
        return []
    known = _kind(oracle, options)
    of_oracle = ORACLES.options(oracle) if isinstance(oracle, str) else ()
    return [
        key
        for key, value in options.items()
        if key in known.instance_ndim
        and not ((key in of_oracle or key in of_item) and known.reads_as_option(key, value))
    ]


def _instance_names(oracle: str | Oracle, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the instance data of the oracle."""
    return list(_kind(oracle, options).instance_ndim)


def _kind(oracle: str | Oracle, options: Mapping[str, Any]) -> Oracle | type[Oracle]:
    """Return the oracle, or the class of the oracle of this name."""
    if isinstance(oracle, Oracle):
        return oracle
    if isinstance(oracle, str):
        factory: Any = ORACLES.factory(oracle)
        if not inspect.isclass(factory):  # a function may return different classes for different options
            factory = ORACLES.get(oracle, **{k: v for k, v in options.items() if k in ORACLES.options(oracle)})
        return cast("type[Oracle]", factory)
    return ORACLES.get(oracle)


def prepare_oracle(
    theta: Any, oracle: str | Oracle, options: dict[str, Any], on_infeasible: OnInfeasible = "raise"
) -> Problem:
    """Build the problem for an oracle by name or as an object; ``options`` are its options and instance data."""
    names = _instance_data(oracle, options)
    known = ORACLES.options(oracle) if isinstance(oracle, str) else []
    for key in options:
        if key not in known and key not in names:
            raise TypeError(_unknown_option(key, [(oracle, known)], _instance_names(oracle, options)))
    found = ORACLES.get(oracle, **{key: options.pop(key) for key in list(options) if key in known and key not in names})
    return Problem.build(theta, found, options, on_infeasible)
