"""Inductor's C++ code of a graph, called without Inductor, whose import takes a second.

With ``cpp_wrapper`` Inductor compiles a Python extension and writes a Python file, whose function
hands it the handles of tensors. AOTAutograd puts wrappers around that function, which do nothing
for a graph that takes tensors and returns tensors. Where both are known, the extension is all.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import torch

from ..environment import tensors_addressed

_ENTRY = "inductor_entry_cpp"
_INIT = f"PyInit_{_ENTRY}".encode()
_MADE = "inductor_entry = CppWrapperCodeCache.load_pybinding("
_KNOWN = """
def _wrap_func(f):
    def g(args):
        input_tensors = [
            arg if isinstance(arg, torch.Tensor) else torch.tensor(arg, device='cpu')
            for arg in args
        ]
        input_handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(input_tensors)
        args.clear()
        del input_tensors
        output_handles = f(input_handles)
        output_tensors = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(output_handles)
        return output_tensors
    return g
"""
"""The function that torch 2.13 writes around an extension. Another one may do more: what has one is
loaded by Inductor."""
_CALL = "_wrap_func(inductor_entry)"
_UNUSED = frozenset({"get_args", "benchmark_compiled_module"})
"""Functions of the file that try the code out."""


def extension_of(directory: Path) -> Path | None:
    """The extension that is all of what was compiled into ``directory``.

    None where a call does more than to hand it tensors, or where nobody here knows what it does.
    """
    codes = [path for path in directory.rglob("*.py") if _MADE in _read(path)]
    extensions = [path for path in directory.rglob("*.so") if _INIT in path.read_bytes()]
    if len(codes) != 1 or len(extensions) != 1:
        return None
    try:
        plain = _is_plain(_read(codes[0])) and _has_no_wrappers(directory)
    except Exception:  # another version's: whatever it is like, Inductor loads it
        return None
    return extensions[0] if plain else None


def load(extension: Path) -> Callable[..., Sequence[torch.Tensor]]:
    """The function of an extension: it takes tensors and returns a list of them."""
    key = f"{extension.stem}_{id(extension)}.{_ENTRY}"
    loader = ExtensionFileLoader(key, str(extension))
    spec = spec_from_loader(key, loader)
    assert spec is not None
    guards: Any = torch._C._dynamo.guards
    with tensors_addressed(guards._torchinductor_pyobject_tensor_data_ptr):
        module = module_from_spec(spec)
        loader.exec_module(module)
    sys.modules.pop(key, None)
    entry: Callable[[Any], Any] = getattr(module, _ENTRY)
    handles: Any = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
    tensors: Any = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs

    def call(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        if torch.is_grad_enabled():  # kernels that write into given memory refuse it
            with torch.no_grad():
                return call(*inputs)
        returned: Sequence[torch.Tensor] = tensors(entry(handles(list(inputs))))
        return returned

    return call


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _is_plain(code: str) -> bool:
    """True for a file of texts, one extension, and the function that is known."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.Assign):
            names = [getattr(target, "id", "") for target in node.targets]
            if names == ["call"]:
                known = ast.unparse(node.value) == _CALL
            else:
                known = names == ["inductor_entry"] or isinstance(node.value, ast.Constant)
        elif isinstance(node, ast.FunctionDef):
            text = ast.unparse(ast.parse(_KNOWN))
            known = node.name in _UNUSED or ast.unparse(node) == text
        elif isinstance(node, ast.Expr):
            known = isinstance(node.value, ast.Constant)
        else:
            known = isinstance(node, (ast.Import, ast.ImportFrom, ast.If))
        if not known:
            return False
    return True


def _has_no_wrappers(directory: Path) -> bool:
    """True where AOTAutograd's wrappers hand inputs and outputs on as they are."""
    cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
    folders: Any = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    (key,) = (path.name for path in (directory / "aotautograd").iterdir())
    with folders.temporary_cache_dir(str(directory)):
        entry, _ = cache.AOTAutogradCache._lookup(
            key, local=True, remote=False, args=[], cache_info={}, aot_config=None
        )
    found = entry.runtime_metadata
    kinds = {one.output_type.name for one in found.output_info}
    return (
        entry.compiled_bw is None
        and entry.maybe_subclass_meta is None
        and not any(wrapper.needs_post_compile for wrapper in entry.dispatch_wrappers)
        # An alias is returned as the code returns it: over the memory of the input.
        and kinds <= {"non_alias", "alias_of_input", "is_input", "unsafe_view_alias"}
        and not found.num_mutated_inp_runtime_indices
        and not found.num_intermediate_bases
        and not found.tokens
        and not found.is_rng_op_functionalized
    )
