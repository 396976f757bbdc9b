"""GraphConfig: OneFlow's option verbs over a frozen Options. The only reader of the environment.

Environment: ``TORCHGRAPH_VERIFY`` = ``fast`` (default) or ``strict`` (recompute every fake value
after each pass); ``TORCHGRAPH_DUMP`` = a directory that receives each program before and after each
pass; ``TORCHGRAPH_BACKEND`` = the backend of Graphs that do not choose one (default ``auto``);
``TORCHGRAPH_CACHE_DIR`` = where compiled code is kept (default ``~/.cache/torchgraph``).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from ._torch import any_autocast
from .errors import InvalidOption, NotAvailableYet, NotSupported
from .options import Options, PassOptions

BACKENDS = ("auto", "aten", "inductor")
_CHOICES = {"TORCHGRAPH_VERIFY": ("fast", "strict"), "TORCHGRAPH_BACKEND": BACKENDS}


def _environment(name: str, default: str) -> str:
    value = os.environ.get(name, default)
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise InvalidOption(f"{name}={value!r} is not one of {', '.join(choices)}.")
    return value


def cache_directory() -> Path:
    """Where compiled code is kept: in TORCHGRAPH_CACHE_DIR, else in the user's cache directory."""
    given = os.environ.get("TORCHGRAPH_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(given) if given else Path(home, "torchgraph")


def inductor_environment() -> dict[str, str]:
    """The variables that Inductor reads its settings from, besides those that only say where."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith("TORCHINDUCTOR_") and not name.endswith("_DIR")) or name == "CXX"
    }


class PassSelection:
    """``graph.config.passes``: insert, switch off, limit and dump passes by name."""

    def __init__(self, config: GraphConfig) -> None:
        self._config = config

    def _set(self, **changes: Any) -> None:
        self._config._set(passes=replace(self._config.options.passes, **changes))

    def disable(self, *names: str) -> None:
        """Leave out passes by name. An unknown name is an `InvalidOption` at the first call."""
        self._set(disabled=self._config.options.passes.disabled | set(names))

    def enable(self, *names: str) -> None:
        """Undo `disable`."""
        self._set(disabled=self._config.options.passes.disabled - set(names))

    def insert(self, new: Any, *, after: str = "") -> None:
        """Run ``new`` (a `torchgraph.passes.Pass`) after the named pass; without a name, first."""
        if not callable(getattr(new, "apply", None)):
            raise InvalidOption(f"{new!r} is not a torchgraph.passes.Pass: it has no apply method.")
        self._set(inserted=(*self._config.options.passes.inserted, (after, new)))

    def limit(self, *, passes: int | None = None, edits: int | None = None) -> None:
        """Stop after so many passes, or so many edits in all: bisects a wrong pass."""
        self._set(max_passes=passes, max_edits=edits)

    def dump(self, directory: str | os.PathLike[str]) -> None:
        """Write each program before and after each pass into ``directory``; empty to stop."""
        self._set(dump=os.fspath(directory))


class GraphConfig:
    """The options of one Graph: ``graph.config``. Verbs and defaults are those of OneFlow 0.9.

    A change after the first call takes effect at the next one, with a new capture.
    """

    _LATER: ClassVar[dict[str, str]] = {
        "enable_zero": "ZeRO",
        "set_zero_redundancy_optimizer_mode": "ZeRO",
        "set_outputs_buffer_size": "a ring of output buffers",
        "enable_straighten_algorithm": "the order of nodes",
        "enable_compress_memory": "planned memory",
        "enable_choose_best_memory_allocation": "planned memory",
        "set_cuda_graph": "CUDA Graph replay",
    }
    _NEVER: ClassVar[tuple[str, ...]] = (
        "enable_auto_parallel",
        "enable_auto_parallel_ignore_user_sbp_config",
        "set_auto_parallel_computation_cost_ratio",
        "set_auto_parallel_wait_time",
        "enable_auto_parallel_trunk_algo",
        "enable_auto_parallel_sbp_collector",
        "enable_auto_memory",
    )

    def __init__(self) -> None:
        self.options = Options(
            passes=PassOptions(
                dump=_environment("TORCHGRAPH_DUMP", ""),
                verify=_environment("TORCHGRAPH_VERIFY", "fast"),
            ),
            backend=_environment("TORCHGRAPH_BACKEND", "auto"),
        )
        self.passes = PassSelection(self)

    def _set(self, **changes: Any) -> None:
        self.options = replace(self.options, **changes)

    @property
    def training(self) -> bool:
        """True once the Graph has an optimizer."""
        return self.options.training

    def set_backend(self, backend: str, *, switch_at: int = 16) -> None:
        """How programs run.

        ``"aten"``: Python over ATen ops, at once, bitwise equal to eager on the CPU.
        ``"inductor"``: compiled by torch's Inductor before the first step, within rounding of
        eager, equal from run to run. ``"auto"``, the default: `aten` for the first ``switch_at``
        calls of a program while another process compiles, Inductor's code from then on, also if
        that means to wait; under `torch.use_deterministic_algorithms` it is `aten`.

        Compiled code is kept on disk, for the next process too. Where nothing can be compiled, a
        warning says why, and `aten` goes on.

        Raises:
            InvalidOption: an unknown backend; ``switch_at`` is no int of at least 1.
        """
        if backend not in BACKENDS:
            known = ", ".join(map(repr, BACKENDS))
            raise InvalidOption(f"set_backend takes {known}, not {backend!r}.")
        if type(switch_at) is not int or switch_at < 1:
            raise InvalidOption(f"switch_at takes an int of at least 1, not {switch_at!r}.")
        self._set(backend=backend, switch_at=switch_at)

    def set_rng(self, mode: str) -> None:
        """``"eager"``, the default: every program draws the numbers that eager would draw.

        ``"fast"``: compiled programs draw by Inductor's generator, in the kernels that use the
        numbers; the same distributions from the same seed of torch, other numbers. `aten` draws as
        eager in any case.

        Raises:
            InvalidOption: another mode.
        """
        if mode not in ("eager", "fast"):
            raise InvalidOption(f"set_rng takes 'eager' or 'fast', not {mode!r}.")
        self._set(rng=mode)

    def set_cache_size(self, size: int) -> None:
        """Keep at most ``size`` (>= 1) programs, one per input signature; least used goes first."""
        if type(size) is not int or size < 1:
            raise InvalidOption(f"set_cache_size takes an int of at least 1, not {size!r}.")
        self._set(cache_size=size)

    def enable_amp(self, mode: bool = True, *, dtype: torch.dtype = torch.float16) -> None:
        """`build` computes in half precision where `torch.autocast` of that dtype would.

        The numbers are those of ``with torch.autocast(device, dtype):`` around the forward part of
        `build`; ``backward()`` runs outside of it, as torch recommends. Parameters stay as they
        are, each is cast once per step. OneFlow: the option of the same name.

        Raises:
            InvalidOption: ``dtype`` is neither float16 nor bfloat16.
        """
        if dtype not in (torch.float16, torch.bfloat16) or mode not in (True, False):
            raise InvalidOption(
                f"enable_amp takes a bool and dtype=torch.float16 or torch.bfloat16, not "
                f"{mode!r} and {dtype!r}."
            )
        self._set(amp=dtype if mode else None)

    def set_gradient_accumulation_steps(self, value: int, *, whole: Sequence[str] = ()) -> None:
        """Split each call into ``value`` micro-batches and update once, with the mean gradient.

        `build` sees micro-batches: every tensor input is split on dim 0 into ``value`` equal parts,
        except for the parameters of `build` that ``whole`` names. Tensors of shape ``(b, ...)``
        that it returns come back as ``(value * b, ...)``, scalars as ``(value,)``. The gradients
        are those of eager's ``(loss / value).backward()``, ``value`` times. Without an optimizer
        nothing is split. OneFlow: the option of the same name.

        Raises:
            InvalidOption: ``value`` is no int of at least 1.
        """
        if type(value) is not int or value < 1 or isinstance(whole, str):
            raise InvalidOption(
                "set_gradient_accumulation_steps takes an int of at least 1 and a list of names, "
                f"not {value!r} and {whole!r}."
            )
        self._set(micro_batches=value, whole_inputs=frozenset(whole))

    def set_clip_grad_norm(self, max_norm: float | None, norm_type: float = 2.0) -> None:
        """Clip all gradients together by their norm, as `torch.nn.utils.clip_grad_norm_` does.

        Those of every parameter that an optimizer of the Graph updates; unscaled and summed over
        micro-batches, and after the clipping of single param groups. None: no more.

        Args:
            norm_type: the p of the norm; any number, infinite ones included.

        Raises:
            InvalidOption: ``max_norm`` is negative, or one of them is no number.
        """
        if max_norm is None:
            self._set(clip_norm=None)
            return
        if not (_is_number(max_norm) and max_norm >= 0 and _is_number(norm_type)):
            raise InvalidOption(
                f"set_clip_grad_norm takes two numbers, the first of at least 0, not {max_norm!r} "
                f"and {norm_type!r}."
            )
        self._set(clip_norm=(float(max_norm), float(norm_type)))

    def set_clip_grad_value(self, clip_value: float | None) -> None:
        """Clip each element of the gradients to at most ``clip_value`` away from 0; None: no more.

        As `torch.nn.utils.clip_grad_value_` does, after all clipping by norms.

        Raises:
            InvalidOption: ``clip_value`` is no number of at least 0.
        """
        if clip_value is not None and not (_is_number(clip_value) and clip_value >= 0):
            raise InvalidOption(f"set_clip_grad_value takes a number >= 0, not {clip_value!r}.")
        self._set(clip_value=None if clip_value is None else float(clip_value))

    def enable_gradient_norms(self, mode: bool = True) -> None:
        """Compute the norm of each param group's gradients, for ``graph.report()``.

        The 2-norm as `torch.nn.utils.get_total_norm` has it: unscaled, before any clipping, summed
        over micro-batches.
        """
        self._set(gradient_norms=bool(mode))

    def enable_cudnn_conv_heuristic_search_algo(self, mode: bool = True) -> None:
        """Whether cuDNN takes its convolution algorithms by heuristic (True) or by trying them.

        It is `torch.backends.cudnn.benchmark`, off or on while the Graph runs, and as it was
        afterwards. Not called: the user's own setting. Without a GPU a warning says that nothing
        comes of it. OneFlow: the option of the same name.
        """
        self._set(cudnn_heuristic=bool(mode))

    def allow_fuse_add_to_output(self, mode: bool = True) -> None:
        """Let an op take in the addition to its result or before it.

        Matrix products (``addmm`` for ``mm`` + add), layer norms, RMS norms and their gradients.
        Within rounding of eager, not bitwise. OneFlow: the option of the same name. What was left
        alone, and why, is in ``report()``; `docs/passes.md` has figures.
        """
        self._set(fuse_add_to_output=bool(mode))

    def allow_fuse_cast_scale(self, mode: bool = True) -> None:
        """One op for a cast from half to float32 that is then multiplied by a 0-dim tensor.

        Bitwise equal. On devices for which the op is compiled; ``report()`` says where it is not.
        OneFlow: the option of the same name.
        """
        self._set(fuse_cast_scale=bool(mode))

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Each parameter's update as one op, with its clipping coefficient and gradient cast.

        For the optimizers in `torchgraph.passes.update_rules`; bitwise where the user's optimizer
        is ``fused=True``, else within rounding. OneFlow: the option of the same name.
        """
        self._set(fuse_model_update=bool(mode))

    def enable_multi_tensor_update(self, mode: bool = True) -> None:
        """The updates of all parameters of a group in one call, as `allow_fuse_model_update_ops`.

        OneFlow: the option of the same name.
        """
        self._set(multi_tensor_update=bool(mode))

    def enable_fused_model_update_cast(self, mode: bool = True) -> None:
        """Keep the half-precision cast of each weight between calls; the update writes it.

        No step casts a weight then. A weight that changed outside the Graph is cast again, as its
        version counter tells; what is written through ``parameter.data`` or a numpy array moves no
        counter: call ``graph.sync()`` after it. OneFlow: the option of the same name.
        """
        self._set(fused_model_update_cast=bool(mode))

    def __repr__(self) -> str:
        return f"(CONFIG:config:GraphConfig(training={self.training}, ))"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _later(name: str, subject: str) -> Callable[..., NoReturn]:
    def option(self: GraphConfig, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotAvailableYet(f"config.{name}: {subject} is not available yet.")

    option.__name__ = name
    option.__doc__ = f"Not available yet ({subject}). Raises `NotAvailableYet`."
    return option


def _never(name: str) -> Callable[..., NoReturn]:
    def option(self: GraphConfig, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(
            f"config.{name}: torchgraph does not search for a parallel layout. Choose one with "
            "torch.distributed (DTensor, DeviceMesh) before giving the module to the Graph."
        )

    option.__name__ = name
    option.__doc__ = "Not supported. Raises `NotSupported` with the reason."
    return option


for _name, _subject in GraphConfig._LATER.items():
    setattr(GraphConfig, _name, _later(_name, _subject))
for _name in GraphConfig._NEVER:
    setattr(GraphConfig, _name, _never(_name))


def with_dynamic_input_shape(
    *, size: int = 10, enable_shared: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator for ``__init__``: keep up to ``size`` programs, one per input signature.

    Any Graph captures anew for another shape; this only sets how many programs are kept. They
    always share the live state, so ``enable_shared=False`` is refused.
    """
    if not enable_shared:
        raise NotSupported(
            "with_dynamic_input_shape(enable_shared=False): programs share their state."
        )

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def sized(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.config.set_cache_size(size)

        return sized

    return decorate


def ambient() -> tuple[Any, ...]:
    """Torch's own switches that change what a trace records: grad mode, autocast, default dtype."""
    switches = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )
    if not any_autocast():
        return switches
    cpu, cuda = map(torch.is_autocast_enabled, ("cpu", "cuda"))
    return (
        *switches,
        cpu and torch.get_autocast_dtype("cpu"),
        cuda and torch.get_autocast_dtype("cuda"),
    )
