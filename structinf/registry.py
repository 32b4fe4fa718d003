"""Names for plugins: register by decorator or call, or through entry points loaded on first use."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeGuard, TypeVar, overload

from .errors import PluginError, UnknownNameError

__all__ = ["Registry", "did_you_mean", "options_of"]

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
    group : str
        Entry-point group in which other distributions declare theirs.
    """

    def __init__(self, kind: str, base: type[T], group: str) -> None:
        self.kind = kind
        self.base = base
        self.group = group
        self._local: dict[str, Callable[..., T]] = {}
        # Looking into distributions takes milliseconds: once a name.
        self._loaded: dict[str, Callable[..., T]] = {}
        self._options: dict[str, dict[str, bool]] = {}

    @overload
    def register(self, name: str) -> Callable[[F], F]: ...
    @overload
    def register(self, name: str, factory: F) -> F: ...
    def register(self, name: str, factory: Any = None) -> Any:
        """Register ``factory`` under ``name``; without a factory, a decorator.

        Registering anew what has the same module and qualified name replaces it, so that a
        notebook cell can be run twice; anything else under a taken name is a PluginError.
        """
        if factory is None:
            return lambda f: self.register(name, f)
        if not _is_callable(factory):
            raise TypeError(f"register {self.kind} {name!r}: a class or function is needed, got {factory!r}")
        if isinstance(factory, self.base) or _is_other_class(factory, self.base):
            raise TypeError(
                f"register {self.kind} {name!r}: a subclass of {self.base.__name__}, or a function that makes one, is "
                f"needed, got {factory!r}"
            )
        taken = self._local.get(name)
        if taken is not None and _address(taken) != _address(factory):
            raise PluginError(
                f"{self.kind} name {name!r} is taken by {_address(taken)}; "
                f"register {_address(factory)} under another name"
            )
        for point in self._declared.get(name, []):
            if _package(point.value) != _package(_address(factory)):
                raise PluginError(f"{self.kind} name {name!r} is taken by {_owner(point)}; register another name")
        self._local[name] = factory
        self._loaded.pop(name, None)
        self._options.pop(name, None)
        _give_name(factory, name)
        return factory

    def names(self) -> list[str]:
        """All known names, sorted; loads no plugin."""
        return sorted({*self._local, *self._declared})

    def factory(self, name: str) -> Callable[..., T]:
        """What makes the object called ``name``; loads its plugin."""
        if name in self._loaded:
            return self._loaded[name]
        declared = self._declared.get(name, [])
        local = self._local.get(name)
        owners = {point.value.replace(":", "."): _owner(point) for point in declared}
        if local is not None:
            owners.setdefault(_address(local), f"{_address(local)}, registered at run time")
        if len(owners) > 1:
            raise PluginError(
                f"{self.kind} name {name!r} is declared twice: by {' and by '.join(owners.values())}; "
                "uninstall one or pass the object itself instead of its name"
            )
        if local is None and not declared:
            raise UnknownNameError(self._unknown(name))
        factory = self._loaded[name] = local if local is not None else self._load(name, declared[0])
        return factory

    def _load(self, name: str, point: EntryPoint) -> Callable[..., T]:
        try:
            factory = point.load()
        except Exception as error:
            raise PluginError(f"{self.kind} {name!r} of {_owner(point)} cannot be loaded: {error!r}") from error
        if not _is_callable(factory):
            raise PluginError(f"{self.kind} {name!r} of {_owner(point)} is no class or function: {factory!r}")
        _give_name(factory, name)
        return factory

    def get(self, item: str | T, **options: Any) -> T:
        """The object called ``item``, made with ``options``; an object is returned as it is."""
        if isinstance(item, self.base):
            if options:
                raise TypeError(f"options {sorted(options)} go with a name; {item!r} has its options already")
            return item
        if not isinstance(item, str):
            hint = f"; call it first: {item.__name__}(...)" if inspect.isclass(item) else ""
            raise TypeError(f"a name or {self.base.__name__} object is needed, got {item!r}{hint}")
        factory = self.factory(item)
        known = self.options(item)
        unknown = [key for key in options if key not in known]
        if unknown:
            raise TypeError(
                f"{self.kind} {item!r} has no option {unknown[0]!r} (it has: {', '.join(known) or 'none'})"
                f"{did_you_mean(unknown[0], known)}"
            )
        missing = [key for key in self.required(item) if key not in options]
        if missing:
            raise TypeError(f"{self.kind} {item!r} needs the option {missing[0]!r}: pass {missing[0]}=...")
        made = factory(**options)
        if not isinstance(made, self.base):
            raise PluginError(f"{self.kind} {item!r} made {made!r}, which is no {self.base.__name__}")
        return made

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
            self._options[name] = options_of(self.factory(name))
        return self._options[name]

    @cached_property
    def _declared(self) -> dict[str, list[EntryPoint]]:
        """Entry points by name; the same object declared again by another copy of its metadata counts once."""
        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            rows = found.setdefault(point.name, [])
            if all(row.value != point.value for row in rows):
                rows.append(point)
        return found

    def _unknown(self, name: str) -> str:
        known = self.names()
        close = did_you_mean(name, known) or "."
        return f"no {self.kind} is called {name!r}{close} Known: {', '.join(known) or 'none'}"


def options_of(factory: Callable[..., Any]) -> dict[str, bool]:
    """Names of the options that ``factory`` takes, and whether each is needed; none of a class written in C."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:
        return {}
    return {p.name: p.default is p.empty for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def did_you_mean(word: str, known: list[str]) -> str:
    """A clause that names the close ones among ``known``; empty if none is."""
    close = difflib.get_close_matches(word, known)
    return f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


def _is_callable(factory: Any) -> TypeGuard[Callable[..., Any]]:
    return callable(factory)


def _address(factory: Any) -> str:
    return f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', repr(factory))}"


def _is_other_class(factory: Any, base: type) -> bool:
    return inspect.isclass(factory) and not issubclass(factory, base)


def _package(address: str) -> str:
    return address.split(":")[0].split(".")[0]


def _owner(point: EntryPoint) -> str:
    distribution = point.dist
    origin = f"distribution {distribution.name} {distribution.version}" if distribution else "an unknown distribution"
    return f"{point.value} ({origin})"


def _give_name(factory: Any, name: str) -> None:
    """Messages call an object by its registered name unless its class says otherwise."""
    if inspect.isclass(factory) and not factory.__dict__.get("name"):
        factory.name = name  # type: ignore[attr-defined]
