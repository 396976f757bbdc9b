"""A hand-written training program of a small model."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import fx, nn

from torchgraph.debug.tree import TreeSource
from torchgraph.errors import SourceLine
from torchgraph.ir import names
from torchgraph.ir.program import (
    CallRecord,
    InputSpec,
    OutputKind,
    OutputSpec,
    Phase,
    Program,
    Provenance,
    Role,
    Signature,
    TensorMeta,
)

aten = torch.ops.aten


class LayerNorm(nn.LayerNorm):
    """torch's, with a repr that is the same in every release."""

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class Net(nn.Module):
    """A linear layer and a norm, whose op has three outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4, bias=False)
        self.norm = LayerNorm(4)
        self.register_buffer("scale", torch.ones(()))


class ProgramWriter:
    """Writes a program node by node; the values are empty tensors of the right shape."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.inputs: list[InputSpec] = []

    def input(self, role: Role, fqn: str, value: Any) -> fx.Node:
        node = self.graph.placeholder(re.sub(r"\W+", "_", fqn).strip("_"))
        node.meta["val"] = value
        meta = TensorMeta.of(value) if isinstance(value, torch.Tensor) else None
        self.inputs.append(InputSpec(node.name, role, fqn, meta))
        return node

    def op(
        self, target: Any, args: tuple[Any, ...], value: Any, origin: Provenance, **kwargs: Any
    ) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(val=value, provenance=origin)
        return node

    def program(self, *results: tuple[OutputKind, str, fx.Node]) -> Program:
        self.graph.output(tuple(node for _, _, node in results))
        outputs = tuple(OutputSpec(kind, target) for kind, target, _ in results)
        gm = fx.GraphModule(nn.Module(), self.graph)
        return Program(gm, Signature(tuple(self.inputs), outputs))


FORWARD = (SourceLine("net.py", 12, "forward"), SourceLine("train.py", 30, "build"))


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape)


def net_program() -> Program:
    """Forward, one backward node and the update of ``fc.weight`` of `Net`."""
    write = ProgramWriter()
    weight = write.input(Role.PARAMETER, "model.fc.weight", empty(4, 3))
    scale = write.input(Role.PARAMETER, "model.norm.weight", empty(4))
    momentum = names.slot(0, names.parameter("model.fc", "weight"), "momentum")
    moment = write.input(Role.SLOT, momentum, empty(4, 3))
    lr = write.input(Role.SCALAR, names.setting(0, 0, "lr"), 0.1)
    x = write.input(Role.INPUT, "args[0]", empty(2, 3))
    fc, norm = Provenance("model.fc", frames=FORWARD), Provenance("model.norm", frames=FORWARD)
    back = Provenance("model.fc", Phase.BACKWARD)
    update = Provenance("model.fc", Phase.UPDATE)
    flat = write.op(aten.t.default, (weight,), empty(3, 4), fc)
    out = write.op(aten.mm.default, (x, flat), empty(2, 4), fc)
    args = (out, [4], scale, None, 1e-5)
    three = (empty(2, 4), empty(2, 1), empty(2, 1))
    normed = write.op(aten.native_layer_norm.default, args, three, norm)
    first = write.op(operator.getitem, (normed, 0), empty(2, 4), norm)
    loss = write.op(aten.sum.default, (first,), empty(), Provenance(), dtype=torch.float32)
    mean = write.op(operator.getitem, (normed, 1), empty(2, 1), norm)
    grad = write.op(aten.mul.Tensor, (out, mean), empty(4, 3), back)
    step = write.op(operator.neg, (lr,), -0.1, update)
    new = write.op(aten.add.Tensor, (moment, grad), empty(4, 3), update, alpha=step)
    return write.program(
        (OutputKind.USER, "", loss),
        (OutputKind.UPDATE, "model.fc.weight", new),
        (OutputKind.UPDATE, momentum, new),
    )


def net_source(*, compiled: bool = True, **options: Any) -> TreeSource:
    """`Net` and a loss in a Graph named NetGraph_0, before or after its first call."""
    modules = {"model": Net(), "loss": nn.MSELoss()}
    config = "(CONFIG:config:GraphConfig(training=True, ))"
    if not compiled:
        return TreeSource("NetGraph_0", "NetGraph", config, modules, **options)
    x, y = TensorMeta.of(empty(2, 3)), TensorMeta.of(empty(2, 4))
    return TreeSource(
        "NetGraph_0",
        "NetGraph",
        config,
        modules,
        program=net_program(),
        calls=(
            CallRecord("model.fc", (("0.0", x),), (("0", y),)),
            CallRecord("model.norm", (("0.0", y), ("1.eps", "float")), (("0", y),)),
            CallRecord("model.norm", (("0.0", y), ("1.eps", "float")), (("0", y),)),
            CallRecord("model", (("0.0", x),), (("0", y),)),
        ),
        inputs=(("0.0", x), ("1.reduce", "bool")),
        outputs=(("0", TensorMeta.of(empty())),),
        **options,
    )
