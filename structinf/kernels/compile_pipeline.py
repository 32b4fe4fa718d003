"""numba's compilers of kernels and of their helpers. Importing this module imports numba.

A kernel is a function that Python calls, and a helper is a function that only kernels and helpers call. numba would
compile each helper to machine code, and once more as a part of each caller. Here a helper becomes
LLVM code, which LLVM optimises and compiles once, as a part of a kernel.

The compilers leave out numba's passes for closures, literal arguments, and expressions of whole arrays, which kernels
do not use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite.binding import Linkage
from numba import _dynfunc, types  # pyright: ignore[reportAttributeAccessIssue]
from numba.core import ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.ir_utils import build_definitions, get_definition, guard
from numba.core.rewrites.registry import rewrite_registry
from numba.core.ssa import reconstruct_ssa
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import IRLegalization, NativeLowering, NopythonTypeInference, PreLowerStripPhis
from numba.core.untyped_passes import GenericRewrites, IRProcessing, ReconstructSSA

from .compile_lowering import KernelLower, WideLower, insert_deletions
from .compile_typing import InferTypes, is_outermost, target_view, typing_view
from .fast_builtins import FUNCTIONS, NUMPY_FUNCTIONS

__all__ = ["HelperCompiler", "InlinedCompiler", "KernelCompiler", "WideKernelCompiler"]

_UNUSED = {
    "AnnotateTypes",
    "DumpParforDiagnostics",
    "FindLiterallyCalls",
    "InlineClosureLikes",
    "InlineInlinables",
    "InlineOverloads",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "MakeFunctionToJitFunction",
    "NoPythonSupportedFeatureValidation",
    "NopythonRewrites",
    "RewriteDynamicRaises",
    "RewriteSemanticConstants",
    "WithLifting",
}


# Operations whose results refer to their arguments' arrays. Results of other operations may be held by nothing else.
_BORROWING = {
    "build_tuple",
    "cast",
    "exhaust_iter",
    "getattr",
    "getitem",
    "getiter",
    "iternext",
    "pair_first",
    "pair_second",
    "phi",
    "static_getitem",
}


class _Flags(Flags):
    """Flags of a compilation. numba compares flags at each operation of a function, so the comparison must be fast."""

    _hash = hash(Flags())  # numba's hash depends on the names of the flags only

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> Any:
        return (isinstance(other, _Flags) and self._values == other._values) or super().__eq__(other)


class _Pass(FunctionPass):
    def __init__(self) -> None:
        super().__init__()


@register_pass(mutates_CFG=False, analysis_only=False)
class _ReplaceBuiltins(_Pass):
    """Puts the functions of :mod:`.fast_builtins` in place of those of numba."""

    _name = "structinf_replace_builtins"

    def run_pass(self, state: Any) -> bool:
        code = state.func_ir
        code.blocks = canonicalize_cfg(code.blocks)
        for block in code.blocks.values():
            for statement in block.find_insts(ir.Assign):
                value, function = statement.value, None
                if isinstance(value, ir.Global) and (value.value is min or value.value is max):
                    function = FUNCTIONS[value.value]
                elif isinstance(value, ir.Expr) and value.op == "getattr" and value.attr in NUMPY_FUNCTIONS:
                    owner = guard(get_definition, code, value.value)
                    if isinstance(owner, ir.Global) and owner.value is np:
                        function = NUMPY_FUNCTIONS[value.attr]
                if function is not None:
                    statement.value = ir.Global(function.__name__, function, value.loc)
                    code._definitions[statement.target.name] = [statement.value]
        return True


# numba's own forms of these passes find the last use of each variable once or twice. Only the last pass needs it.


@register_pass(mutates_CFG=True, analysis_only=False)
class _Rewrite(_Pass):
    """Replaces patterns of statements, such as an index that is a constant."""

    _name = "structinf_rewrite"

    def run_pass(self, state: Any) -> bool:
        code = state.func_ir
        for rewrite in [kind(state) for kind in rewrite_registry.rewrites["before-inference"]]:
            waiting = list(code.blocks.items())
            while waiting:
                key, block = waiting.pop()
                if rewrite.match(code, block, state.typemap, state.calltypes):
                    code.blocks[key] = rewrite.apply()
                    waiting.append((key, code.blocks[key]))
        return True


class _Transform(_Pass):
    transform: Any

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self.transform(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _ReconstructSSA(_Transform):
    _name = "structinf_reconstruct_ssa"
    transform = staticmethod(reconstruct_ssa)


@register_pass(mutates_CFG=True, analysis_only=False)
class _StripPhis(_Transform):
    _name = "structinf_strip_phis"
    transform = PreLowerStripPhis()._strip_phi_nodes


@register_pass(mutates_CFG=False, analysis_only=False)
class _InsertDeletions(_Pass):
    _name = "structinf_insert_deletions"

    def run_pass(self, state: Any) -> bool:
        insert_deletions(state.func_ir)
        return True


_REPLACED = {
    GenericRewrites: _Rewrite,
    IRLegalization: _InsertDeletions,
    IRProcessing: _ReplaceBuiltins,
    NopythonTypeInference: InferTypes,
    PreLowerStripPhis: _StripPhis,
    ReconstructSSA: _ReconstructSSA,
}


class _PassManager(PassManager):
    """Runs passes without analyses between them, and without messages to debuggers."""

    def _runPass(self, index: int, pss: Any, internal_state: Any) -> None:  # pyright: ignore
        pss.analysis = self._analysis
        pss.run_initialization(internal_state)
        pss.run_pass(internal_state)
        pss.run_finalizer(internal_state)


class KernelCompiler(CompilerBase):
    """Compiles a function that Python calls, and the helpers that it calls."""

    lowering: Any

    def __init__(
        self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any, flags: Any, locals: Any
    ):
        if is_outermost(typingctx):  # numba's contexts know new functions before a kernel is compiled
            typingctx.refresh()
            targetctx.refresh()
            typing_view(typingctx).forget_functions()
        typing, target = typing_view(typingctx), target_view(targetctx)
        super().__init__(typing, target, library, args, return_type, _Flags(flags), locals)
        self.state.targetctx.typing_context = typing

    def define_pipelines(self) -> list[PassManager]:
        manager = _PassManager("structinf")
        for step, description in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if step is NativeLowering:
                manager.add_pass(self.lowering, description)
            elif step.__name__ not in _UNUSED:
                manager.add_pass(_REPLACED.get(step, step), description)
        manager.finalize()
        return [manager]


class _HelperLibrary(JITCodeLibrary):
    """Unoptimised LLVM code of a helper. Kernels link the code of the functions called in the helper."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout  # LLVM optimises the kernel

    def finalize(self) -> None:
        self._raise_if_finalized()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"  # so that LLVM removes the function once it is inlined
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return the code of the helper and of all called functions, for callers compiled by numba's own compiler."""
        module = self._final_module.clone()
        for library in _used_libraries(self._linking_libraries):
            is_helper = isinstance(library, _HelperLibrary)
            module.link_in(library._final_module if is_helper else library._get_module_for_linking(), preserve=True)
        return module


def _used_libraries(direct: list[Any]) -> list[Any]:
    """Return the libraries ``direct`` and the libraries used by helpers among them, each once."""
    used, waiting = [], list(direct)
    while waiting:
        library = waiting.pop()
        if library not in used:
            used.append(library)
            if isinstance(library, _HelperLibrary):
                waiting += library._linking_libraries
    return used


class _KernelLibrary(JITCodeLibrary):
    """Machine code of a kernel. Each called function is linked once.

    numba would link a function into each caller, and then the caller with the function into the next caller.
    """

    def finalize(self) -> None:
        others = []
        for library in _used_libraries(self._linking_libraries):
            if isinstance(library, _HelperLibrary):
                self._final_module.link_in(library._final_module, preserve=True)
            else:
                others.append(library)
        self._linking_libraries = others
        super().finalize()


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerKernel(NativeLowering):
    """Gives kernels a Python wrapper, and links the code of helpers.

    The flag is set here and not in the decorator, so that kernels and helpers share compiled functions of numba.
    """

    _name = "structinf_lower_kernel"

    @property
    def lowering_class(self) -> Any:
        return KernelLower

    def run_pass(self, state: Any) -> bool:
        state.library = _KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_cpython_wrapper = False
        return super().run_pass(state)


KernelCompiler.lowering = _LowerKernel


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerWideKernel(_LowerKernel):
    _name = "structinf_lower_wide_kernel"

    @property
    def lowering_class(self) -> Any:
        return WideLower


class WideKernelCompiler(KernelCompiler):
    """Compiles a kernel whose loops use vectors of 512 bits, if the processor has them."""

    lowering = _LowerWideKernel


def _creates_references(state: Any) -> bool:
    """Return whether a function returns an array, gets a new one from an operation, or copies one into another."""
    models, kinds = state.targetctx.data_model_manager, state.typemap

    def holds_reference(kind: Any) -> bool:
        return models[kind].contains_nrt_meminfo()

    if holds_reference(state.return_type):
        return True
    for block in state.func_ir.blocks.values():
        for statement in block.body:
            if isinstance(statement, ir.SetItem | ir.StaticSetItem):
                if holds_reference(kinds[statement.value.name]):
                    return True
            elif isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr):
                value = statement.value
                borrows = value.op in _BORROWING
                if value.op == "call":
                    borrows = isinstance(kinds[value.func.name], types.NamedTupleClass)
                elif value.op == "getitem":  # an index that is an array selects a copy
                    borrows = not holds_reference(kinds[value.index.name])
                if not borrows and holds_reference(kinds[statement.target.name]):
                    return True
    return False


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerHelper(NativeLowering):
    """Registers the LLVM code of a helper for its callers, without machine code."""

    _name = "structinf_lower_helper"

    @property
    def lowering_class(self) -> Any:
        return KernelLower

    def run_pass(self, state: Any) -> bool:
        if not _creates_references(state):
            # The callers hold references to the arguments' arrays, so that the helper need not count its own.
            state.targetctx = state.targetctx.subtarget(enable_nrt=False)
        state.library = _HelperLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered, name = state["cr"], state.func_id.func_name
        module = lowered.fndesc.lookup_module()
        entry = _dynfunc.make_function(module, name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


class HelperCompiler(KernelCompiler):
    """Compiles a function that only other compiled functions call."""

    lowering = _LowerHelper


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerInlined(_LowerHelper):
    _name = "structinf_lower_inlined"

    def run_pass(self, state: Any) -> bool:
        state.flags.forceinline = True
        return super().run_pass(state)


class InlinedCompiler(KernelCompiler):
    """Compiles a helper that LLVM inlines into its callers."""

    lowering = _LowerInlined
