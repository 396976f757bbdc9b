"""Each wrong use gets the error that says so, changes nothing, and tells of nothing else."""

import gc
import logging
import re
import traceback

import numpy as np
import pytest
import torch

import torchgraph as tg
from tests.attack.wrong_uses_classes import CLASSES
from tests.attack.wrong_uses_config import CONFIG
from tests.attack.wrong_uses_eager import EAGER
from tests.attack.wrong_uses_graph import GRAPH
from tests.attack.wrong_uses_library import LIBRARY
from tests.attack.wrong_world import World, by_empty_lines, one_a_line
from tests.support import assert_golden
from torchgraph.errors import GraphError

OPTIONS = [*one_a_line(CONFIG)]
OTHERS = [*one_a_line(GRAPH), *one_a_line(LIBRARY), *by_empty_lines(CLASSES)]
SETTINGS = ("block.", "graph.debug", "graph.set_", "graph.add_", "graph.model.", "del graph.")
EVERY = "\n".join(snippet for _, snippet in [*OPTIONS, *OTHERS])


def refused(world: World, snippet: str) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is the caller's to say
        world.run(snippet)
    return caught.value


@pytest.mark.filterwarnings("ignore")  # steps that warn first and are refused then
@pytest.mark.parametrize(
    ("error", "snippet"), [*OPTIONS, *OTHERS], ids=[snippet for _, snippet in [*OPTIONS, *OTHERS]]
)
def test_a_wrong_use_gets_its_error(error, snippet):
    world, of_an_option = World(), (error, snippet) in OPTIONS
    before = world["config"].options
    found = refused(world, snippet)
    assert type(found).__name__ == error
    assert isinstance(found, GraphError) or (error == "RuntimeError" and not of_an_option)
    assert " at 0x" not in str(found)
    assert error == "RuntimeError" or len(str(found)) < (500 if of_an_option else 700)
    if of_an_option:
        assert set(vars(world["graph"].config)) == {"options", "passes"}
    if of_an_option or ("\n" not in snippet and snippet.startswith(SETTINGS)):
        assert world["graph"].config.options is before
    if not of_an_option and "\n" not in snippet and snippet.startswith(SETTINGS):
        assert world["graph"](world["x"]).isfinite()
    if "async" in snippet:  # a coroutine that nobody awaits warns when it goes: let it go here
        del world, found
        gc.collect()


def test_a_graph_runs_after_wrong_uses_of_all_its_options():
    world = World()
    for _, snippet in OPTIONS:
        refused(world, snippet)
    assert world["graph"](world["x"]).isfinite()


@pytest.mark.parametrize("body", EAGER)
def test_eagers_errors_stay_eagers(body, caplog, capfd):
    plain, held = World(), World()
    for world in (plain, held):
        world.run(f"def step(x):\n    {body}\n", "step")
    held.run("class Wrong(Step):\n    def build(self, x):\n        return step(x)\n")
    with caplog.at_level(logging.DEBUG):
        expected = refused(plain, "step(x)")
        found = refused(held, "Wrong()(x)")
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert found.__cause__ is None
    lines = [line.line for line in traceback.extract_tb(found.__traceback__) if is_users(line)]
    assert lines[-1] == body
    assert caplog.records == []
    assert capfd.readouterr().err == ""


class Trainer:
    def plain(self, x, *, scale=1.0):
        return x * scale

    step = tg.step(plain)


@pytest.mark.parametrize("given", ["()", "(x, x)", "(y=x)", "(x, x=x)", "(x, scal=2)"])
@pytest.mark.parametrize("method", [False, True])
def test_a_wrong_call_of_a_step_is_pythons_error(given, method):
    def plain(x, *, scale=1.0):
        return x * scale

    trainer, step = Trainer(), tg.step(plain)
    expected, found = (trainer.plain, trainer.step) if method else (plain, step)
    x = torch.ones(3)
    errors = []
    for call in (expected, found):
        with pytest.raises(TypeError) as caught:
            eval(f"call{given}", {"call": call, "x": x})
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert torch.equal(found(x, scale=2.0), x * 2)


def is_users(line: traceback.FrameSummary) -> bool:
    return line.filename == "/home/user/step.py"


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def uses_of(owner: str, name: str) -> int:
    return len(re.findall(rf"^.*\b{owner}\.{name}\b.*$", EVERY, re.MULTILINE))


VERBS = public(type(tg.GraphConfig().passes)) - {"options"}
READ = {"debug_options", "name_prefix", "origin", "proxy", "stage_placement", "tree"}


@pytest.mark.parametrize(
    ("names", "owner", "least"),
    [
        (public(tg.GraphConfig) - {"options", "passes", "training"}, "config", 2),
        (VERBS, "passes", 2),
        # `build` is written in classes.
        (
            public(tg.Graph) - {"build"},
            r"(?:graph|Graph|evaluation|step|object\.__new__\(Step\))",
            1,
        ),
        (public(tg.nn.graph.GraphModule) - READ, r"block|model(?:\[0\])?", 1),
    ],
    ids=["options", "passes", "a Graph", "settings of a block"],
)
def test_every_name_has_wrong_uses(names, owner, least):
    assert [name for name in names if uses_of(owner, name) < least] == []


def test_the_verbs_of_passes():
    assert {"disable", "dump", "enable", "insert", "limit"} == VERBS


def test_every_public_function_has_a_wrong_use():
    elsewhere = {
        "Graph", "GraphConfig", "LoadedGraph", "__version__", "errors", "load", "nn", "no_sync",
        "save",
    }  # fmt: skip
    modules = ("amp", "env", "integrations", "optim", "passes", "sbp", "testing")
    functions = [f"tg.{name}" for name in set(tg.__all__) - elsewhere - set(modules)]
    functions += [f"tg.amp.{name}" for name in tg.amp.__all__]
    functions += [f"tg.optim.{name}" for name in tg.optim.__all__]
    functions += [f"tg.testing.{name}" for name in ("assert_parity", "check_pass")]
    functions += [f"tg.passes.{name}" for name in ("run", "pipeline", "inductor_pipeline")]
    assert [name for name in functions if f"{name}(" not in EVERY] == []


MESSAGES = (
    "config.enable_amp = True",
    "config.enable_ampp(True)",
    'config.set_backend("aten", switch_at=3)',
    "config.set_shape_buckets(0, [])",
    'config.set_backend("auto", swich_at=16)',
    "config.set_cache_size(True)",
    'config.passes.disable("dec")',
    "graph.train()",
    "graph.add_optimiser(sgd)",
    "graph.model.activation_checkpointing = True",
    "graph.add_optimizer(model)",
    "graph(x, mask=None)",
    "class Step(tg.Graph):\n    def forward(self, x):\n        return x\nStep()(x)",
    "class Step(tg.Graph):\n    def _dry_run(self, x):\n        return x",
)


def test_messages_to_be_read():
    """As they are shown, no line of them longer than 80 columns."""
    parts = []
    for snippet in MESSAGES:
        found = refused(World(), snippet)
        shown = traceback.format_exception_only(found)
        typed = snippet.replace("\n", "\n... ")
        parts.append(f">>> {typed}\n{''.join(shown).removeprefix('torchgraph.errors.')}")
    text = "\n".join(parts)
    assert_golden("wrong_uses", text)
    assert max(map(len, text.splitlines())) <= 80


def test_an_undo_of_what_is_set_is_no_wrong_use():
    config = tg.GraphConfig()
    config.set_shape_buckets(0, range(8, 65, 8), mask="mask", whole={"weight"})
    assert config.options.buckets.sizes == (8, 16, 24, 32, 40, 48, 56, 64)
    config.set_shape_buckets(None)
    config.set_clip_grad_norm(1, torch.inf)
    config.set_clip_grad_norm(None)
    config.set_clip_grad_value(None)
    config.set_outputs_buffer_size(None)
    config.set_activation_checkpointing(None)
    config.passes.disable("dce")
    config.passes.enable("dce")
    config.passes.limit(passes=0)
    config.passes.limit()
    config.enable_amp(True, dtype=torch.bfloat16)
    config.enable_amp(False)
    assert config.options == tg.GraphConfig().options


def test_numpys_numbers_are_options():
    config = tg.Graph().config
    config.set_cache_size(np.int64(3))
    config.set_gradient_accumulation_steps(np.int32(2))
    config.set_shape_buckets(np.int64(0), [np.int64(4), np.int64(8)])
    config.enable_amp(np.bool_(False))
    found = config.options
    assert (found.cache_size, found.micro_batches, found.buckets.sizes) == (3, 2, (4, 8))
    assert {type(found.cache_size), type(found.buckets.sizes[0])} == {int}
