"""Which stages there are, in the order of what they teach, with the seconds that each may take."""

from __future__ import annotations

import sys
from dataclasses import replace

from .stage import Job, Stage

SECONDS = 350.0
"""All of `make gpu-first`, and each piece of `make gpu-second`: below six minutes."""
PATIENCE = 6
"""How much longer it may take without a GPU: such a machine may be busy, and is no loss."""
MODELS = ("mlp", "gpt", "resnet18", "lstm")
LAUNCH_BOUND = ("act", "world_model", "gpt", "mlp", "vit_tiny")
DTYPES = ("float32", "bfloat16", "float16")
SHARED = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
"""Of jobs beside each other: none takes all cores."""
REPEATABLE = {**SHARED, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
UNCACHED = {**REPEATABLE, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor has memory of its own, so that a checker sees where it ends."""


def first(*, dry: bool, seed: int, stub: bool = False) -> list[Stage]:
    """The stages of `make gpu-first`; with ``stub`` as `tests.gpu.walk` runs them."""
    options = _options(dry=dry, seed=seed)

    def job(name: str, module: str, *words: str, **more: dict[str, str]) -> Job:
        command = (sys.executable, "-m", f"tests.gpu.{module}", *words, *options)
        return Job(name, command, more.get("environment", SHARED))

    if dry:
        launches = [
            ("mlp", "float32", "all"),
            ("act,gpt,vit_tiny", "float32", "few"),
            ("world_model", "bfloat16", "few"),
        ]
    elif stub:
        others = ",".join(case for case in LAUNCH_BOUND if case != "mlp")
        launches = [
            (cases, p, which)
            for p in ("bfloat16", "float32")
            for cases, which in (("mlp", "all"), (others, "few"))
        ]
    else:
        launches = [(case, p, "all") for case in LAUNCH_BOUND for p in ("bfloat16", "float32")]
    at_once = 2 if dry or stub else 16
    stages = [
        Stage(
            "ceilings",
            "the machine; what nothing on it is faster than",
            (job("ceilings", "ceilings", environment={}),),
            *(20, 100),  # the first import of torch on a machine may take most of it
        ),
        Stage(
            "ops",
            "each op beside float64",
            tuple(job(d, "ops", "all", d, environment=REPEATABLE) for d in DTYPES),
            *(40, 80),
            at_once=at_once,
        ),
        Stage(
            "replay",
            "30 steps as CUDA Graphs beside eager",
            tuple(job(m, "replay", m, environment=REPEATABLE) for m in MODELS),
            *(70, 110),
            prepare=80,
            at_once=at_once,
        ),
        Stage(
            "launches",
            "small steps beside eager, compiled, made by hand",
            tuple(job(f"{c} {p}", "launches", c, p, which) for c, p, which in launches),
            *(140, 180),
            prepare=100,
            at_once=at_once,
        ),
        Stage(
            "asserts",
            "an index out of range in a replay",
            tuple(job(kind, "asserts", kind) for kind in ("eager", "graph")),
            *(15, 40),
            at_once=at_once,
        ),
        Stage(
            "sanitizer",
            "memory that the updates touch",
            (job("sanitizer", "sanitized", environment=UNCACHED),),
            *(45, 120),
        ),
    ]
    if stub:
        stages.pop()  # the tool needs a GPU
    return list(map(_patient, stages)) if dry or stub else stages


def second(*, dry: bool, seed: int, stub: bool = False) -> list[Stage]:
    """The pieces of `make gpu-second`, each of which may be run alone."""
    options = _options(dry=dry, seed=seed)

    def job(name: str, module: str, *words: str) -> Job:
        return Job(name, (sys.executable, "-m", f"tests.gpu.{module}", *words, *options))

    def timed(case: str, *groups: str) -> tuple[Job, ...]:
        words = ("models", "time", case, "bfloat16")
        return tuple(job(f"{case} {group}", *words, group) for group in groups)

    both, peaks = ("backends", "others"), ("models", "memory")
    stages = [
        Stage("tests", "what is marked cuda", (job("tests", "marked"),), *(240, SECONDS)),
        Stage(
            "kernels", "our kernels beside a copy", (job("kernels", "kernels", "all"),), *(120, 300)
        ),
        Stage("gpt2", "124M parameters", timed("gpt2", *both), *(240, SECONDS), at_once=1),
        Stage(
            "resnet50",
            "convolutions, batch 32",
            timed("resnet50", *both),
            *(200, SECONDS),
            at_once=1,
        ),
        Stage(
            "bert",
            "an encoder, 128 tokens, batch 32",
            timed("bert_base", *both),
            *(200, SECONDS),
            at_once=1,
        ),
        Stage(
            "memory",
            "peaks, each in a process of its own",
            tuple(job(c, *peaks, c, "bfloat16", "memory") for c in ("resnet50", "gpt2")),
            *(200, SECONDS),
            at_once=1,
        ),
    ]
    if stub:
        return list(map(_patient, stages))
    # Dry, all models are the same small one.
    once = [_patient(one) for one in stages if one.name not in ("resnet50", "bert")]
    return [replace(one, jobs=one.jobs[:1]) for one in once] if dry else stages


def _patient(stage: Stage) -> Stage:
    return replace(stage, limit=PATIENCE * stage.limit, prepare=PATIENCE * stage.prepare)


def _options(*, dry: bool, seed: int) -> tuple[str, ...]:
    return (*(["--dry"] if dry else []), "--seed", str(seed))
