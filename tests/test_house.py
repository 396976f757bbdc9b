"""The rules of the house that a machine can check."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchgraph as tg
from examples import char_gpt, huggingface, inference, linear, mobilenet_v2

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "torchgraph"
FILES = sorted(set(PACKAGE.rglob("*.py")) - set((PACKAGE / "csrc").rglob("*.py")))
SOURCES = sorted(
    path
    for folder in ("torchgraph", "tests", "examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)

# Room -> layer. Imports point to the same or a lower one.
LAYERS = {
    "_cuda": 0,
    "_extension": 0,
    "_functorch": 0,
    "_inductor": 0,
    "_listening": 0,
    "_scripts": 0,
    "_surroundings": 0,
    "_symbolic": 0,
    "_torch": 0,
    "amp": 0,
    "collection": 0,
    "config": 0,
    "counters": 0,
    "errors": 0,
    "fallback": 0,
    "lines": 0,
    "nodes": 0,
    "options": 0,
    "ops": 0,
    "verbs": 0,
    "aliasing": 1,
    "each": 1,
    "effects": 1,
    "guards": 1,
    "program": 1,
    "structure": 1,
    "values": 1,
    "blocks": 2,
    "debug.text": 2,
    "inspect.bits": 3,
    "holder": 2,
    "proxy": 2,
    "debug": 3,
    "rewriter": 3,
    "rows": 3,
    "verify": 3,
    "capture.arguments": 3,
    "capture.flags": 3,
    "capture.inputs": 3,
    "capture.micro_batch": 3,
    "capture.optimizers": 3,
    "capture.scaler": 3,
    "capture.step": 3,
    "optim": 4,
    "passes": 4,
    "record": 4,
    "capture": 5,
    "lower": 5,
    "artifact": 6,
    "buckets": 6,
    "cache": 6,
    "confirm": 6,
    "in_eager": 6,
    "lessons": 6,
    "recordings": 6,
    "running": 7,
    "replay": 6,
    "schedule": 6,
    "state": 6,
    "graph": 7,
    "inspect": 7,
    "nn": 7,
    "discovery": 3,
    "step_function": 8,
    "train": 7,
    "__init__": 8,
    "__main__": 8,
    "cli": 8,
    "testing": 8,
}


def module_of(path: Path) -> str:
    """``capture.step`` for torchgraph/capture/step.py, ``capture`` for its __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_of(path): path for path in FILES}


def layer(module: str) -> int:
    while module not in LAYERS:
        module = module.rpartition(".")[0]
        assert module, "a new room: give it a layer"
    return LAYERS[module]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """The modules of torchgraph that a file imports."""
    package = list(path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torchgraph":
                    yield alias.name.partition(".")[2] or "__init__"
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package[: len(package) - node.level + 1]
            elif module.split(".")[0] == "torchgraph":
                base, module = [], module.partition(".")[2]
            else:
                continue
            start = [*base, *filter(None, module.split("."))]
            for alias in node.names:
                full = ".".join([*start, alias.name])
                yield full if full in MODULES else ".".join(start) or "__init__"


GRAPH = {module: set(imports(path)) for module, path in MODULES.items()}


def test_imports_point_down():
    wrong = {
        f"{module} (layer {layer(module)}) imports {used} (layer {layer(used)})"
        for module, all_used in GRAPH.items()
        for used in all_used
        if layer(used) > layer(module)
    }
    assert wrong == set()


def test_there_are_no_cycles():
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a cycle: {' -> '.join((*path, module))}"
        if module not in done:
            for used in GRAPH[module] - {module}:
                walk(used, (*path, module))
            done.add(module)

    for module in GRAPH:
        walk(module, ())


def test_passes_know_neither_capture_nor_lowering():
    for module, used in GRAPH.items():
        if module.split(".")[0] == "passes":
            rooms = {name.split(".")[0] for name in used}
            assert not rooms & {"capture", "lower", "replay", "graph"}, module


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_import_inside_a_function(path):
    inside = [
        f"line {found.lineno}"
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for found in ast.walk(node)
        if isinstance(found, (ast.Import, ast.ImportFrom))
    ]
    assert inside == []


TABLES = {"tests/parity/huggingface_models.py"}  # an entry per architecture, and nothing else


def test_no_file_is_over_400_lines():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in SOURCES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert set(long) - TABLES == set()


def dotted(node: ast.AST) -> str:
    """``torch.a.b`` for an attribute chain that starts at a name; empty for others."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    first, *rest = name.split(".")
    if first != "torch" or rest[:1] == ["ops"]:  # an op may be called _fused_adam_
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in rest)


def torch_names(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield dotted(node)


PRIVATE = {
    "_cuda",
    "_functorch",
    "_inductor",
    "_listening",
    "_scripts",
    "_surroundings",
    "_symbolic",
    "_torch",
}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_private_names_of_torch_live_in_one_file(path):
    found = sorted(filter(is_private, torch_names(path)))
    assert found == [] or path.stem in PRIVATE


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_the_environment_is_read_in_one_file(path):
    names = {dotted(node) for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    found = names & {"os.environ", "os.getenv", "os.putenv"}
    assert not found or path.name == "config.py"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_torch_distributed_is_not_imported(path):
    # It comes with distributed/, and then in there alone.
    assert not [name for name in torch_names(path) if name.startswith("torch.distributed")]


def test_public_names():
    assert set(tg.__all__) == {
        "Graph", "GraphConfig", "__version__", "amp", "depend", "errors", "load", "nn", "optim",
        "passes", "save", "step", "testing", "train_step",
    }  # fmt: skip
    assert set(tg.testing.__all__) == {
        "Counters", "Setup", "assert_parity", "check_pass", "counters",
    }  # fmt: skip
    assert set(tg.passes.__all__) == {
        "ActivationCheckpointing",
        "Canonicalize", "ChannelsLast", "CommonSubexpressions", "DeadCode", "DelayVariables",
        "FoldBatchNorm", "FoldConstants", "FuseAddToOutput", "FuseAttention", "FuseBCEMean",
        "FuseCastScale", "FuseCrossEntropy", "FuseLayerNorm", "FuseModelUpdate", "FuseRmsNorm",
        "MixedPrecision", "Pass", "PruneDepend", "ScatterEmbedding", "SparseEmbedding",
        "inductor_pipeline", "pipeline", "run",
    }  # fmt: skip
    assert set(tg.amp.__all__) == {"StaticGradScaler", "black", "white"}
    assert set(tg.optim.__all__) == {"LAMB", "Lion"}
    assert set(tg.nn.graph.__all__) == {
        "Graph", "GraphModule", "GraphTensor", "Proxy", "ProxyModule",
    }  # fmt: skip


def public(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in vars(base) if not name.startswith("_")}


def test_names_of_the_graph():
    assert public(tg.Graph) == {
        "add_optimizer", "build", "check", "close", "debug", "is_compiled", "last_lr",
        "load_state_dict", "name", "report", "set_grad_scaler", "state_dict", "sync", "trace",
        "training", "with_dynamic_input_shape",
    }  # fmt: skip


def test_names_of_the_options():
    """A new option needs more than a line here: a reason, a test, a line in the changelog."""
    assert public(tg.GraphConfig) == {
        "allow_fuse_add_to_output", "allow_fuse_cast_scale", "allow_fuse_model_update_ops",
        "enable_amp", "enable_auto_memory", "enable_auto_parallel",
        "enable_auto_parallel_ignore_user_sbp_config", "enable_auto_parallel_sbp_collector",
        "enable_auto_parallel_trunk_algo", "enable_choose_best_memory_allocation",
        "enable_compress_memory", "enable_cudnn_conv_heuristic_search_algo",
        "enable_fused_model_update_cast", "enable_gradient_norms", "enable_multi_tensor_update",
        "enable_straighten_algorithm", "enable_zero", "set_auto_parallel_computation_cost_ratio",
        "set_activation_checkpointing",
        "set_auto_parallel_wait_time", "set_backend", "set_cache_size", "set_clip_grad_norm",
        "set_clip_grad_value", "set_confirm", "set_cuda_graph", "set_fallback",
        "set_gradient_accumulation_steps", "set_outputs_buffer_size", "set_rng",
        "set_shape_buckets",
        "set_zero_redundancy_optimizer_mode", "training",
    }  # fmt: skip
    assert set(vars(tg.GraphConfig())) == {"options", "passes"}


def test_every_public_function_is_documented():
    missing = [
        f"{cls.__name__}.{name}"
        for cls in (tg.Graph, tg.GraphConfig)
        for name in public(cls)
        if not inspect.getdoc(getattr(cls, name))
    ]
    assert missing == []
    assert inspect.getdoc(tg.train_step)
    errors = {k: v for k, v in vars(tg.errors).items() if inspect.getmodule(v) is tg.errors}
    assert [name for name, v in errors.items() if name[0] != "_" and not v.__doc__] == []


@pytest.mark.parametrize("example", [char_gpt, huggingface, inference, linear, mobilenet_v2])
def test_an_example_has_main(example):
    assert callable(example.main)
    assert example.__doc__


def test_every_example_is_tested():
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__", "data"}
    assert files == {"char_gpt", "huggingface", "inference", "linear", "mobilenet_v2"}


LEAN = """
import sys
import torch
before = set(sys.modules)
import torchgraph
new = set(sys.modules) - before
heavy = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "triton"}
optional = {"numpy", "transformers", "sklearn", "torchvision"}
assert not (heavy | optional) & new, sorted((heavy | optional) & new)
assert not torch.cuda.is_initialized()
compiled = [n for n in new if (getattr(sys.modules[n], "__file__", "") or "").endswith(".so")
            and n.startswith("torchgraph")]
assert not compiled, compiled
"""


def test_importing_is_lean():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAN], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
