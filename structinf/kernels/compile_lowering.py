"""numba's code generation for kernels, with the same results in less time. Importing this module imports numba."""

from __future__ import annotations

import operator
from collections import Counter
from functools import cached_property
from typing import Any

from numba.core import analysis, config, ir, types
from numba.core.errors import new_error_context  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.lowering import Lower
from numba.core.postproc import PostProcessor, VariableLifetime
from numba.core.transforms import canonicalize_cfg

__all__ = ["KernelLower", "WideLower", "insert_deletions"]


class _Lifetime(VariableLifetime):
    @cached_property
    def usedefs(self) -> Any:
        return _uses_and_definitions(self._blocks)


def _variables(instruction: Any) -> list[str]:
    """Return the names of all variables in an instruction."""
    if type(instruction) is ir.Assign:
        value = instruction.value
        names = [instruction.target.name]
        if type(value) is ir.Var:
            names.append(value.name)
        elif isinstance(value, ir.Inst):
            names += [v.name for v in value.list_vars()]
        return names
    return [v.name for v in instruction.list_vars()]


def _uses_and_definitions(blocks: Any) -> Any:
    """Return the variables that each block uses before it defines them, and those it defines."""
    uses, definitions = {}, {}
    for offset, block in blocks.items():
        uses[offset], definitions[offset] = used, defined = set(), set()
        for statement in block.body:
            names = _variables(statement)
            if type(statement) is ir.Assign and names[0] not in names[1:]:
                defined.add(names[0])
            used.update([name for name in names if name not in defined])
    return analysis._use_defs_result(usemap=uses, defmap=definitions)


def insert_deletions(code: Any) -> None:
    """Insert a statement after the last use of each variable, as numba's pass does."""
    code.blocks = canonicalize_cfg(code.blocks)
    code.variable_lifetime = _Lifetime(code.blocks)
    code.generator_info = None
    PostProcessor(code)._insert_var_dels()


class KernelLower(Lower):
    """Writes LLVM code without the text of each statement, and looks up the signature of an operation once."""

    def init(self) -> None:
        super().init()
        self.context.remember_implementations()
        self._is_quiet = not (
            self.context.enable_debuginfo
            or getattr(config, "DEBUG_JIT", 0)
            or getattr(self, "_loc_notify_registry", None)
        )

    def _find_singly_assigned_variable(self) -> None:
        """Find the variables that are assigned once, before their first use in the same block."""
        found = self.func_ir.variable_lifetime.usedefs
        count = Counter(s.target.name for block in self.blocks.values() for s in block.find_insts(ir.Assign))
        defined = set().union(*found.defmap.values()).difference(*found.usemap.values())
        self._singly_assigned_vars = {name for name in defined if count[name] == 1}
        self._blk_local_varmap = {}

    def lower_block(self, block: Any) -> None:
        self.pre_block(block)
        for statement in block.body:
            self.loc = statement.loc
            try:
                self.lower_inst(statement)
            except Exception:
                with new_error_context('lowering "{inst}" at {loc}', inst=statement, loc=self.loc):
                    raise
        self.post_block(block)

    def lower_inst(self, inst: Any) -> None:
        kind = type(inst) if self._is_quiet else None
        if kind is ir.Assign and type(inst.value) is not ir.Arg:
            name = inst.target.name
            self.storevar(self.lower_assign(self.fndesc.typemap[name], inst), name)
        elif kind is ir.Del:
            self.delvar(inst.value)
        elif kind is ir.SetItem:
            self.lower_setitem(inst.target, inst.index, inst.value, self.fndesc.calltypes[inst])
        else:
            super().lower_inst(inst)

    def lower_assign(self, ty: Any, inst: Any) -> Any:
        if isinstance(ty, types.Dispatcher) and type(inst.value) is ir.Global:
            return self.context.get_dummy_value()  # a call needs the type alone, not the address of the Python object
        return super().lower_assign(ty, inst)

    def _operate(self, operation: Any, signature: Any, variables: list[Any], values: list[Any]) -> Any:
        """Return the result of an operation on the values of variables, converted to the types of ``signature``."""
        context = self.context.typing_context
        function = context.resolve_value_type(operation)
        implementation = self.context.get_function(
            function, context.resolve_function_type(function, signature.args, {})
        )
        converted = [
            self.context.cast(self.builder, value, self.fndesc.typemap[variable.name], kind)
            for value, variable, kind in zip(values, variables, signature.args, strict=True)
        ]
        return implementation(self.builder, converted)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        if expr.static_lhs is not ir.UNDEFINED or expr.static_rhs is not ir.UNDEFINED:
            return super().lower_binop(resty, expr, op)
        signature, variables = self.fndesc.calltypes[expr], [expr.lhs, expr.rhs]
        result = self._operate(op, signature, variables, [self.loadvar(v.name) for v in variables])
        return self.context.cast(self.builder, result, signature.return_type, resty)

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        values = [self.loadvar(value.name), self.loadvar(index.name)]
        result = self._operate(operator.getitem, signature, [value, index], values)
        return self.context.cast(self.builder, result, signature.return_type, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        target, value, index = [self.loadvar(v.name) for v in (target_var, value_var, index_var)]
        variables = [target_var, index_var, value_var]
        return self._operate(operator.setitem, signature, variables, [target, index, value])


class WideLower(KernelLower):
    """Lets LLVM's vectoriser use vectors of 512 bits. Its own limit on most processors with AVX-512 is 256 bits."""

    def lower_normal_function(self, fndesc: Any) -> None:
        super().lower_normal_function(fndesc)
        # llvmlite writes each attribute as it is, but its method ``add`` refuses attributes with a value.
        set.add(self.function.attributes, '"prefer-vector-width"="512"')
