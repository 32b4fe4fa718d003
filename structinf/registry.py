"""Names for plugins: register by decorator or call, or through entry points loaded on first use."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Generic, TypeGuard, TypeVar, overload

import numpy as np
from torch import Tensor

from .errors import InvalidInputError, PluginError, UnknownNameError
from .oracle import Oracle

__all__ = ["ORACLES", "Registry", "did_you_mean", "is_frozen_dataclass", "signature_options"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Maps names to classes (or functions) that make objects of one kind.

    Parameters
    ----------
    kind : str
        What is registered, for messages: ``"oracle"``.
    base : type
        What every made object must be an instance of.
    entry_point_group : str
        The entry-point group in which other distributions declare objects of this kind.
    """

    def __init__(self, kind: str, base: type[T], entry_point_group: str) -> None:
        self.kind = kind
        self.base = base
        self.entry_point_group = entry_point_group
        self._registered: dict[str, Callable[..., T]] = {}
        # Looking into distributions takes milliseconds: once a name.
        self._factories: dict[str, Callable[..., T]] = {}
        self._options: dict[str, dict[str, bool]] = {}
        # The objects of names without options.
        self._shared: dict[str, T] = {}
        # Registries for other arguments of the same calls.
        self.others: tuple[Registry[Any], ...] = ()

    @overload
    def register(self, name: str) -> Callable[[F], F]: ...
    @overload
    def register(self, name: str, factory: F) -> F: ...
    def register(self, name: str, factory: Any = None) -> Any:
        """Register ``factory`` under ``name``. Without a factory, return a decorator.

        A factory with the module and the qualified name of the registered factory replaces the registered factory, so
        that a notebook cell can run twice. Any other factory under a taken name raises PluginError. A name consists of
        letters, digits and underscores.
        """
        if inspect.isclass(name) and factory is None:
            raise TypeError(
                f"register {self.kind}: the name is missing, got only the class {_qualified_name(name)}; write "
                f'register_{self.kind}("a_name") above the class'
            )
        if not _is_word(name):
            raise (InvalidInputError if isinstance(name, str) else TypeError)(
                f"register {self.kind}: the name must be a word of letters, digits and underscores, got {name!r}; "
                f"choose a name such as 'my_{self.kind}'"
            )
        if factory is None:
            return lambda f: self.register(name, f)
        if not _is_callable(factory):
            raise TypeError(f"register {self.kind} {name!r}: factory must be a class or function, got {factory!r}")
        if isinstance(factory, self.base) or _is_unrelated_class(factory, self.base):
            raise TypeError(
                f"register {self.kind} {name!r}: factory must be a subclass of {self.base.__name__}, or a "
                f"function that returns an object of the class, got {factory!r}"
            )
        registered = self._registered.get(name)
        if registered is not None and _qualified_name(registered) != _qualified_name(factory):
            raise PluginError(
                f"{self.kind} name {name!r} is taken by {_qualified_name(registered)}; "
                f"register {_qualified_name(factory)} under another name"
            )
        for entry_point in self._entry_points.get(name, []):
            if _package(entry_point.value) != _package(_qualified_name(factory)):
                raise PluginError(
                    f"{self.kind} name {name!r} is taken by {_describe_entry_point(entry_point)}; register another name"
                )
        self._registered[name] = factory
        self._factories.pop(name, None)
        self._options.pop(name, None)
        self._shared.pop(name, None)
        _set_registered_name(factory, name)
        return factory

    def names(self) -> list[str]:
        """All known names, sorted; loads no plugin."""
        return sorted({*self._registered, *self._entry_points})

    def factory(self, name: str) -> Callable[..., T]:
        """What makes the object called ``name``; loads its plugin."""
        if name in self._factories:
            return self._factories[name]
        declared = self._entry_points.get(name, [])
        local = self._registered.get(name)
        owners = {entry_point.value.replace(":", "."): _describe_entry_point(entry_point) for entry_point in declared}
        if local is not None:
            owners.setdefault(_qualified_name(local), f"{_qualified_name(local)}, registered at run time")
        if len(owners) > 1:
            raise PluginError(
                f"{self.kind} name {name!r} is declared twice: by {' and by '.join(owners.values())}; "
                "uninstall one or pass the object itself instead of its name"
            )
        if local is None and not declared:
            raise UnknownNameError(self._unknown_name_message(name))
        if local is None and not _is_word(name):
            raise PluginError(
                f"{self.kind} {name!r} of {_describe_entry_point(declared[0])} cannot be loaded: a name must be a word "
                "of letters, digits and underscores; rename the entry point"
            )
        factory = self._factories[name] = local if local is not None else self._load(name, declared[0])
        return factory

    def _load(self, name: str, entry_point: EntryPoint) -> Callable[..., T]:
        plugin = f"{self.kind} {name!r} of {_describe_entry_point(entry_point)}"
        try:
            factory = entry_point.load()
        except KeyboardInterrupt:  # Ctrl-C during the import
            raise
        except BaseException as error:  # a module that calls sys.exit() must not end the program
            raise PluginError(f"{plugin} cannot be loaded: {error!r}; repair or uninstall the distribution") from error
        if not _is_callable(factory):
            raise PluginError(f"{plugin} must be a class or function, got {factory!r}; correct the entry point")
        if isinstance(factory, self.base) or _is_unrelated_class(factory, self.base):
            raise PluginError(
                f"{plugin} must be a subclass of {self.base.__name__}, or a function that returns an object of the "
                f"class, got {factory!r}; correct the entry point"
            )
        _set_registered_name(factory, name)
        return factory

    def get(self, item: str | T, **options: Any) -> T:
        """The object called ``item``, made with ``options``; an object is returned as it is."""
        if not isinstance(item, str):
            if not isinstance(item, self.base):
                received, hint = repr(item), ""
                if isinstance(item, Tensor | tuple | list) and self.kind == "oracle":
                    received = f"a {type(item).__name__}"
                    hint = "; pass the scores first, several tensors as a tuple, then the oracle"
                elif inspect.isclass(item):
                    hint = f"; call it first: {item.__name__}(...)"
                elif inspect.isroutine(item) and self.kind == "oracle":
                    hint = (
                        "; structinf.oracle_from_function(f, event_ndim=...) makes an oracle of a function of the "
                        "scores of one instance"
                    )
                raise TypeError(f"{self.kind} must be a name or {self.base.__name__} object, got {received}{hint}")
            if options:
                raise TypeError(
                    f"options {sorted(options)} are accepted only with a name; set the options of the object {item!r} "
                    "in its constructor"
                )
            return item
        factory = self.factory(item)
        shared = None if options else self._shared.get(item)
        if shared is not None and type(shared) is factory:
            return shared
        known = self._options_of(item)
        unknown = [key for key in options if key not in known]
        if unknown:
            raise TypeError(
                f"{self.kind} {item!r} has no option {unknown[0]!r} (it has: {', '.join(known) or 'none'})"
                f"{did_you_mean(unknown[0], list(known))}"
            )
        missing = [key for key, needed in known.items() if needed and key not in options]
        if missing:
            raise TypeError(f"{self.kind} {item!r} needs the option {missing[0]!r}: pass {missing[0]}=...")
        # Numbers of NumPy, such as np.float32, become Python numbers: options are compared, printed and saved.
        numbers = {key: value.item() for key, value in options.items() if isinstance(value, np.number)}
        try:
            instance = factory(**{**options, **numbers} if numbers else options)
        except SystemExit as error:
            raise PluginError(
                f"{self.kind} {item!r} cannot be constructed: {error!r}; a plugin must raise an error for its options"
            ) from error
        if not isinstance(instance, self.base):
            raise PluginError(
                f"{self.kind} {item!r} must construct an object of {self.base.__name__}, got {instance!r}"
            )
        if not options and type(instance) is factory and _can_share(type(instance)):
            self._shared[item] = instance
        return instance

    def options(self, name: str) -> list[str]:
        """Names of the options that the object called ``name`` takes."""
        return list(self._options_of(name))

    def required(self, name: str) -> list[str]:
        """Names of the options without a default."""
        return [key for key, needed in self._options_of(name).items() if needed]

    def _options_of(self, name: str) -> dict[str, bool]:
        """Names of the options, and whether each is needed; looked up once a name."""
        # No lru_cache: torch.compile warns of it, and looks through it.
        if name not in self._options:
            self._options[name] = signature_options(self.factory(name))
        return self._options[name]

    @cached_property
    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        """Entry points by name; the same object declared again by another copy of its metadata counts once."""
        found: dict[str, list[EntryPoint]] = {}
        for entry_point in entry_points(group=self.entry_point_group):
            rows = found.setdefault(entry_point.name, [])
            if all(row.value != entry_point.value for row in rows):
                rows.append(entry_point)
        return found

    def _unknown_name_message(self, name: str) -> str:
        known = self.names()
        other = next((r for r in self.others if name in r.names()), None)
        if other is not None:
            return (
                f"no {self.kind} is called {name!r}; {name!r} is the name of the argument {other.kind}: pass the "
                "oracle first, then the relaxation"
            )
        close = did_you_mean(name, known, self._search_terms()) or "."
        return f"no {self.kind} is called {name!r}{close} Known: {', '.join(known) or 'none'}"

    def _search_terms(self) -> dict[str, list[str]]:
        """Names by the search terms of their classes; loads all plugins except those that cannot be loaded."""
        found: dict[str, list[str]] = {}
        for name in self.names():
            try:
                terms = getattr(self.factory(name), "search_terms", ())
            except PluginError:
                continue
            for term in terms if isinstance(terms, tuple | list) else ():
                if not isinstance(term, str):
                    continue  # an error of a plugin must not hide the message about the unknown name
                found.setdefault(_normalize(term), []).append(name)
        return found


def is_frozen_dataclass(kind: type) -> bool:
    """Return whether the class itself, and not just a parent class, is a frozen dataclass."""
    parameters = vars(kind).get("__dataclass_params__")
    return parameters is not None and parameters.frozen


def _can_share(kind: type) -> bool:
    """Return whether all calls by a name can use one object: nobody can change it, as for the library's own classes."""
    return is_frozen_dataclass(kind) and _package(kind.__module__) in ("structinf", "structinf_oracles")


def signature_options(factory: Callable[..., Any]) -> dict[str, bool]:
    """Names of the options that ``factory`` takes, and whether each is needed; none of a class written in C."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:
        return {}
    return {p.name: p.default is p.empty for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def did_you_mean(word: str, known: list[str], search_terms: Mapping[str, list[str]] = MappingProxyType({})) -> str:
    """Return a clause that suggests names for ``word``, such as "; did you mean 'chain'?"; empty without a suggestion.

    The suggestions are the names with ``word`` as a search term, else names of a close spelling, else names that begin
    with ``word``, of at least three letters, else the names of search terms of a close spelling.
    """
    wanted = _normalize(word)
    names: Iterable[str] = (
        search_terms.get(wanted)
        or difflib.get_close_matches(wanted, dict.fromkeys(known))
        or (list(dict.fromkeys(name for name in known if name.startswith(wanted)))[:3] if len(wanted) > 2 else [])
    )
    if not names:
        close = difflib.get_close_matches(wanted, search_terms, cutoff=0.8)
        names = dict.fromkeys(name for term in close for name in search_terms[term])
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def _normalize(word: str) -> str:
    return re.sub(r"[\s/-]+", "_", word.strip().lower())


def _is_word(name: Any) -> bool:
    """Whether ``name`` is a string of letters, digits and underscores."""
    return isinstance(name, str) and re.fullmatch(r"\w+", name) is not None


def _is_callable(factory: Any) -> TypeGuard[Callable[..., Any]]:
    return callable(factory)


def _qualified_name(factory: Any) -> str:
    return f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', repr(factory))}"


def _is_unrelated_class(factory: Any, base: type) -> bool:
    return inspect.isclass(factory) and not issubclass(factory, base)


def _package(address: str) -> str:
    return address.split(":")[0].split(".")[0]


def _describe_entry_point(entry_point: EntryPoint) -> str:
    distribution = entry_point.dist
    origin = f"distribution {distribution.name} {distribution.version}" if distribution else "an unknown distribution"
    return f"{entry_point.value} ({origin})"


def _set_registered_name(factory: Any, name: str) -> None:
    """Messages call an object by its registered name unless its class says otherwise."""
    if inspect.isclass(factory) and not factory.__dict__.get("name"):
        factory.name = name  # type: ignore[attr-defined]


ORACLES: Registry[Oracle] = Registry("oracle", Oracle, "structinf.oracles")
"""The oracles by name."""
