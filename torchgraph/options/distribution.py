"""The distribution of a step over the ranks of torch.distributed."""

from __future__ import annotations

from typing import Annotated, Any

from ..distributed.parallel import DataParallel, Zero, group_of, has_ranks
from ..errors import NotSupported
from .checking import OWN_CHECK, AtLeast, Count, OneOf
from .verbs import Verbs

_MB = 1024 * 1024
_FIRST = _MB
"""Bytes of the first bucket, as in DDP: it starts soon after backward does."""
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv")


class DistributionVerbs(Verbs):
    """See `GraphConfig`."""

    def enable_data_parallel(
        self,
        mesh: Annotated[Any, OWN_CHECK] = None,
        *,
        bucket_mb: Annotated[float, AtLeast(0)] = 25.0,
        broadcast_buffers: bool = True,
    ) -> None:
        """Each rank trains on its own shard of the batch; gradients are averaged over the ranks.

        The numbers are those of `torch.nn.parallel.DistributedDataParallel`, with plain modules.
        Before the first call parameters and buffers become those of the mesh's first rank. The
        averages are taken at the end of each ``backward()`` that is not inside of `tg.no_sync`,
        before unscaling and clipping; of a Graph that accumulates gradients, or has pipeline
        stages, once a call, behind `build`. All ranks call the Graph equally often.

        Args:
            mesh: a `DeviceMesh` of one dimension, such as ``mesh["dp"]``; None: all ranks; False:
                no more.
            bucket_mb: gradients travel in buckets of so many MiB, the first one of at most 1.
            broadcast_buffers: before each step of training, buffers become the first rank's.

        Raises:
            NoProcessGroup: `torch.distributed` was not initialized.
            InvalidOption: the mesh has several dimensions, or is none.
        """
        if mesh is False:
            self._set(data_parallel=None)
            return
        group = group_of(mesh)
        limits = (min(_FIRST, int(bucket_mb * _MB)), int(bucket_mb * _MB))
        given = None if mesh is True else mesh
        chosen = DataParallel(group.group_name, group.size(), limits, broadcast_buffers, given)
        self._set(data_parallel=chosen)

    def enable_zero(
        self,
        mode: bool = True,
        *,
        stage: Annotated[int, OneOf((1, 2, 3))] = 2,
        shard_min_size: Count = 1024,
        shard_restore_level: Annotated[int, OneOf((0, 1, 2))] = 1,
    ) -> None:
        """Parameters, their gradients and optimizer state lie in parts, one on each rank.

        The ranks are those of `enable_data_parallel`, which this brings where it was not called.
        At the first call each parameter that an optimizer updates becomes a DTensor, cut along its
        first dimension that has a row for each rank; optimizer state follows. Modules read the
        whole of it by its name: it is gathered when it is used. Without a process group, or with
        one rank, nothing is cut. OneFlow: the option of the same name; ZeRO: arXiv 1910.02054.

        Args:
            mode: False: nothing more is cut. What is cut stays so.
            stage: 1: each rank has the mean of all gradients, and updates its part. 2: each has
                the mean of its part's alone (reduce-scatter). 3: besides, what was gathered for
                the forward is given back, and gathered again for the backward.
            shard_min_size: a parameter of which a rank would have fewer elements stays whole.
            shard_restore_level: 1 or 2: parameters are whole when modules compute with them.

        Raises:
            NotSupported: ``shard_restore_level=0``, which leaves OneFlow's search to choose how
                modules compute with parts.
        """
        if mode and shard_restore_level == 0:
            raise NotSupported(
                "enable_zero(shard_restore_level=0): torchgraph does not search for a layout.",
                fix="leave it at 1: parameters are gathered before modules compute with them.",
            )
        if mode and self.options.data_parallel is None and has_ranks():
            self.enable_data_parallel()
        self._set(zero=Zero(stage, shard_min_size) if mode else None)

    def set_zero_redundancy_optimizer_mode(
        self, mode: Annotated[str, OneOf(("distributed_split",))] = "distributed_split"
    ) -> None:
        """`enable_zero` with stage 1, by the name that it had in OneFlow."""
        self.enable_zero(True, stage=1)

    def set_pipeline_schedule(self, schedule: Annotated[str, OneOf(SCHEDULES)]) -> None:
        """The order in which pipeline stages work on micro-batches; torch's own schedules.

        ``"1f1b"``, the default: a stage goes backward as soon as it can, so that few micro-batches
        are in flight; of several stages on a rank the interleaved form. ``"gpipe"``: all forwards
        first; stages may lie on ranks in any order. ``"interleaved"``: 1F1B of several stages on
        each rank. ``"zero_bubble"``: interleaved, gradients of weights fill the gaps. ``"zbv"``:
        the same for two stages on each rank, there and back. All but ``"gpipe"`` and ``"zbv"`` want
        stage i on the i-th rank, counted round. Without stages that are placed nothing comes of it.

        Raises:
            InvalidOption: another schedule.
        """
        self._set(pipeline_schedule=schedule)

    def set_pipeline_outputs(self, ranks: Annotated[str, OneOf(("last", "all"))]) -> None:
        """Which ranks of a pipeline get what `build` returns.

        ``"last"``, the default, as in OneFlow: those that compute it, for a loss those of the last
        stage. On other ranks it is a tensor on the device ``meta``: its shape is right, and
        whoever looks at its values gets an error. ``"all"``: it is sent to all of them.

        Raises:
            InvalidOption: neither of these.
        """
        self._set(pipeline_outputs=ranks)
