"""Every name of torch's Inductor in use. Importing this file does not load Inductor; calls do."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..environment import environment_kept

_CONFIG = "torch._inductor.config"
Compiled = Callable[..., Sequence[torch.Tensor]]


def compile_into(
    directory: Path,
    gm: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, object],
) -> None:
    """Compile a flat ATen graph; what `load` needs of it is put into ``directory``.

    ``options`` are settings of ``torch._inductor.config``. The graph may write its inputs.
    """
    with environment_kept(), _cached_in(directory), _libraries_quoted():
        _inductor().standalone_compile(
            gm,
            list(inputs),
            dynamic_shapes="from_example_inputs",
            options={"config_patches": dict(options)},
        )


def load(directory: Path, options: Mapping[str, object]) -> Compiled:
    """The function that `compile_into` compiled, in this or in another process."""
    patched = _inductor().config.patch(dict(options))
    with (
        warnings.catch_warnings(),
        environment_kept(),
        _cached_in(directory),
        _libraries_quoted(),
        patched,
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's, about torch
        found = _inductor().CompiledArtifact.load(path=str(directory), format="unpacked")
    function: Compiled = getattr(found, "_compiled_fn", found)
    return function


def compile_ahead(program: Any, path: str, metadata: Mapping[str, str]) -> None:
    """Compile an ExportedProgram with AOTInductor into a package at ``path``, for this machine."""
    options = {"aot_inductor.metadata": dict(metadata)}
    with environment_kept(), _libraries_quoted():
        _inductor().aoti_compile_and_package(program, package_path=path, inductor_configs=options)


def changed_config() -> str:
    """Settings of ``torch._inductor.config`` that this process has changed, as Python."""
    if _CONFIG not in sys.modules:
        return ""
    lines = str(_inductor().config.codegen_config()).splitlines()
    return "\n".join(line for line in lines if not _says_the_default(line))


def _says_the_default(line: str) -> bool:
    """True for a setting that was changed and put back, as `load` does."""
    config = _inductor().config
    name = line.partition(" = ")[0].removeprefix(f"{_CONFIG}.")
    entry = getattr(config, "_config", {}).get(name)
    return entry is not None and functools.reduce(getattr, name.split("."), config) == entry.default


def change_config(changes: str) -> None:
    """Run what `changed_config` returned in another process."""
    if changes:
        importlib.import_module(_CONFIG)
        exec(changes, {"torch": torch})


def _inductor() -> Any:
    return importlib.import_module("torch._inductor")


def _cached_in(directory: Path) -> Any:
    name = "torch._inductor.runtime.cache_dir_utils"
    return importlib.import_module(name).temporary_cache_dir(str(directory))


@contextmanager
def _libraries_quoted() -> Iterator[None]:
    """Inductor puts the path of torch's libraries into a command line as it is."""
    module: Any = importlib.import_module("torch.utils.cpp_extension")
    path = module.TORCH_LIB_PATH
    module.TORCH_LIB_PATH = shlex.quote(path)
    try:
        yield
    finally:
        module.TORCH_LIB_PATH = path


def has_triton() -> bool:
    """True when Triton can be imported."""
    return importlib.util.find_spec("triton") is not None
