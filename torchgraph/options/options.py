"""Options: what a Graph's config comes to, frozen. Equal options, equal programs.

What changes no program is not compared: it is no part of the key of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..distributed.parallel import DataParallel, Zero

CheckpointPolicy = str | tuple[Any, ...] | int | float | None
"""The values that checkpointing keeps: ``"matmuls"``, results of ops, bytes, or a share."""


class Insertable:
    """Base of `torchgraph.passes.Pass`, for `config.passes.insert`."""


def known_passes(base: type = Insertable) -> set[str]:
    """The names of all passes that are defined, the user's too."""
    names = {str(vars(base)["name"])} if "name" in vars(base) else set()
    return names.union(*map(known_passes, base.__subclasses__()))


@dataclass(frozen=True)
class PassOptions:
    """The choice of passes: names switched off, extra passes by anchor, and where to stop."""

    disabled: frozenset[str] = frozenset()
    inserted: tuple[tuple[str, Any], ...] = ()
    """(name of the pass that it follows, the pass); an empty name puts it first."""
    max_passes: int | None = None
    max_edits: int | None = None
    dump: str = field(default="", compare=False)
    """The directory in which programs are dumped; empty for none."""
    verify: str = field(default="fast", compare=False)


@dataclass(frozen=True)
class ShapeBuckets:
    """Sizes that a dimension of the inputs is padded to; see `GraphConfig.set_shape_buckets`."""

    dim: int
    sizes: tuple[int, ...]
    """Ascending."""
    mask: str = ""
    """The parameter of `build` that tells real rows from padded ones."""
    whole: frozenset[str] = frozenset()
    """Parameters of `build` that are not padded."""


@dataclass(frozen=True)
class StageSetting:
    """A pipeline stage as `GraphModule.set_stage` was told of it."""

    path: str
    stage: int
    ranks: tuple[int, ...] = ()
    """The ranks of the stage; empty where another module of the stage has them."""


@dataclass(frozen=True)
class ProgramOptions:
    """Options of recording and of passes: a change makes another program."""

    training: bool = False
    fallback: str = "error"
    """The handling of a step that no program can hold: ``"error"``, or ``"eager"``."""
    buckets: ShapeBuckets | None = None
    amp: torch.dtype | None = None
    amp_policy: str = "autocast"
    """The choice of half precision: by ``"autocast"``, or by ``"oneflow"``'s colouring."""
    scaler: str = ""
    """``"dynamic"``, ``"static"`` or none: the kind of the grad scaler."""
    clip_norm: tuple[float, float] | None = None
    """(largest norm, its p) of all gradients together."""
    clip_value: float | None = None
    gradient_norms: bool = False
    checkpointed: tuple[tuple[str, bool], ...] = ()
    """(path, whether its activations are recomputed) of modules that have a setting."""
    checkpoint_policy: CheckpointPolicy = None
    micro_batches: int = 1
    whole_inputs: frozenset[str] = frozenset()
    """Parameters of `build` that are not split into micro-batches."""
    fuse_add_to_output: bool = False
    fuse_cast_scale: bool = False
    fuse_linear_cross_entropy: bool = False
    fuse_model_update: bool = False
    multi_tensor_update: bool = False
    fused_model_update_cast: bool = False
    sparse_update: bool = False
    data_parallel: DataParallel | None = None
    zero: Zero | None = None
    passes: PassOptions = field(default_factory=PassOptions)


@dataclass(frozen=True)
class LoweringOptions:
    """Options of lowering and of backends: a change makes another executable."""

    backend: str = "aten"
    switch_at: int | None = None
    """The calls that an `auto` program runs on `aten`; None: computed from the program."""
    confirm: str = "first"
    """Whether the first call of compiled code is compared before it counts: or ``"off"``."""
    rng: str = "eager"
    cuda_graph: str = "auto"
    stages: tuple[StageSetting, ...] = ()
    """The settings of modules with a stage; none without a placement."""
    pipeline_schedule: str = "1f1b"
    pipeline_outputs: str = "last"
    """The ranks that get what `build` returns: those that compute it, or ``"all"``."""
    cudnn_heuristic: bool | None = None
    """Whether cuDNN chooses algorithms by its heuristic; None leaves torch's setting alone."""
    straighten: str = "Disable"
    """The mode of ``enable_straighten_algorithm``."""
    compress_memory: bool = False
    best_memory_allocation: bool = False


@dataclass(frozen=True)
class RunningOptions:
    """Options of keeping and running programs: a change takes effect without a new program."""

    cache_size: int = field(default=8, compare=False)
    outputs_buffer_size: int = field(default=0, compare=False)
    """The number of sets of output tensors that take turns; 0: fresh ones at each call."""
    history: int = field(default=0, compare=False)
    """The number of last steps that can be run again; 0: none, and nothing is kept."""
    history_every: int | None = field(default=None, compare=False)
    """The steps from one full copy of the state to the next; None: as many as ``history``."""
    compile_timeout: float | None = field(default=600.0, compare=False)
    """Seconds that a call waits for Inductor, at most; None: as long as it takes."""
    agreement: str = field(default="program", compare=False)
    """The comparison of ranks before they run a program together."""
    agreement_timeout: float = field(default=60.0, compare=False)
    look_again: str | int = field(default="doubling", compare=False)
    """The calls by programs that are compared with eager again: ``"off"``, or every n-th."""
    profiler_labels: bool = field(default=False, compare=False)
    """Whether each op is labelled for profilers, besides while torch's own is recording."""


@dataclass(frozen=True)
class Options(ProgramOptions, LoweringOptions, RunningOptions):
    """All options of a Graph, grouped by what they change. Equal options, equal programs."""

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of the autocast that `build` runs under."""
        return self.amp if self.amp_policy == "autocast" else None

    @property
    def clips(self) -> bool:
        """True when the gradients of all optimizers are clipped together."""
        return self.clip_norm is not None or self.clip_value is not None

    @property
    def plans_memory(self) -> bool:
        """True when order or memory of the lowered program are chosen."""
        return self.straighten != "Disable" or self.uses_arena

    @property
    def uses_arena(self) -> bool:
        """True when temporaries are laid out in one block."""
        return self.compress_memory or self.best_memory_allocation

    @property
    def update_per_kind(self) -> bool:
        """True when nothing looks at, moves or skips the update of a single parameter."""
        single = (
            self.updates_fused,
            self.fuse_cast_scale,
            self.sparse_update,
            self.plans_memory,
            self.adds_up_apart,
            self.scaler == "dynamic",
            self.amp is not None and self.amp_policy != "autocast",
            bool(self.checkpointed) or self.checkpoint_policy is not None,
            self.buckets is not None,
        )
        return not any(single)

    @property
    def adds_up_apart(self) -> bool:
        """True when gradients are added up by one program, and read by another."""
        return self.micro_batches > 1 or any(stage.ranks for stage in self.stages)

    @property
    def updates_fused(self) -> bool:
        """True when a pass rewrites the optimizers' steps."""
        options = (self.fuse_model_update, self.multi_tensor_update, self.fused_model_update_cast)
        return any(options)

    @property
    def marks_gradients(self) -> bool:
        """True when capture says which gradients the optimizers read."""
        return self.updates_fused or self.backend != "aten"
