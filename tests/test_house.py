"""The rules of the house that a machine can check."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
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

# A room is a folder of torchgraph/, or a file at its top. Imports point to the same floor or to a
# lower one, and never in a circle.
FLOORS = (
    {
        "_extension",
        "_torch",
        "categories",
        "collection",
        "counters",
        "environment",
        "errors",
        "lines",
        "objects",
        "random_state",
        "reasons",
    },
    {"artifact", "distributed", "library", "options"},
    {"amp", "config", "ir"},
    {"costs", "debug", "optimizers", "structure"},
    {"blocks", "guards", "passes"},
    {"live", "effects"},
    {"lower", "record"},
    {"capture", "verify"},
    {"history", "pipeline", "replay"},
    {"calls"},
    {"buckets", "deploy", "inspect", "saved"},
    {
        "__init__",
        "__main__",
        "cli",
        "graph",
        "integrations",
        "nn",
        "oneflow",
        "ops",
        "optim",
        "step_function",
        "testing",
    },
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def module_of(path: Path) -> str:
    """``live.step`` for torchgraph/live/step.py, ``live`` for its __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_of(path): path for path in FILES}
FOLDERS = sorted({path.parent for path in FILES} - {PACKAGE})


def name_of(folder: Path) -> str:
    return module_of(folder / "__init__.py")


def room_of(module: str) -> str:
    return module.partition(".")[0]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def offenders(
    find: Callable[[Path], Iterable[str]], files: Iterable[Path] = FILES
) -> dict[str, list[str]]:
    """By file, what ``find`` gives for it, where that is anything."""
    found = {str(path.relative_to(PACKAGE)): list(find(path)) for path in files}
    return {name: given for name, given in found.items() if given}


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


def test_each_room_has_one_floor():
    assert {room_of(module) for module in MODULES} == set(FLOOR)
    assert sum(map(len, FLOORS)) == len(FLOOR)
    assert len(FLOORS) <= 12


def test_imports_point_down():
    wrong = {
        f"{module} (floor {FLOOR[room_of(module)]}) imports {used} (floor {FLOOR[room_of(used)]})"
        for module, all_used in GRAPH.items()
        for used in all_used
        if FLOOR[room_of(used)] > FLOOR[room_of(module)]
    }
    assert wrong == set()


def circle(graph: Mapping[str, Iterable[str]]) -> str:
    """Nodes that lead back to where they start; empty when there are none."""
    done: set[str] = set()

    def walk(node: str, path: tuple[str, ...]) -> str:
        if node in path:
            return " -> ".join((*path[path.index(node) :], node))
        if node in done:
            return ""
        found = filter(None, (walk(used, (*path, node)) for used in set(graph[node]) - {node}))
        return next(found, "") or done.add(node) or ""

    return next(filter(None, (walk(node, ()) for node in graph)), "")


def test_no_module_imports_itself_by_a_detour():
    assert circle(GRAPH) == ""


def child(module: str, folder: str) -> str:
    """The file or folder below ``folder`` that a module is in; empty for none."""
    if not module.startswith(f"{folder}." if folder else ""):
        return ""
    return module.removeprefix(f"{folder}." if folder else "").partition(".")[0]


@pytest.mark.parametrize("folder", ["", *map(name_of, FOLDERS)])
def test_no_room_imports_itself_by_a_detour(folder):
    rooms: dict[str, set[str]] = {}
    for module, used in GRAPH.items():
        if inside := child(module, folder):
            rooms.setdefault(inside, set()).update(filter(None, (child(u, folder) for u in used)))
    assert circle({room: used & set(rooms) for room, used in rooms.items()}) == ""


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_files_that_are_there(path):
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|h|cpp|cu))`", path.read_text(encoding="utf-8")))
    assert {one for one in named if not any((at / one).exists() for at in (PACKAGE, ROOT))} == set()


def imports_inside(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for found in ast.walk(node):
                if isinstance(found, (ast.Import, ast.ImportFrom)):
                    yield f"line {found.lineno}"


def test_no_import_inside_a_function():
    assert offenders(imports_inside) == {}


TABLES = {"tests/parity/huggingface_models.py"}  # an entry per architecture, and nothing else


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_is_long():
    long = {str(path.relative_to(ROOT)) for path in SOURCES if lines_of(path) > 600}
    assert long - TABLES == set()


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


@cache
def torch_names(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            found.add(dotted(node))
    return found


def test_private_names_of_torch_live_in_one_room():
    outside = [path for path in FILES if room_of(module_of(path)) != "_torch"]
    assert offenders(lambda path: filter(is_private, torch_names(path)), outside) == {}


def test_torch_distributed_is_not_imported():
    rooms = {PACKAGE / "distributed", PACKAGE / "_torch" / "distributed"}
    outside = [path for path in FILES if not rooms & set(path.parents)]

    def found(path: Path) -> Iterator[str]:
        return (name for name in torch_names(path) if name.startswith("torch.distributed"))

    assert offenders(found, outside) == {}


def test_public_names():
    assert set(tg.__all__) == {
        "Graph", "GraphConfig", "LoadedGraph", "__version__", "amp", "bisect", "depend", "env",
        "errors", "export", "integrations", "load", "nn", "no_sync", "optim", "passes", "placement",
        "pure", "save", "sbp", "step", "testing", "to_global", "to_local", "train_step",
    }  # fmt: skip
    assert set(tg.testing.__all__) == {
        "Counters", "RankRun", "Setup", "assert_parity", "check_pass", "counters", "run_on_ranks",
    }  # fmt: skip
    assert set(tg.passes.__all__) == {
        "ActivationCheckpointing",
        "Canonicalize", "ChannelsLast", "CommonSubexpressions", "DeadCode", "DelayVariables",
        "FoldBatchNorm", "FoldConstants", "FuseAddToOutput", "FuseAttention", "FuseBCEMean",
        "FuseCastScale", "FuseCrossEntropy", "FuseLayerNorm", "FuseLinearCrossEntropy",
        "FuseModelUpdate", "FuseRmsNorm",
        "GatherAgain", "MixedPrecision", "OverlapCollectives", "Pass", "PruneDepend",
        "Rematerialize", "ScatterEmbedding", "SparseEmbedding",
        "inductor_pipeline", "pipeline", "run",
    }  # fmt: skip
    assert set(tg.amp.__all__) == {"StaticGradScaler", "black", "white"}
    assert set(tg.optim.__all__) == {"Graphed", "LAMB", "Lion"}
    assert set(tg.nn.graph.__all__) == {
        "Graph", "GraphModule", "GraphTensor", "Proxy", "ProxyModule",
    }  # fmt: skip


def public(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in vars(base) if not name.startswith("_")}


def test_names_of_the_graph():
    assert public(tg.Graph) == {
        "add_optimizer", "build", "check", "close", "debug", "full_text", "is_compiled", "last_lr",
        "load_state_dict", "name", "profile", "program", "report", "set_grad_scaler", "state_dict",
        "sync", "trace", "training", "tree", "with_dynamic_input_shape",
    }  # fmt: skip


def test_names_of_the_options():
    """A new option needs more than a line here: a reason, a test, a line in the changelog."""
    assert public(tg.GraphConfig) == {
        "allow_fuse_add_to_output", "allow_fuse_cast_scale", "allow_fuse_linear_cross_entropy",
        "allow_fuse_model_update_ops",
        "enable_amp", "enable_auto_memory", "enable_auto_parallel",
        "enable_auto_parallel_ignore_user_sbp_config", "enable_auto_parallel_sbp_collector",
        "enable_data_parallel",
        "enable_auto_parallel_trunk_algo", "enable_choose_best_memory_allocation",
        "enable_compress_memory", "enable_cudnn_conv_heuristic_search_algo",
        "enable_fused_model_update_cast", "enable_gradient_norms", "enable_multi_tensor_update",
        "enable_profiler_labels", "keep_history",
        "enable_straighten_algorithm", "enable_zero", "set_auto_parallel_computation_cost_ratio",
        "set_activation_checkpointing", "set_agreement",
        "set_auto_parallel_wait_time", "set_backend", "set_cache_size", "set_clip_grad_norm",
        "set_clip_grad_value", "set_compile_timeout", "set_confirm", "set_cuda_graph",
        "set_fallback", "set_gradient_accumulation_steps", "set_look_again",
        "set_outputs_buffer_size", "set_pipeline_outputs", "set_rng",
        "set_pipeline_schedule", "set_shape_buckets",
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
    assert files == {
        "char_gpt", "distributed", "huggingface", "inference", "linear", "mobilenet_v2",
        "style_transfer",
    }  # fmt: skip


LEAN = """
import sys
import torch
before = set(sys.modules)
import torchgraph
new = set(sys.modules) - before
heavy = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "triton"}
optional = {"numpy", "transformers", "sklearn", "torchvision"}
assert not (heavy | optional) & new, sorted((heavy | optional) & new)
of_oneflow = {name for name in new if name.startswith("torchgraph.oneflow")}
assert not of_oneflow, of_oneflow
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
