"""Names of torch's Inductor. Importing this file does not load Inductor; calls do."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.torch_version import TorchVersion

from ..environment import environment_kept

_CONFIG = "torch._inductor.config"
Compiled = Callable[..., Sequence[torch.Tensor]]
_headers: Path | None = None
"""Where this process keeps precompiled headers; None: it precompiles none."""


class NotAccepted(Exception):
    """Code that calls kernels from C++ is not to be used."""


def compile_into(
    directory: Path,
    gm: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, object],
    accepts: Callable[[str], bool] = lambda code: True,
) -> None:
    """Compile a flat ATen graph; what `load` needs of it is put into ``directory``.

    The graph may write its inputs.

    Args:
        options: settings of ``torch._inductor.config``.
        accepts: asked about the C++ code that calls the kernels, before that is compiled.

    Raises:
        NotAccepted: the code is not accepted. Inductor may raise it as the cause of an error.
    """
    rounds = rounded_casts() if options.get("emulate_precision_casts") else nullcontext()
    with environment_kept(), _cached_in(directory), _libraries_quoted(), rounds, _asked(accepts):
        _inductor().standalone_compile(
            gm,
            list(inputs),
            dynamic_shapes="from_example_inputs",
            options={"config_patches": dict(options)},
        )


@contextmanager
def _asked(accepts: Callable[[str], bool]) -> Iterator[None]:
    """Ask about code in C++ before the compiler, which takes most of the time, is called."""
    cache: Any = importlib.import_module("torch._inductor.codecache").CppWrapperCodeCache
    original = cache.load_pybinding

    def load(argtypes: object, main_code: str, *args: object, **kwargs: object) -> Any:
        if not accepts(main_code):
            raise NotAccepted
        return original(argtypes, main_code, *args, **kwargs)

    cache.load_pybinding = staticmethod(load)
    try:
        yield
    finally:
        del cache.load_pybinding  # it is inherited


def preload() -> None:
    """Import what compiling needs, and let it ask the compiler once for each instruction set.

    Inductor compiles, and loads in another process, a file for each set, in each new directory and
    process: for seconds. Whether the processor has a set, torch knows.
    """
    importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("torch._inductor.codegen.cpp_wrapper_cpu")
    isa: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
    if sys.platform == "linux" and hasattr(isa.VecISA, "check_build"):
        isa.VecISA.check_build = _is_known


def _is_known(isa: Any, code: str) -> bool:
    """True where the C++ compiler, and so its assembler, takes an instruction set's options."""
    builder: Any = importlib.import_module("torch._inductor.cpp_builder")
    options = shlex.split(isa.build_arch_flags())
    command = [builder.get_cpp_compiler(), *options, "-fsyntax-only", "-x", "c++", os.devnull]
    try:
        return not subprocess.run(command, capture_output=True, timeout=60).returncode
    except subprocess.TimeoutExpired:
        return False


def keep_headers_in(directory: Path) -> None:
    """Precompile headers, and keep them there: Inductor's own place is shared with other users."""
    global _headers
    _headers = directory
    cache: Any = importlib.import_module("torch._inductor.codecache")
    cache._HEADER_DIR = str(directory)
    cache._HEADER_LOCK_DIR = str(directory / "locks")


def precompiles_headers() -> bool:
    """True where a directory for them was named."""
    return _headers is not None


def load(directory: Path, options: Mapping[str, object]) -> Compiled:
    """The function that `compile_into` compiled, in this or in another process."""
    patched = _inductor().config.patch(dict(options))
    with (
        warnings.catch_warnings(),
        environment_kept(),
        _cached_in(directory),
        _libraries_quoted(),
        _nothing_precompiled(),
        patched,
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's, about torch
        found = _inductor().CompiledArtifact.load(path=str(directory), format="unpacked")
    function: Compiled = getattr(found, "_compiled_fn", found)
    return function


@contextmanager
def _nothing_precompiled() -> Iterator[None]:
    """Precompile no headers: Inductor does before it sees that all is compiled, and in /tmp."""
    cache: Any = importlib.import_module("torch._inductor.codecache")
    original = cache._precompile_header
    cache._precompile_header = lambda *args, **kwargs: ""
    try:
        yield
    finally:
        cache._precompile_header = original


def compile_ahead(
    program: Any, path: str, metadata: Mapping[str, str], names: Sequence[str] = ()
) -> None:
    """Compile an ExportedProgram with AOTInductor into a package at ``path``, for this machine.

    The package refuses tensors that it was not compiled for; its errors call them by ``names``.
    """
    options = {"aot_inductor.metadata": dict(metadata)}
    with environment_kept(), _libraries_quoted(), _inputs_checked(names):
        _inductor().aoti_compile_and_package(program, package_path=path, inductor_configs=options)


def load_ahead(path: str) -> Callable[..., Any]:
    """Load a package that `compile_ahead` compiled."""
    with environment_kept():
        package: Callable[..., Any] = _inductor().aoti_load_package(path)
    return package


@contextmanager
def _inputs_checked(names: Sequence[str]) -> Iterator[None]:
    """Let AOTInductor's code check its inputs in each call, not only under an environment variable.

    It reads them by the sizes and strides that it was compiled for: other ones are other numbers,
    or memory of others. A method of another name would be an error of the C++ compiler.
    """
    wrapper: Any = importlib.import_module("torch._inductor.codegen.cpp_wrapper_cpu").CppWrapperCpu
    original = wrapper.generate_input_output_runtime_checks

    def checks(self: Any) -> None:
        prefix = self.prefix
        add = prefix.splice_aot if hasattr(prefix, "splice_aot") else prefix.splice
        add(_CHECK_HEAD)
        add("\n".join(_checks(names)))
        add(_CHECK_TAIL)

    wrapper.generate_input_output_runtime_checks = checks
    try:
        yield
    finally:
        wrapper.generate_input_output_runtime_checks = original


def _checks(names: Sequence[str]) -> Iterator[str]:
    """C++: the sizes that a call may choose, by their symbols, and a check of each input."""
    graph: Any = importlib.import_module("torch._inductor.virtualized").V.graph
    utils: Any = importlib.import_module("torch._inductor.codegen.cpp_utils")
    ranges = graph.sizevars.shape_env.var_to_range
    inputs = {
        number: value
        for number, value in enumerate(graph.graph_inputs.values())
        if hasattr(value, "get_stride")  # the others are numbers
    }
    symbols: dict[Any, str] = {}
    for number, value in inputs.items():
        for dimension, size in enumerate(value.get_size()):
            if getattr(size, "is_Symbol", False):
                symbols.setdefault(size, f"tg_size(input_handles[{number}], {dimension})")
    yield from (f"[[maybe_unused]] const int64_t {name} = {get};" for name, get in symbols.items())

    def written(sizes: Any) -> str:
        """The sizes as C++; -1 for one computed from a size that no input has."""
        known = [
            not hasattr(one, "free_symbols") or one.free_symbols <= {*symbols} for one in sizes
        ]
        return ", ".join(
            f"static_cast<int64_t>({utils.cexpr(one)})" if ok else "-1"
            for one, ok in zip(sizes, known, strict=True)
        )

    for number, value in inputs.items():
        name = json.dumps(names[number] if number < len(names) else f"argument {number}")
        dtype = str(value.get_dtype()).removeprefix("torch.")
        device = utils.DEVICE_TO_INT.get(value.get_device().type, -1)
        lists = f"{{{written(value.get_size())}}}, {{{written(value.get_stride())}}}"
        yield f"tg_check(input_handles[{number}], {name}, "
        yield f'    aoti_torch_dtype_{dtype}(), "{dtype}", {device}, {lists});'
    for symbol, get in symbols.items():
        low, high = ranges[symbol].lower, ranges[symbol].upper
        if low > 2:  # below, the trace says no more than that 0 and 1 were not looked at
            yield f'tg_require({symbol} >= {low}, "a size is " + std::to_string({get}) + '
            yield f'    ", and must be {low} or more");'
        if high < 2**62:
            yield f'tg_require({symbol} <= {high}, "a size is " + std::to_string({get}) + '
            yield f'    ", and must be {high} or less");'


_CHECK_HEAD = """
static void tg_require(bool right, const std::string& what) {
    if (!right) throw std::runtime_error("torchgraph: " + what + ".");
}
static int64_t tg_size(AtenTensorHandle handle, int64_t dimension) {
    int64_t dimensions = 0, *sizes = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dimensions));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
    return dimension < dimensions ? sizes[dimension] : -1;
}
static std::string tg_text(const int64_t* values, size_t count) {
    std::string text = "[";
    for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
    return text + "]";
}
AOTI_NOINLINE static void tg_check(
    AtenTensorHandle handle, const std::string& name, int32_t dtype, const char* dtype_name,
    int32_t device, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
    int32_t its_dtype = 0, its_device = 0;
    int64_t dimensions = 0, *its_sizes = nullptr, *its_strides = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &its_dtype));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &its_device));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dimensions));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &its_sizes));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &its_strides));
    tg_require(its_dtype == dtype, name + " is not of dtype " + dtype_name);
    tg_require(device < 0 || its_device == device, name + " is on another kind of device");
    bool fits = static_cast<size_t>(dimensions) == sizes.size(), empty = false, lies = true;
    for (size_t i = 0; fits && i < sizes.size(); ++i) {
        empty = empty || its_sizes[i] == 0;
        if (its_sizes[i] > 1 && strides[i] >= 0) lies = lies && its_strides[i] == strides[i];
    }
    for (size_t i = 0; fits && i < sizes.size(); ++i) {
        fits = sizes[i] < 0 || its_sizes[i] == sizes[i];
    }
    tg_require(fits, name + " has the shape " + tg_text(its_sizes, dimensions) +
        ", the step was compiled for " + tg_text(sizes.data(), sizes.size()));
    tg_require(lies || empty, name + " has the strides " + tg_text(its_strides, dimensions) +
        ", the step was compiled for " + tg_text(strides.data(), strides.size()) +
        "; copy it into a tensor with these");
}
AOTI_NOINLINE static void __check_inputs_outputs(
    AtenTensorHandle* input_handles, AtenTensorHandle* output_handles) {
"""
_CHECK_TAIL = """
}
static bool _check_aoti_runtime_check_inputs_env() {
    const static char* value = getenv("AOTI_RUNTIME_CHECK_INPUTS");
    return value != nullptr && value[0] != '0';
}
"""


def changed_config() -> str:
    """Settings of ``torch._inductor.config`` that this process has changed, as Python."""
    if _CONFIG not in sys.modules:
        return ""
    lines = str(_inductor().config.codegen_config()).splitlines()
    return "\n".join(line for line in lines if not _says_the_default(line))


def _says_the_default(line: str) -> bool:
    """True for a setting that was changed and is back at its default, as after `load`."""
    config = _inductor().config
    name = line.partition(" = ")[0].removeprefix(f"{_CONFIG}.")
    entry = getattr(config, "_config", {}).get(name)
    return entry is not None and functools.reduce(getattr, name.split("."), config) == entry.default


def change_config(changes: str) -> None:
    """Run what `changed_config` returned in another process."""
    if changes:
        importlib.import_module(_CONFIG)
        exec(changes, {"torch": torch})


@contextmanager
def rounded_casts() -> Iterator[None]:
    """Let torch before 2.13, too, keep to ``emulate_precision_casts`` on the CPU.

    pytorch/pytorch#185337: kernels went on with what a cast had been given, and a pass took casts
    to half precision and back away.
    """
    if TorchVersion(torch.__version__) >= "2.13":
        yield
        return
    kernel: Any = importlib.import_module("torch._inductor.codegen.cpp").CppKernel
    joint: Any = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    original = kernel.cache_dtype_convert
    removed = [
        (entries, one)
        for entries in joint.patterns.patterns.values()
        for one in entries
        if getattr(one, "handler", None) is joint.pointless_convert
    ]
    kernel.cache_dtype_convert = lambda self, dst, dst_dtype, src, src_dtype: None
    for entries, one in removed:
        entries.remove(one)
    try:
        yield
    finally:
        kernel.cache_dtype_convert = original
        for entries, one in removed:
            entries.append(one)


def flat_indices_are_wrong() -> bool:
    """True where ``argmax()`` without a dimension may count in the order of memory.

    pytorch/pytorch#193751: of a tensor that is no input of the kernel and not row-major. 2.11, 2.13
    and nightlies of 2.15 do, where #195063 came after the branch.
    """
    return bool(TorchVersion(torch.__version__) < "2.16")


def _inductor() -> Any:
    return importlib.import_module("torch._inductor")


def _cached_in(directory: Path) -> Any:
    name = "torch._inductor.runtime.cache_dir_utils"
    return importlib.import_module(name).temporary_cache_dir(str(directory))


@contextmanager
def _libraries_quoted() -> Iterator[None]:
    """Quote the path of torch's libraries, which Inductor puts into a command line unquoted."""
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
