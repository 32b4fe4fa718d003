"""numba's type inference for kernels, with the same results in less time. Importing this module imports numba.

numba runs all constraints of a function again until no type changes, and looks up the signature of each operation
among all its templates each time. Here a constraint runs again only if a type that it reads has changed, and each
operation is looked up once for its types.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from numba.core import errors, typeinfer, types
from numba.core.compiler_machinery import register_pass
from numba.core.cpu import CPUContext
from numba.core.errors import WarningsFixer  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.typed_passes import NopythonTypeInference
from numba.core.typing.context import Context
from numba.core.utils import OPERATORS_TO_BUILTINS

from .fast_builtins import FUNCTIONS

__all__ = ["InferTypes", "is_outermost", "target_view", "typing_view"]


_FUNCTIONS = {type(operator.add), type(FUNCTIONS[min])}
"""Types of functions, not of compiled ones."""

_OPERATION: Any = types.Function


class _TypingView(Context):
    """numba's typing context, with a memory of signatures and attributes. Both share all other data."""

    _signatures: dict[Any, Any]
    _attributes_of_types: dict[Any, Any]
    _types_of_functions: dict[Any, Any]
    _original: Context

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original  # numba's templates know functions by the context

    def __hash__(self) -> int:
        return hash(self._original)

    def refresh(self) -> None:
        """Do nothing, since the compiler of a kernel refreshes numba's own context once."""

    def forget_functions(self) -> None:
        """Look up the types of functions again, which may have got new templates."""
        self._types_of_functions.clear()

    def resolve_value_type(self, val: Any) -> Any:
        if type(val) not in _FUNCTIONS:
            return super().resolve_value_type(val)
        known = self._types_of_functions.get(val)
        if known is None:
            known = self._types_of_functions[val] = super().resolve_value_type(val)
        return known

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if not isinstance(func, _OPERATION):
            return super().resolve_function_type(func, args, kws)
        names = tuple(kws) if kws else ()
        key = (func._code, names, *[a._code for a in args], *[kws[name]._code for name in names])
        known = self._signatures.get(key)
        if known is None:
            known = self._signatures[key] = super().resolve_function_type(func, args, kws)
        return known

    def resolve_getattr(self, typ: Any, attr: str) -> Any:
        if isinstance(typ, types.Module):
            return super().resolve_getattr(typ, attr)
        key = typ._code, attr
        known = self._attributes_of_types.get(key)
        if known is None:
            known = super().resolve_getattr(typ, attr)
            if not isinstance(known, types.BoundFunction):
                self._attributes_of_types[key] = known
        return known


class _TargetView(CPUContext):
    """numba's CPU context, with a memory of implementations and sizes. Both share all other data."""

    _sizes: dict[Any, int]
    _implementations: tuple[Any, dict[Any, Any]] = (None, {})

    def refresh(self) -> None:
        """Install new functions of the known registries, such as intrinsics at their first use."""
        for registry in list(self._registries):
            self.install_registry(registry)

    def remember_implementations(self) -> None:
        """Look up each implementation once, for the function that the context belongs to."""
        self._implementations = (self, {})

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        owner, known = self._implementations
        if owner is not self or not isinstance(fn, _OPERATION) or sig.recvr is not None:
            return super().get_function(fn, sig, _firstcall)
        key = (fn._code, sig.return_type._code, *[a._code for a in sig.args])
        found = known.get(key)
        if found is None:
            found = known[key] = super().get_function(fn, sig, _firstcall)
        return found

    def get_abi_sizeof(self, ty: Any) -> int:
        size = self._sizes.get(ty)
        if size is None:
            size = self._sizes[ty] = super().get_abi_sizeof(ty)
        return size


@functools.cache
def typing_view(context: Any) -> Any:
    """Return the typing context for kernels that shares the data of numba's own."""
    memory = {"_signatures": {}, "_attributes_of_types": {}, "_types_of_functions": {}, "_original": context}
    view = object.__new__(type("_TypingView", (_TypingView,), memory))
    view.__dict__ = context.__dict__
    return view


@functools.cache
def target_view(context: Any) -> Any:
    """Return the CPU context for kernels that shares the data of numba's own."""
    view = object.__new__(type("_TargetView", (_TargetView,), {"_sizes": {}}))
    view.__dict__ = context.__dict__
    return view


def _names(constraint: Any) -> tuple[str, ...] | None:
    """Return the variables whose types the constraint reads; None if unknown."""
    kind = type(constraint)
    if kind is typeinfer.Propagate or kind is typeinfer.ArgConstraint:
        return (constraint.src,)
    if kind is typeinfer.GetAttrConstraint:
        return (constraint.value.name,)
    if kind is typeinfer.IntrinsicCallConstraint and not constraint.kws and constraint.vararg is None:
        return tuple([a.name for a in constraint.args])
    if kind is typeinfer.CallConstraint and not constraint.kws and constraint.vararg is None:
        return (constraint.func, *[a.name for a in constraint.args])
    if kind is typeinfer.PairFirstConstraint or kind is typeinfer.PairSecondConstraint:
        return (constraint.pair.name,)
    if kind is typeinfer.BuildTupleConstraint:
        return tuple([i.name for i in constraint.items])
    if kind is typeinfer.SetItemConstraint:
        return (constraint.target.name, constraint.index.name, constraint.value.name)
    return None


class _Inferer(typeinfer.TypeInferer):
    def typeof_global(self, inst: Any, target: Any, gvar: Any) -> None:
        if type(gvar.value) in _FUNCTIONS:
            self.sentry_modified_builtin(inst, gvar)
            self.lock_type(target.name, self.context.resolve_value_type(gvar.value), loc=inst.loc)
            self.assumed_immutables.add(inst)
        else:
            super().typeof_global(inst, target, gvar)

    def propagate(self, raise_errors: bool = True) -> Any:
        typevars, refine_map = self.typevars, self.refine_map
        work = [(c, _names(c)) for c in self.constraints.constraints]
        seen: list[Any] = [None] * len(work)
        before: Any = None
        after = [v.type for v in typevars.values()]
        failed = True
        while before != after:
            before, failed = after, False
            for place, (constraint, names) in enumerate(work):
                if names is not None:
                    inputs = [typevars[name].type for name in names]
                    if inputs == seen[place]:
                        if type(constraint) is typeinfer.Propagate:
                            refine_map[constraint.dst] = constraint
                        elif type(constraint) is typeinfer.GetAttrConstraint:
                            refine_map[constraint.target] = constraint
                        continue
                    seen[place] = inputs
                try:
                    self._run(constraint)
                except errors.TypingError:
                    failed, seen[place] = True, None
            after = [v.type for v in typevars.values()]
        # numba's own loop explains an error.
        return super().propagate(raise_errors) if failed else None

    def _run(self, constraint: Any) -> None:
        """Run a constraint, without the contexts of error messages."""
        kind = type(constraint)
        if kind is typeinfer.Propagate:
            self.copy_type(constraint.src, constraint.dst, loc=constraint.loc)
            self.refine_map[constraint.dst] = constraint
        elif kind is typeinfer.GetAttrConstraint:
            for owner in self.typevars[constraint.value.name].get():
                found = self.context.resolve_getattr(owner, constraint.attr)
                if found is None:
                    raise errors.UntypedAttributeError(owner, constraint.attr, loc=constraint.loc)
                self.add_type(constraint.target, found, loc=constraint.loc)
            self.refine_map[constraint.target] = constraint
        elif kind is typeinfer.CallConstraint:
            constraint.resolve(self, self.typevars, self.typevars[constraint.func].getone())
        elif kind is typeinfer.IntrinsicCallConstraint:
            function = constraint.func
            if function in OPERATORS_TO_BUILTINS:
                function = self.resolve_value_type(None, function)
            constraint.resolve(self, self.typevars, function)
        else:
            constraint(self)


def is_outermost(context: Any) -> bool:
    """Return whether the compilation that begins is no part of the compilation of a kernel or helper."""
    return not any(type(frame.typeinfer) is _Inferer for frame in context.callstack)


@register_pass(mutates_CFG=True, analysis_only=False)
class InferTypes(NopythonTypeInference):
    """numba's pass, without a check of warnings at each constraint."""

    _name = "structinf_infer_types"

    def run_pass(self, state: Any) -> bool:
        code, warnings = state.func_ir, WarningsFixer(errors.NumbaWarning)
        inferer = _Inferer(state.typingctx, code, warnings)
        frame = state.typingctx.callstack.register(state.targetctx.target, inferer, code.func_id, state.args)
        with frame, warnings:
            for index, (name, kind) in enumerate(zip(code.arg_names, state.args, strict=True)):
                inferer.seed_argument(name, index, kind)
            if state.return_type is not None:
                inferer.seed_return(state.return_type)
            inferer.build_constraint()
            inferer.propagate()
            state.typemap, state.return_type, state.calltypes = inferer.unify()
        state.typing_errors = None
        return True
