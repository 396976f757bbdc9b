"""The benchmarks run and write what they measured. What they measured is not looked at."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import (
    call,
    capture,
    command,
    data_parallel,
    feature_cases,
    features,
    fusions,
    guards,
    labels,
    memory,
    memory_large,
    memory_modes,
    ops,
    optimizers,
    optional_passes,
    record,
    start,
    step,
    table,
    table_page,
    trainers,
)
from benchmarks.cases import CASES, DEFAULT
from benchmarks.contenders import CONTENDERS, EAGER, TORCHGRAPH
from benchmarks.feature_cases import FEATURES
from benchmarks.gpu_cases import GPU_CASES
from benchmarks.large_cases import LARGE_CASES
from benchmarks.table_cases import ENTRIES
from benchmarks.timing import Clock, Spread, alternate

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("small_heap")  # a collection comes before each round


def written(directory: Path) -> dict[str, Any]:
    """The one file there, with what every result holds checked."""
    (path,) = directory.iterdir()
    result = json.loads(path.read_text(encoding="utf-8"))
    assert set(result["machine"]) >= {"cpu", "cores", "threads", "load"}
    assert set(result["versions"]) == {"python", "torch", "cuda", "torchgraph"}
    assert result["settings"]["quick"] is True
    return result


def test_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    returned = step.main(["--quick", "--models", "mlp", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result == returned
    assert result["benchmark"] == "step"
    (model,) = result["models"]
    assert model["name"] == "mlp"
    entries = {entry["name"]: entry for entry in model["contenders"]}
    assert list(entries) == [EAGER, "eager fused", TORCHGRAPH, "torchgraph aten fused"]
    assert model["skipped"]["compile fused"] == "--quick"
    for entry in entries.values():
        assert set(entry["seconds_per_step"]) == {"median", "min", "max", "quartiles"}
        assert entry["seconds_per_step"]["median"] > 0
        assert entry["first_step_seconds"] > 0
    assert entries[EAGER]["speed_against_eager"] == 1
    assert entries[TORCHGRAPH]["capture_seconds"] > 0
    assert entries[TORCHGRAPH]["first_loss"] == entries[EAGER]["first_loss"]
    lines = capsys.readouterr().out.splitlines()
    assert any(TORCHGRAPH in line for line in lines)
    assert all(len(line) <= step.WIDTH for line in lines if "written to" not in line)


@pytest.mark.slow
def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = ["--models", "ppo", "--threads", "1", "--clock", "cpu"]
    returned = table.main(["--quick", *chosen, "--out", str(tmp_path)])

    assert written(tmp_path) == returned
    (model,) = returned["models"]
    entries = {entry["name"]: entry for entry in model["contenders"]}
    assert list(entries) == [EAGER, "eager fused", TORCHGRAPH, "torchgraph auto"]
    for entry in entries.values():
        assert entry["seconds_per_step"]["median"] > 0
        assert entry["memory"]["start"] > entry["memory"]["before"] > 0
    assert entries["torchgraph auto"]["switch_at"] > 1000
    assert "before its switch" in capsys.readouterr().out


def test_the_table_refuses_other_losses():
    table._compare_losses({EAGER: [1.0, 0.9], "compile fused": [1.00001, 0.8]}, draws=False)
    table._compare_losses({EAGER: [1.0, 0.9], "compile fused": [1.01, 0.8]}, draws=True)
    with pytest.raises(SystemExit, match="torchgraph aten: other losses"):
        table._compare_losses({EAGER: [1.0, 0.9], "torchgraph aten": [1.0, 0.9000001]}, draws=True)
    with pytest.raises(SystemExit, match="compile fused: other losses"):
        table._compare_losses({EAGER: [1.0, 0.9], "compile fused": [1.1, 0.9]}, draws=True)
    with pytest.raises(SystemExit, match="compile fused"):
        table._compare_losses({EAGER: [1.0, 0.9], "compile fused": [1.01, 0.9]}, draws=False)


@pytest.mark.slow
def test_trainers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    row = ["--only", "graphed small", "--contenders", f"{EAGER},{TORCHGRAPH}"]
    returned = trainers.main(["--quick", *row, "--out", str(tmp_path)])

    assert written(tmp_path) == returned
    (found,) = returned["rows"]
    eager, ours = found["contenders"]
    assert (eager["name"], ours["name"]) == (EAGER, TORCHGRAPH)
    assert ours["calls"]["programs"] > trainers.FIRST // 2
    assert ours["calls"]["eager"] == 0
    for clock in trainers.CLOCKS:
        assert eager[clock]["speed_against_eager"] == 1
        assert 0 < ours[clock]["first_step_seconds"] < ours[clock]["start_seconds"]
    assert "graphed small" in capsys.readouterr().out


def test_trainers_compare_each_clock_and_refuse_other_parameters():
    seconds = {"first": [3.0, 2.0], "wall": 14.0, "cpu": 12.0, "bits": "a", "norm": 1.0}
    started = {EAGER: {**seconds, "wall": 4.0, "cpu": 4.0}, TORCHGRAPH: seconds}
    trainers.compare_states(started)
    rounds = {
        name: {"wall": Spread((wall,)), "cpu": Spread((cpu,))}
        for name, wall, cpu in ((EAGER, 1.0, 1.0), (TORCHGRAPH, 0.5, 2.0))
    }

    found = trainers.entry(TORCHGRAPH, started, rounds, None)

    assert (found["wall"]["break_even"], found["wall"]["speed_against_eager"]) == (40, 2)
    assert (found["cpu"]["break_even"], found["cpu"]["speed_against_eager"]) == (None, 0.5)
    started["torch.compile"] = {**seconds, "bits": "b", "norm": 1.0001}
    trainers.compare_states(started)
    started[TORCHGRAPH] = {**seconds, "bits": "b"}
    with pytest.raises(SystemExit, match="torchgraph aten: other parameters than eager's"):
        trainers.compare_states(started)


@pytest.mark.parametrize(
    ("excess", "ours", "even"),
    [(-1.0, 0.5, 20), (-1.0, 2.0, None), (10.0, 0.5, 40), (10.0, 1.0, None), (0.2, 0.5, 21)],
)
def test_from_which_step_on_no_more_time_was_taken(excess, ours, even):
    assert table.break_even(excess, ours, eager=1.0) == even


@pytest.mark.slow
def test_a_child_that_fails_or_takes_long_says_so():
    with table.Child(["table", "--child", "no such"]) as child, pytest.raises(RuntimeError) as info:
        child.hears(60)
    assert "invalid choice: 'no such'" in str(info.value)
    arguments = ["table", "--child", EAGER, "--models", "ppo"]
    with table.Child(arguments) as child, pytest.raises(RuntimeError, match="longer than 0 s"):
        child.hears(0.05)


def test_the_table_has_twenty_models_of_six_fields():
    assert len(ENTRIES) == 20
    assert {entry.field for entry in ENTRIES.values()} == {
        "vision", "language", "audio", "graph", "RL", "diffusion",
    }  # fmt: skip
    for name in ("m5", "gcn", "mpnn", "dqn", "ppo", "dit", "ddpm", "vit"):
        work = ENTRIES[name].case.on(CPU)
        work.loss_fn(work.model(work.x), work.y).backward()
        assert all(p.grad is not None for p in work.model.parameters()), name


def test_what_is_published_is_what_was_measured():
    for path, text in table_page.rendered().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m benchmarks.table --page"


@pytest.mark.slow
def test_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    start.main(["--quick", "--models", "mlp", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "start"
    (model,) = result["models"]
    assert list(model["seconds"]) == [EAGER, "compile fused", "torchgraph auto"]
    for seconds in model["seconds"].values():
        assert list(seconds) == ["1", "2", "3", "4", "5", "10"]
        medians = [spread["median"] for spread in seconds.values()]
        assert medians == sorted(medians)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines if "written to" not in line)


def test_even_with_eager():
    ours, eager = {"1": 3.0, "2": 4.0, "5": 5.0}, {"1": 1.0, "2": 2.0, "5": 5.0}
    assert start.break_even(ours, eager) == "from 5 steps on"
    assert start.break_even(eager, ours) == "from 1 steps on"
    assert start.break_even(ours, {**eager, "5": 4.0}) == "after more than 5 steps"


@pytest.mark.slow
def test_optimizers(tmp_path: Path):
    optimizers.main(["--quick", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "optimizers"
    for entries in result["sizes"].values():
        assert len(entries) == 6
        assert entries["AdamW"]["of_adamw"] == 1
        assert all(entry["seconds"]["median"] > 0 for entry in entries.values())


def test_labels(tmp_path: Path):
    labels.main(["--quick", "--models", "mlp", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "labels"
    (model,) = result["models"]
    assert list(model["seconds"]) == ["off", "not asked", "on"]
    assert 0 < model["asking_seconds"]["median"] < 1e-5
    assert 0 < model["share_off"] < 0.01


@pytest.mark.slow
def test_optional_passes(tmp_path: Path):
    rows = "conv6 inference,table of 20k"
    optional_passes.main(["--quick", "--only", rows, "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "optional_passes"
    assert [row["name"] for row in result["rows"]] == ["conv6 inference", "table of 20k"]
    for row in result["rows"]:
        first, *others = row["contenders"]
        assert first["name"] == "graph"
        assert first["speed_against_first"] == 1
        assert all(entry["seconds"]["median"] > 0 for entry in others)
    # In a process of its own: in this one the memory may be there already, of earlier tests.
    assert optional_passes._peak_of_child("delayed") > 0


def test_call(tmp_path: Path):
    call.main(["--quick", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "call"
    assert result["settings"]["modules"] == 10
    assert result["settings"]["parameters"] == 20
    assert list(result["forms"])[-1] == "python"
    for measured in result["forms"].values():
        assert set(measured["in the loop"]) == {"median", "min", "max", "quartiles"}
        assert measured["hot"]["median"] > 0
        assert measured["parts"]["guards"]["hot"]["median"] > 0


def test_guards(tmp_path: Path):
    guards.main(["--quick", "--out", str(tmp_path)])

    result = written(tmp_path)
    kinds = [way for way in result["ways"].values() if "wins" in way]
    assert len(kinds) == 5
    assert len(result["ways"]) == 7
    assert all(way["in the loop"]["median"] > 0 for way in result["ways"].values())
    assert all(set(way["wins"]) == {"hot", "in the loop"} for way in kinds)


def test_capture(tmp_path: Path):
    capture.main(["--quick", "--models", "mlp", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "capture"
    two, three = result["families"]["mlp"]
    assert two["nodes"]["captured"] < three["nodes"]["captured"]
    assert set(result["fits"]["mlp"]) == {"start", "per_node", "exponent"}


@pytest.mark.slow
def test_fusions(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fusions.main(["--quick", "--only", "bias_gelu,infer", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "fusions"
    assert {row["name"] for row in result["rows"]} == {"bias_gelu", "infer"}
    for row in result["rows"]:
        assert row["contenders"]
        assert row["contenders"][0]["speed_against_first"] == 1
        assert set(row["skipped"].values()) <= {"--no-compile"}
    assert "FuseAttention" in capsys.readouterr().out


def test_a_fusion_with_another_result_is_not_timed():
    x = torch.ones(2)
    row = fusions.Row("wrong", "", lambda: {"one": lambda: x, "other": lambda: [x + 1]})

    with pytest.raises(SystemExit, match="wrong: other differs from one by up to 1"):
        fusions._check(row, row.make())


@pytest.mark.slow
def test_memory_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    memory.main(["--quick", "--models", "mlp", "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result["benchmark"] == "memory"
    (model,) = result["models"]
    names = [entry["name"] for entry in model["contenders"]]
    assert names == list(memory_modes.CONTENDERS)
    for entry in model["contenders"]:
        assert entry["measured_bytes"] > 0
        assert entry["seconds_per_step"]["median"] > 0
        assert "torch.profiler" in entry["method"]
    assert "of unplanned" in capsys.readouterr().out


def test_memory(capsys: pytest.CaptureFixture[str]):
    found = memory.main(["--model", "mlp", "--contender", TORCHGRAPH, "--steps", "2"])

    assert json.loads(capsys.readouterr().out) == found
    assert found["method"]
    if memory.reset_peak():
        assert 0 <= found["step"]["bytes"] < found["step"]["before"]


@pytest.mark.slow
def test_memory_of_large_models_is_against_the_best_of_pytorch(tmp_path: Path):
    memory_large.main(["--quick", "--models", "mlp_wide", "--steps", "2", "--out", str(tmp_path)])

    (model,) = written(tmp_path)["models"]
    found = model["contenders"]
    assert list(found) == ["eager", "eager fused", TORCHGRAPH, memory.MEMORY_OPTIONS]
    assert min(entry["of_best"] for name, entry in found.items() if "eager" in name) == 1
    assert found[memory.MEMORY_OPTIONS]["of_best"] > 0


_LARGE = {case.name for case in (*GPU_CASES, *LARGE_CASES)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _LARGE)) for name in CASES]
)
def test_a_case_is_made_the_same_each_time(name: str):
    one, other = CASES[name].on(CPU), CASES[name].on(CPU)

    assert torch.equal(one.x, other.x)
    for left, right in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(left, right)
    with torch.no_grad():
        assert one.loss_fn(one.model(one.x[:2]), one.y[:2]).ndim == 0


def test_defaults_are_the_promised_models():
    assert DEFAULT[:4] == ("mlp", "conv6", "mobilenet_v2", "gpt")
    assert sum(isinstance(m, torch.nn.Linear) for m in CASES["mlp"].on(CPU).model.modules()) == 3
    assert sum(isinstance(m, torch.nn.Conv2d) for m in CASES["conv6"].on(CPU).model.modules()) == 6


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        step.main(["--models", "resnet"])
    assert "no such model: resnet" in capsys.readouterr().err


def test_a_contender_that_fails_is_skipped_with_its_reason():
    started: list[step.Started] = []
    broken = step.Contender("broken", lambda work: (_ for _ in ()).throw(ValueError("why\nmore")))

    assert step._begin(broken, CASES["mlp"], CPU, None, started) == "ValueError: why"
    assert not started


def test_contenders_take_turns():
    order: list[str] = []
    calls = [lambda name=name: order.append(name) for name in "ab"]

    spreads = alternate(Clock(CPU), calls, rounds=3, least_seconds=1e-9)

    runs = "".join(order)
    turns = [one for index, one in enumerate(runs) if not index or runs[index - 1] != one]
    assert "".join(turns) == "ababab"  # warm-up, ab, ba, ab
    assert [len(spread.rounds) for spread in spreads] == [3, 3]


def test_spread():
    spread = Spread((3.0, 1.0, 2.0))

    assert spread.median == 2.0
    assert spread.as_json() == {"median": 2.0, "min": 1.0, "max": 3.0, "quartiles": [1.5, 2.5]}


def test_a_fit_of_a_line_is_linear():
    rows = [
        {"nodes": {"captured": n}, "seconds": {"median": 0.1 + 0.002 * n}} for n in (10, 100, 1000)
    ]

    found = capture.fit(rows)

    assert found.start == pytest.approx(0.1)
    assert found.per_node == pytest.approx(0.002)
    assert 0.7 < found.exponent < capture.LINEAR


def test_a_fit_of_a_square_is_not():
    rows = [
        {"nodes": {"captured": n}, "seconds": {"median": 1e-6 * n * n}} for n in (10, 100, 1000)
    ]

    assert capture.fit(rows).exponent > 1.5


def test_a_new_result_takes_the_place_of_the_old(tmp_path: Path):
    for number in (1, 2):
        path = record.save({"number": number}, tmp_path, "step", "", "clipping, k = 8")

    assert path == tmp_path / "step-clipping_k_8.json"
    assert json.loads(path.read_text())["number"] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_each_model_has_a_file_of_its_own(tmp_path: Path):
    chosen = ["--models", "mlp,mlp_batch_1", "--contenders", EAGER, "--label", "alone"]
    step.main(["--quick", *chosen, "--out", str(tmp_path)])

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-cpu-mlp-alone.json", "step-cpu-mlp_batch_1-alone.json"}


@pytest.mark.slow
def test_data_parallel(tmp_path: Path):
    chosen = ["--models", "mlp", "--contenders", "DDP,torchgraph aten"]
    result = data_parallel.main(["--quick", *chosen, "--out", str(tmp_path)])

    first, second = result["models"]["mlp"]
    assert (first["name"], second["name"]) == ("DDP", "torchgraph aten")
    assert first["time_against"] == {"DDP": 1}
    assert second["seconds"]["median"] > 0
    assert (tmp_path / "data_parallel.json").exists()


def test_a_quick_run_replaces_no_result():
    assert command.CommandLine("").read(["--quick"]).out != record.RESULTS
    assert command.CommandLine("").read([]).out == record.RESULTS


RESULTS = sorted(record.RESULTS.iterdir())
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_is_cited_and_holds_no_sample(path: Path):
    documents = [ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]
    link = f"results/{path.name})"

    assert any(link in document.read_text(encoding="utf-8") for document in documents)
    assert list(samples(json.loads(path.read_text(encoding="utf-8")))) == []


def samples(value: Any) -> Iterator[list[float]]:
    """Lists of more numbers than a spread has ends."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    numbers = [item for item in items if isinstance(item, (int, float))]
    if isinstance(value, list) and len(numbers) > 2:
        yield numbers
    for item in items:
        yield from samples(item)


def test_every_contender_that_needs_no_gpu_takes_a_step():
    for contender in CONTENDERS.values():
        if not (contender.cuda_only or contender.compiles):
            take, _ = contender.make(CASES["mlp"].on(CPU))
            assert take().ndim == 0


@pytest.mark.slow
def test_ops(tmp_path):
    result = ops.main(["--quick", "--out", str(tmp_path)])

    assert len(result["rows"]) == len(ops.ROWS)
    assert all(row["ours"]["median"] > 0 for row in result["rows"])
    assert [path.name for path in tmp_path.iterdir()] == ["ops-cpu.json"]


@pytest.mark.slow
def test_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = ["clipping", "accumulation, k = 8"]
    returned = features.main(["--quick", "--features", "; ".join(chosen), "--out", str(tmp_path)])

    result = written(tmp_path)
    assert result == returned
    assert [entry["name"] for entry in result["features"]] == chosen
    assert set(chosen) < set(FEATURES)
    for entry in result["features"]:
        assert entry["torchgraph"]["seconds_per_step"]["median"] > 0
        assert "memory" not in entry["eager"]
    assert result["replays"]["ratio"] > 0
    assert "8 forwards and backwards" in capsys.readouterr().out


def test_peak_of_a_feature():
    step = feature_cases.make("clipping", "torchgraph", feature_cases.QUICK, CPU)
    step()
    found = features._allocated(step)
    assert set(found) == {"bytes", "method"}
    assert found["bytes"] > 0
