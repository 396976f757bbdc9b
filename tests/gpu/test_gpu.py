"""`make gpu-first` and `make gpu-second`: walked without a GPU; faults that they have to find."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.gpu import (
    __main__ as command,
    build,
    kernels,
    ops,
    plan,
    replay,
    report,
    sanitized,
    stage,
)
from tests.gpu.machine import activity
from tests.gpu.op_cases import CASES, UPDATES, Given, Pair
from tests.gpu.training import Trace

WALKED = {
    "first": ["ceilings", "ops", "replay", "launches", "asserts", "sanitizer"],
    "second": ["tests", "kernels", "gpt2", "memory"],
}


@pytest.mark.timeout(900)  # two minutes on an idle machine
@pytest.mark.slow
@pytest.mark.parametrize("what", WALKED)
def test_all_stages_are_walked_without_a_gpu(what, tmp_path):
    walk = [sys.executable, "-m", "tests.gpu", what, "--dry", "--out", str(tmp_path)]
    done = subprocess.run(walk, cwd=stage.ROOT, capture_output=True, text=True)
    log = (tmp_path / f"gpu-{what}.log").read_text(encoding="utf-8")
    result = json.loads((tmp_path / f"gpu-{what}.json").read_text(encoding="utf-8"))
    lines = done.stdout.splitlines()

    assert done.returncode == 0, f"{done.stdout}\n{log}"
    assert [one["name"] for one in result["stages"]] == WALKED[what]
    for one in result["stages"]:
        assert all(job["rows"] for job in one["jobs"]), one["name"]
    assert len(lines) <= report.LINES
    assert max(map(len, lines)) <= report.WIDTH


# --- stages ---------------------------------------------------------------------------------------


def job(name, source):
    return stage.Job(name, (sys.executable, "-c", source))


def outcomes(found):
    return {one["name"]: one["outcome"] for one in found["jobs"]}


ROW = 'print(\'{"row": {"name": "a", "outcome": "ok"}}\', flush=True)'


def test_a_job_that_hangs_or_dies_takes_no_other_with_it():
    jobs = (
        job("good", f"print('a word of a library'); {ROW}"),
        job("hangs", f"{ROW}; import time; time.sleep(600)"),
        job("dies", f"{ROW}; import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        job("fails", f"{ROW}; raise ValueError('why')"),
    )
    log = []
    found = stage.run(stage.Stage("s", "", jobs, 1, 5), 5, log.append)

    assert outcomes(found) == {
        "good": "ok",
        "hangs": "ended after 5 s, the limit of the stage",
        "dies": "signal SIGSEGV",
        "fails": "exit status 1: ValueError: why",
    }
    assert [len(one["rows"]) for one in found["jobs"]] == [1, 1, 1, 1]
    assert found["seconds"] < 60
    assert any("a word of a library" in text for text in log)


def test_jobs_prepare_together_and_measure_in_turn(tmp_path):
    source = """
import time
from tests.gpu import job
time.sleep(0.2)
job.turn()
start = time.time()
time.sleep(0.2)
job.row("measured", start=start, end=time.time())
"""
    jobs = tuple(job(str(number), source) for number in range(3))
    # One at a time prepares; those that wait are out of the way.
    found = stage.run(stage.Stage("s", "", jobs, 1, 60, prepare=50, at_once=1), 60)
    spans = sorted((row["start"], row["end"]) for one in found["jobs"] for row in one["rows"])

    assert set(outcomes(found).values()) == {"ok"}
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_a_job_that_is_not_prepared_in_time_does_not_keep_the_others(monkeypatch):
    monkeypatch.setattr(stage, "GRACE", 1.0)
    waits = "from tests.gpu import job; job.turn(); job.row('measured')"
    jobs = (job("slow", "import time; time.sleep(600)"), job("ready", waits))
    found = stage.run(stage.Stage("s", "", jobs, 1, 60, prepare=9), 60)

    assert outcomes(found) == {"slow": "ended: not prepared after 10 s", "ready": "ok"}
    assert found["jobs"][1]["rows"]


@pytest.mark.slow
def test_a_stage_that_is_cut_short_has_time_to_measure():
    waits = "from tests.gpu import job; job.turn(); job.row('measured')"
    jobs = (job("slow", "import time; time.sleep(600)"), job("ready", waits))
    found = stage.run(stage.Stage("s", "", jobs, 1, 60, prepare=40), 15)  # prepare for 10 s

    assert outcomes(found)["ready"] == "ok"
    assert found["jobs"][1]["rows"]


def test_results_are_written_after_each_stage_and_no_stage_begins_too_late(tmp_path, monkeypatch):
    written = []
    write = command._write

    def noted(result, path):
        write(result, path)
        written.append([one["name"] for one in json.loads(path.read_text())["stages"]])

    monkeypatch.setattr(command, "_write", noted)
    monkeypatch.setattr(command, "LEAST_SECONDS", 1.0)
    slow = stage.Stage("slow", "", (job("j", "import time; time.sleep(600)"),), 1, 60)
    last = stage.Stage("last", "", (job("j", ROW),), 1, 60)
    result = {"benchmark": "b", "stages": []}
    began = time.monotonic()
    command.run([slow, last], 3.0, result, tmp_path)

    assert time.monotonic() - began < 60
    assert written == [["slow"], ["slow", "last"]]
    assert outcomes(result["stages"][1]) == {"j": "never begun: no time was left"}
    assert report.failed(result)


def test_the_limits_leave_room_for_all_stages():
    stages = plan.first(dry=False, seed=0)
    assert sum(one.expected for one in stages) <= plan.SECONDS < 360
    assert all(one.expected <= one.limit for one in stages)
    assert all(one.limit <= plan.SECONDS for one in plan.second(dry=False, seed=0))
    assert len(command.listing().splitlines()) < report.LINES


def test_an_unknown_piece_is_refused():
    with pytest.raises(SystemExit, match="no such stage: nothing; there are tests, kernels"):
        command.main(["second", "--dry", "--only", "nothing"])


# --- the table ------------------------------------------------------------------------------------


def full(outcome):
    """A result of `make gpu-first` with all rows, of which each has that outcome."""
    rows = {
        "ceilings": [{"name": "machine", "gpu": "NVIDIA H100 80GB HBM3", "torch": "2.11.0+cu130"}],
        "ops": [{"name": n, "error": 1e-7} for n in CASES],
        "replay": [],
        "asserts": [
            {"name": n, "raised": n, "said": "AcceleratorError: " * 9} for n in ("eager", "graph")
        ],
        "launches": [],
        "sanitizer": [{"name": "updates", "updates": 14, "errors": 0}],
    }
    stages = []
    for one in plan.first(dry=False, seed=0):
        jobs = []
        for each in one.jobs:
            found = [dict(row, outcome=outcome) for row in rows[one.name]]
            if one.name == "ops":
                found = [dict(row, dtype=each.name) for row in found]
            if one.name == "replay":
                found = of_replay(each.name, outcome)
            if one.name == "launches":
                case, precision = each.name.split()
                seconds = {name: {"median": 0.123} for name in report.LETTERS}
                found = [{"name": case, "precision": precision, "outcome": outcome}]
                found[0].update(seconds=seconds, ratios={"best": 1.234})
            jobs.append({"name": each.name, "outcome": outcome, "seconds": 1, "rows": found})
        stages.append(stage.as_json(one, 1.0, 1.0, jobs))
    return {"stages": stages}


def of_replay(model, outcome):
    figures = {"model": model, "outcome": outcome, "error": 1e-12, "equal_losses": 3, "steps": 30}
    step = {"milliseconds": 1.0, "kernels": 9.0, "busy": 0.5, "peak_mib": 1.0, "pool_mib": 1.0}
    return [
        *({**figures, "name": s.name, "op_by_op_bits": True} for s in replay.scenarios(model)),
        {**step, "model": model, "outcome": outcome, "name": "step, eager"},
        {**step, "model": model, "outcome": outcome, "name": "step, graph"},
    ]


@pytest.mark.parametrize("outcome", ["ok", "RuntimeError: " + 30 * "a long reason "])
def test_a_table_has_at_most_60_lines_of_80_columns(outcome):
    found = full(outcome)
    lines = report.table(found).splitlines()

    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert report.failed(found) is True  # the two asserts raise different classes, too
    assert any("asserts: eager raises" in line or "and " in line for line in lines[-10:])
    for one in plan.first(dry=False, seed=0):
        assert any(line.startswith(f"{one.name}: ") for line in lines)


# --- what is found --------------------------------------------------------------------------------


def test_a_wrong_op_is_found():
    right = torch.randn(100, dtype=torch.float64)
    rounded = right.float()
    unwritten = rounded.clone()
    unwritten[7] = torch.nan
    biased = rounded * (1 + 4e-6)

    assert 0 < ops.worst([Pair(rounded, right)])["share"] < 1
    for pair in (
        Pair(unwritten, right),
        Pair(biased, right),
        Pair(rounded, rounded.nextafter(torch.tensor(9.0)), True),
        Pair(rounded[:5], right),
        Pair(torch.tensor([torch.inf]), torch.tensor([-torch.inf])),
    ):
        assert ops.worst([Pair(rounded, right), pair])["outcome"] == "wrong"
    assert ops.worst([])["outcome"] == "nothing was compared"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_element_among_a_million_is_found(dtype):
    right = torch.randn(1 << 20, dtype=torch.float64)
    found = right.to(dtype)
    assert ops.worst([Pair(found, right)])["outcome"] == "ok"
    found[right.abs().argmax()] = 0
    assert ops.worst([Pair(found, right)])["outcome"] == "wrong"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_losses_are_within_the_limits_for_any_seed(dtype):
    for seed in range(4):
        given = Given(torch.device("cpu"), ops.DTYPES[dtype], torch.Generator().manual_seed(seed))
        assert ops.worst(CASES["cross_entropy"](given))["outcome"] == "ok", seed


def test_each_op_with_a_cuda_kernel_is_checked():
    forms = {"_backward": "", "_backward_": ""}
    names = set()
    for name in build.implemented():
        for ending, form in forms.items():
            name = name.removesuffix(ending) + form if name.endswith(ending) else name
        names.add(name)
    assert names <= set(CASES)
    assert len(build.implemented()) == 20


def test_a_run_that_is_not_eagers_is_found():
    def trace(loss=1.0, rate=0.1, seed=0):
        generator = torch.Generator().manual_seed(seed)
        losses = [torch.tensor(loss)]
        return Trace(losses, [], {"w": torch.ones(3)}, {"lr 0": rate}, generator.get_state())

    assert replay.differing(trace(), trace()) == ""
    assert replay.unequal(trace(), trace()) == []
    assert replay.differing(trace(), trace(1.0000001)) == "the loss of step 0"
    assert replay.differing(trace(), trace(seed=1)) == "the generator"
    assert replay.farthest(trace(2.0), trace())[0] == 1
    assert replay.unequal(trace(rate=0.2), trace()) == ["lr 0 is 0.2, not 0.1"]
    assert replay.unequal(trace(seed=1), trace()) == ["another state of the generator"]


def test_what_is_not_finite_compares_nothing():
    good, bad = replay.FEATURES[0], Trace([torch.tensor(torch.nan)], [], {"w": torch.ones(3)})
    assert replay.infinite(bad, good) == ["the loss of step 0 is not finite"]
    bad = Trace([torch.tensor(1.0)], [], {"w": torch.tensor(torch.inf)})
    assert replay.infinite(bad, good) == ["w is not finite"]


def test_the_sanitizer_has_to_say_that_it_has_checked():
    ran = "\n".join(json.dumps({"row": {"name": name}}) for name in UPDATES)
    good = f"{ran}\n========= ERROR SUMMARY: 0 errors"
    assert sanitized.told(good, dry=False)["outcome"] == "ok"
    nothing = f"{ran}\n========= No attachable process found"
    assert "counted nothing" in sanitized.told(nothing, dry=False)["outcome"]
    wrong = f"{ran}\n========= Invalid __global__ read\n========= ERROR SUMMARY: 2 errors"
    assert "2 errors; the first: Invalid" in sanitized.told(wrong, dry=False)["outcome"]
    some = f"{ran[:70]}\n========= ERROR SUMMARY: 0 errors"
    assert "updates ran" in sanitized.told(some, dry=False)["outcome"]


def test_the_gaps_between_kernels():
    spans = [(0.0, 1.0), (2.0, 3.0), (2.5, 4.0), (6.0, 7.0)]
    found = activity(spans, 2)
    assert found.kernels == 2
    assert found.busy == pytest.approx(4 / 7)
    assert found.gap == pytest.approx(1.0)


def raw(*kernels_: list[str]) -> str:
    """A raw page of ncu as CSV: names, units, a line for each kernel."""
    names = ["ID", "Kernel Name", *kernels.METRICS.values()]
    units = ["", "", "%", "%", "%", "register/thread", "ns"]
    rows = [names, units, *([str(n), *each] for n, each in enumerate(kernels_))]
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return "\n".join(["==PROF== Connected to process 1", *lines])


def test_what_ncu_prints_is_read():
    update = ["void torchgraph::update<Adam>(UpdateTable)", "91.5", "20", "80", "64", "1,234,567"]
    counts = ["void torchgraph::add_one(StepsTable)", "1", "1", "1", "16", "2,000"]
    found = kernels.longest(raw(update, counts))

    assert found["kernel"] == update[0]
    assert found["nanoseconds"] == 1234567
    assert (found["dram_share"], found["registers"], found["launches"]) == (91.5, 64, 2)
    with pytest.raises(RuntimeError, match="no kernel of ours"):
        kernels.longest(raw())


# --- what was built -------------------------------------------------------------------------------


def test_libraries_of_other_sources_are_refused(tmp_path, monkeypatch):
    assert "make gpu-build" in build.why_not(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"sources": build.digest()}))
    assert build.why_not(tmp_path) == ""
    (tmp_path / "manifest.json").write_text(json.dumps({"sources": "0"}))
    assert "from other sources" in build.why_not(tmp_path)
    monkeypatch.setattr(build, "BUILT", tmp_path)
    with pytest.raises(SystemExit, match="from other sources"):
        command.main(["first", "--out", str(tmp_path)])


def test_a_symbol_beside_the_stable_abi_is_found(monkeypatch):
    symbols = [
        "U aoti_torch_get_dim",
        "U torch_call_dispatcher",
        "w torch::autograd::impl::bump_version(at::Tensor const&)",
        "U std::terminate()@GLIBCXX_3.4",
    ]
    monkeypatch.setattr(build, "output", lambda *_: "\n".join(symbols))
    assert build.of_symbols() == []
    symbols.append("U c10::detail::torchCheckFail(char const*)")
    assert any("torchCheckFail" in line for line in build.of_symbols())


def test_machine_code_of_another_architecture_is_not_enough(monkeypatch):
    count = len(list(build.CSRC.rglob("*.cu")))
    listed = [f"_C_cuda.{n}.{kind}" for n in range(count) for kind in ("sm_80.cubin", "sm_90.ptx")]
    monkeypatch.setattr(build, "cuobjdump", lambda: "cuobjdump")
    monkeypatch.setattr(build, "output", lambda *_: "\n".join(listed))
    (wrong,) = build.of_machine_code()
    assert "machine code for sm_90 of 0 files" in wrong


def test_the_results_have_a_place_in_the_documents():
    text = (Path(stage.ROOT) / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for one in [*plan.first(dry=False, seed=0), *plan.second(dry=False, seed=0)]:
        assert f"`{one.name}`" in text
