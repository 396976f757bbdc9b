"""The choice of ops that passes may fuse."""

from __future__ import annotations

from .verbs import Verbs


class FusionVerbs(Verbs):
    """See `GraphConfig`."""

    def allow_fuse_add_to_output(self, mode: bool = True) -> None:
        """Let an op take in the addition to its result or before it.

        Matrix products (``addmm`` for ``mm`` + add), layer norms, RMS norms and their gradients.
        Within rounding of eager, not bitwise. OneFlow: the option of the same name. What was left
        alone, and why, is in ``report()``; `docs/passes.md` has figures.
        """
        self._set(fuse_add_to_output=mode)

    def allow_fuse_cast_scale(self, mode: bool = True) -> None:
        """One op for a cast from half to float32 that is then multiplied by a 0-dim tensor.

        Bitwise equal. On devices for which the op is compiled; ``report()`` says where it is not.
        OneFlow: the option of the same name.
        """
        self._set(fuse_cast_scale=mode)

    def allow_fuse_linear_cross_entropy(self, mode: bool = True) -> None:
        """One op for the last product and its softmax cross-entropy, forward and backward.

        In chunks of rows: neither the logits nor their gradient are ever whole in memory. Within
        rounding of eager, not bitwise. Compiled programs always do so; this option says so of
        ``set_backend("aten")``. What was left alone, and why, is in ``report()``. In OneFlow there
        is no such option.
        """
        self._set(fuse_linear_cross_entropy=mode)

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Each parameter's update as one op, with its clipping coefficient and gradient cast.

        For the optimizers named in `docs/passes.md`; bitwise where the user's optimizer is
        ``fused=True``, else within rounding. OneFlow: the option of the same name.
        """
        self._set(fuse_model_update=mode)

    def enable_multi_tensor_update(self, mode: bool = True) -> None:
        """The updates of all parameters of a group in one call, as `allow_fuse_model_update_ops`.

        OneFlow: the option of the same name.
        """
        self._set(multi_tensor_update=mode)

    def enable_fused_model_update_cast(self, mode: bool = True) -> None:
        """Keep the half-precision cast of each weight between calls; the update writes it.

        No step casts a weight then. A weight that changed outside the Graph is cast again, as its
        version counter tells; what is written through ``parameter.data`` or a numpy array moves no
        counter: call ``graph.sync()`` after it. OneFlow: the option of the same name.
        """
        self._set(fused_model_update_cast=mode)
