"""The running of programs: the backend, random numbers, the cache of programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ..environment import BACKENDS
from ..errors import InvalidOption
from .checking import OWN_CHECK, Count, OneOf, PositiveInt, holds, shown
from .options import ShapeBuckets
from .verbs import Verbs


class RunningVerbs(Verbs):
    """See `GraphConfig`."""

    def set_backend(
        self, backend: Annotated[str, OneOf(BACKENDS)], *, switch_at: PositiveInt | None = None
    ) -> None:
        """How programs run.

        ``"aten"``: Python over ATen ops, at once, bitwise equal to eager on the CPU.
        ``"inductor"``: compiled by torch's Inductor before the first step, within rounding of
        eager, equal from run to run. ``"auto"``, the default: `aten` for the first ``switch_at``
        calls of a program while another process compiles, Inductor's code from then on. Without
        ``switch_at`` the number is computed from the program, such that the compiler should long
        be done: tens of thousands for a small MLP, some hundred for a GPT. It depends on nothing
        else; the call waits if it must. Under `torch.use_deterministic_algorithms` it is `aten`.

        Compiled code is kept on disk, for the next process too. Where nothing can be compiled, a
        warning says why, and `aten` goes on.

        Raises:
            InvalidOption: an unknown backend; ``switch_at`` is no int of at least 1, or for a
                backend that never switches.
        """
        if switch_at is not None and backend != "auto":
            raise InvalidOption(
                f"set_backend({backend!r}, switch_at={switch_at}): only 'auto' switches.",
                fix=f'config.set_backend("auto", switch_at={switch_at})',
            )
        self._set(backend=backend, switch_at=switch_at)

    def set_compile_timeout(self, seconds: float | None) -> None:
        """How long a call waits for Inductor before `aten` goes on for good; 600 s by default.

        None: as long as it takes. Ctrl-C ends the wait as well. It takes effect at once.

        Raises:
            InvalidOption: no number above 0.
        """
        if seconds is not None and not seconds > 0:
            raise InvalidOption(f"set_compile_timeout takes seconds above 0, not {seconds!r}.")
        self._set(compile_timeout=seconds)

    def set_rng(self, mode: Annotated[str, OneOf(("eager", "fast"))]) -> None:
        """``"eager"``, the default: every program draws the numbers that eager would draw.

        ``"fast"``: compiled programs draw by Inductor's generator, in the kernels that use the
        numbers; the same distributions from the same seed of torch, other numbers. `aten` draws as
        eager in any case.

        Raises:
            InvalidOption: another mode.
        """
        self._set(rng=mode)

    def set_confirm(self, mode: Annotated[str, OWN_CHECK]) -> None:
        """Whether compiled code is compared with the `aten` program before it counts.

        ``"first"``, the default: in the first call after the switch to Inductor's code. ``"off"``:
        never. That call also runs the `aten` program, on a copy of what the step writes. While both
        agree within rounding, the compiled results stay. Where they do not, a `BackendWarning`
        names the node and your line, the call's results are those of `aten`, and so are all that
        follow. `set_look_again` is for later calls.

        Raises:
            InvalidOption: neither of these.
        """
        if not holds(Annotated[str, OneOf(("first", "off"))], mode):
            way_out = f"config.set_look_again({mode!r})" if holds(PositiveInt, mode) else ""
            raise InvalidOption(
                f"set_confirm takes 'first' or 'off', not {shown(mode)}.", fix=way_out
            )
        self._set(confirm=mode)

    def set_look_again(
        self, calls: Annotated[str, OneOf(("doubling", "off"))] | PositiveInt
    ) -> None:
        """Which calls that programs serve run in eager, to be compared with what a program does.

        ``"doubling"``, the default: the 2nd, 4th, 8th, ... 512th, 1,000th, and then every 1,000th
        of the Graph; of calls by compiled code, and of long steps (10 ms or more, as predicted from
        their ops), the 32nd, 128th, 512th, 1,000th and so on; of calls by compiled code that are
        shorter than 50 ms every 8,000th after the 2,000th and 4,000th. An int n: every n-th.
        ``"off"``: none, for those who measure.

        Such a call is eager's: your Python runs, prints and hooks included. The program that was
        looked at least runs besides, on copies of what the call started from; compiled code is
        compared with the `aten` program, and that with eager. Where one differs, a `ConfirmWarning`
        names the value, the node and your line, and how many calls may be wrong; calls like it go
        on in eager, or with the `aten` program where only compiled code was wrong. `report()`
        counts the looks.
        It takes effect at the next call, and makes no program anew.

        Raises:
            InvalidOption: neither of these, or an int below 1.
        """
        self._set(look_again=calls)

    def set_fallback(self, mode: Annotated[str, OneOf(("error", "eager"))]) -> None:
        """What becomes of a step that no program can hold: `.numpy()`, sparse tensors, LBFGS.

        ``"error"``, the default: a `NoProgram` at the first call or the second one, with nothing
        changed by that call. ``"eager"``: calls of that signature run in eager, inside of the Graph
        and with all that it does (scaler, clipping, accumulation, schedulers), and an
        `EagerWarning` says why, once. What shows only later, after programs have served or beyond
        the second call, never raises: eager goes on in either mode. `report()` counts the calls.

        Raises:
            InvalidOption: another mode.
        """
        self._set(fallback=mode)

    def set_cache_size(self, size: PositiveInt) -> None:
        """Keep at most ``size`` (>= 1) programs, one per input signature; least used goes first."""
        self._set(cache_size=size)

    def keep_history(self, steps: Count, *, every: PositiveInt | None = None) -> None:
        """Keep what it takes to run the last ``steps`` steps again, for `tg.bisect`; 0: nothing.

        Of each step its inputs, results, random states and learning rates are kept, and the full
        state once every so many steps. Inputs are copied, those that come again unchanged once; of
        the state, what a program writes is copied. That is memory for at most ``steps + every``
        batches and ``steps / every + 2`` states. It takes effect at the next call.

        Args:
            every: how many steps apart states are kept; ``steps`` unless given. 1 where the weights
                are changed outside of the Graph between its calls.

        Raises:
            InvalidOption: no ints, or negative ones.
        """
        self._set(history=steps, history_every=every)

    def set_shape_buckets(
        self,
        dim: Annotated[int | None, OWN_CHECK],
        sizes: Annotated[Sequence[int], OWN_CHECK] = (),
        *,
        mask: Annotated[str, OWN_CHECK] = "",
        whole: Annotated[Sequence[str], OWN_CHECK] = (),
    ) -> None:
        """Pad inputs along ``dim`` to the next of ``sizes``: few programs serve all batch sizes.

        What is returned is cut to the size of the call. A call larger than all ``sizes`` has a
        program of its own. Refused, with the line of `build`, where a real row may depend on a
        padded one; `docs/shapes.md` tells what that is.

        Args:
            dim: of every tensor that has it, in all arguments. None: nothing is padded any more.
            sizes: ints of at least 1.
            mask: the name of a parameter of `build` that torchgraph fills with a bool tensor of
                the padded size, True for real rows. Multiply the losses of the rows by it before
                you sum them; needed to train.
            whole: names of parameters of `build` that are not padded.

        Raises:
            InvalidOption: a dimension without sizes or sizes without one; another type.
        """
        if not (holds(Count | None, dim) and holds(Sequence[PositiveInt], sizes)):
            raise InvalidOption(
                "set_shape_buckets takes a dimension counted from 0 and sizes of at least 1, not "
                f"{shown(dim)} and {shown(sizes)}."
            )
        if (dim is None) is bool(sizes):
            raise InvalidOption(
                f"set_shape_buckets({dim}, {shown(sizes)}): a dimension goes with sizes.",
                fix="set_shape_buckets(0, [32, 64]); set_shape_buckets(None) pads no more.",
            )
        if not holds(str, mask) or not holds(Sequence[str], whole):
            raise InvalidOption("set_shape_buckets: mask is a name, whole is a list of names.")
        if mask and mask in whole:
            raise InvalidOption(f"set_shape_buckets: {mask!r} is the mask, which is always padded.")
        ascending = tuple(sorted(set(sizes)))
        buckets = None if dim is None else ShapeBuckets(dim, ascending, mask, frozenset(whole))
        self._set(buckets=buckets)

    def enable_profiler_labels(self, mode: bool = True) -> None:
        """Each op of a replay in a range with its phase and module: ``backward: model.layers.0``.

        While `torch.profiler` records, they are there without this. It is for other profilers, such
        as Nsight Systems, which torch does not know of: NVTX ranges on a GPU. It takes effect at
        the next call, changes no bit and costs a few microseconds an op, as long as it is on. A
        CUDA Graph has its labels in the warm-up and in the capture, for which the option is set
        before the first call: a replay of it is one launch. OneFlow: none.
        """
        self._set(profiler_labels=mode)

    def enable_cudnn_conv_heuristic_search_algo(self, mode: bool = True) -> None:
        """Whether cuDNN takes its convolution algorithms by heuristic (True) or by trying them.

        It is `torch.backends.cudnn.benchmark`, off or on while the Graph runs, and as it was
        afterwards. Not called: the user's own setting. Without a GPU a warning says that nothing
        comes of it. OneFlow: the option of the same name.
        """
        self._set(cudnn_heuristic=mode)
