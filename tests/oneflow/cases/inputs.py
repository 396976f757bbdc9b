"""What goes into `build` and comes out of it: containers, dtypes, tensors from outside."""

from collections import OrderedDict
from typing import Any

import numpy as np

from .made import case, data, evaluated, filled, floats, meta, told


@case
def tuple_list_and_dict_out(flow):
    def build(self, x):
        return (x, [x + 1, x + 2]), {"a": x * 2, "b": (x * 3,)}

    out = evaluated(flow, build)(floats(flow, 2, 3))
    (first, two), named = out
    kinds = [type(one).__name__ for one in (out, out[0], two, named, named["b"])]
    values = [told(one) for one in (first, *two, named["a"], *named["b"])]
    return {"kinds": kinds, "values": values}


@case
def nested_in(flow):
    def build(self, pair, named, *, scale):
        (a, [b]), c = pair, named["c"]
        return (a + b) * c * scale

    graph = evaluated(flow, build)
    x = floats(flow, 2, 3)
    given = OrderedDict(c=floats(flow, 2, 3, seed=2))
    return {"out": told(graph((x, [x + 1]), given, scale=floats(flow, 1, seed=3)))}


@case
def single_tensor_in_a_tuple(flow):
    out = evaluated(flow, lambda self, x: (x * 2,))(floats(flow, 2))
    return {"kind": type(out).__name__, "out": told(out[0])}


@case
def single_tensor_in_a_list(flow):
    out = evaluated(flow, lambda self, x: [x * 2])(floats(flow, 2))
    return {"kind": type(out).__name__, "out": told(out[0])}


@case
def none_in_and_out(flow):
    def build(self, x, mask=None):
        return x * 2 if mask is None else x * mask, None

    graph = evaluated(flow, build)
    first, second = graph(floats(flow, 2), None)
    return {"out": told(first), "none": second is None}


@case
def keyword_arguments(flow):
    graph = evaluated(flow, lambda self, a, b: a - b)
    x, y = floats(flow, 3), floats(flow, 3, seed=1)
    return {"out": told(graph(a=x, b=y))}


@case
def scalar_in_and_out(flow):
    out = evaluated(flow, lambda self, x: x * x + 1)(flow.tensor(3.0))
    return {"out": told(out), "meta": meta(out)}


@case
def no_input(flow):
    model = filled(flow, flow.nn.Linear(3, 2))
    graph = evaluated(flow, lambda self: self.model(flow.ones(2, 3)), model)
    return {"outs": [told(graph()) for _ in range(3)]}


@case
def dtypes(flow):
    def build(self, i32, i64, f64, u8):
        return i32 + 1, i64 * 2, f64 / 3, u8.to(flow.float32), i64 > 1, f64.to(flow.float32)

    kinds = (np.int32, np.int64, np.float64, np.uint8)
    outs = evaluated(flow, build)(*(flow.tensor(np.arange(4).astype(kind)) for kind in kinds))
    return {"metas": [meta(out) for out in outs], "outs": [told(out) for out in outs]}


@case
def input_returned(flow):
    x = floats(flow, 2)
    out = evaluated(flow, lambda self, x: x)(x)
    return {"out": told(out), "same": out is x}


@case(bugs={"same": ("OneFlow copies each result, here one tensor stays one", True)})
def one_tensor_returned_twice(flow):
    def build(self, x):
        y = x * 2
        return y, y

    outs = evaluated(flow, build)(floats(flow, 2))
    return {"outs": [told(out) for out in outs], "same": outs[0] is outs[1]}


@case
def one_tensor_given_twice(flow):
    x = floats(flow, 2)
    return {"out": told(evaluated(flow, lambda self, a, b: a + b)(x, x))}


@case
def argument_changed_in_place(flow):
    def build(self, x):
        x += 1
        return x * 2

    graph, x = evaluated(flow, build), floats(flow, 3)
    outs = [told(graph(x)) for _ in range(4)]
    return {"outs": outs, "x": told(x)}


@case
def argument_set_by_index(flow):
    def build(self, x):
        x[:, 1] = 5.0
        return x.sum(dim=0)

    graph, x = evaluated(flow, build), floats(flow, 3, 3)
    return {"outs": [told(graph(x)) for _ in range(3)], "x": told(x)}


@case
def in_place_on_what_build_makes(flow):
    def build(self, x):
        y = x * 1
        y.add_(2).mul_(3)
        y[0] = 1.0
        return flow.nn.functional.relu(y, inplace=True)

    graph = evaluated(flow, build)
    return {"outs": [told(graph(floats(flow, 3, 2, seed=n))) for n in range(3)]}


@case
def not_contiguous(flow):
    x = floats(flow, 3, 4).transpose(0, 1)
    graph = evaluated(flow, lambda self, x: x * 2)
    outs = [graph(x) for _ in range(2)]
    return {"outs": [told(out) for out in outs], "meta": meta(outs[0])}


@case
def tensor_from_outside(flow):
    scale = floats(flow, 3)
    graph = evaluated(flow, lambda self, x: x * scale)
    outs = []
    for step in range(4):
        outs.append(told(graph(floats(flow, 2, 3))))
        scale.mul_(2.0 + step)
    return {"outs": outs}


@case
def tensors_made_in_build(flow):
    def build(self, x):
        y = flow.ones(3) + flow.arange(3) + flow.zeros_like(x[0]) + flow.full((3,), 0.5)
        return x + y.to(flow.float32)

    return {"out": told(evaluated(flow, build)(floats(flow, 2, 3)))}


@case
def empty_containers_out(flow):
    def build(self, x):
        return x, (), [], {}

    out = evaluated(flow, build)(floats(flow, 2))
    return {
        "kinds": [type(one).__name__ for one in out[1:]],
        "sizes": [len(one) for one in out[1:]],
    }


@case
def results_are_kept(flow):
    graph = evaluated(flow, lambda self, x: x * 2)
    outs = [graph(floats(flow, 3, seed=n)) for n in range(6)]
    return {"outs": [told(out) for out in outs]}


@case
def results_are_kept_with_a_buffer(flow):
    graph = evaluated(flow, lambda self, x: x * 2)
    graph.config.set_outputs_buffer_size(2)
    outs = [graph(floats(flow, 3, seed=n)) for n in range(6)]
    return {"outs": [told(out) for out in outs]}


@case
def results_are_detached(flow):
    model = filled(flow, flow.nn.Linear(3, 2))
    out = evaluated(flow, lambda self, x: self.model(x), model)(floats(flow, 4, 3))
    return {"requires_grad": bool(out.requires_grad), "out": told(out)}


@case
def traced_function(flow):
    @flow.nn.Graph.trace
    def double(x):
        return x * 2

    return {"out": told(double(floats(flow, 3))), "name": double.name.rpartition("_")[0]}


def _places(values: Any) -> list[int]:
    return [int(value) for value in np.asarray(values).reshape(-1)]


@case
def indices(flow):
    def build(self, x):
        return flow.argmax(x, dim=1), flow.argsort(x, dim=1), flow.where(x > 0, x, -x)

    first, second, third = evaluated(flow, build)(floats(flow, 3, 4))
    return {"max": _places(told(first)), "sorted": _places(told(second)), "out": told(third)}


def _totals(_: Any) -> list[Any]:
    total, found = data(3), []
    for step in range(4):
        total = total + data(3, seed=step)
        found.append(total)
    return found


_LOST = {
    "outs": (
        "OneFlow's graph loses what build writes to buffers and to tensors from outside",
        lambda stored: [(one * np.float32(2)).tolist() for one in _totals(stored)],
    ),
    "total": ("likewise", lambda stored: _totals(stored)[-1].tolist()),
}


@case(bugs=_LOST)
def tensor_from_outside_changed_in_build(flow):
    total = floats(flow, 3)

    def build(self, x):
        total.add_(x)
        return total * 2

    graph = evaluated(flow, build)
    outs = [told(graph(floats(flow, 3, seed=n))) for n in range(4)]
    return {"outs": outs, "total": told(total)}


@case(bugs=_LOST)
def buffer_changed_in_forward(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", floats(flow, 3))

        def forward(self, x):
            self.total.add_(x)
            return self.total * 2

    model = Net()
    graph = evaluated(flow, lambda self, x: self.model(x), model)
    outs = [told(graph(floats(flow, 3, seed=n))) for n in range(4)]
    return {"outs": outs, "total": told(model.total)}


@case(bugs=_LOST)
def buffer_replaced_in_forward(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", floats(flow, 3))

        def forward(self, x):
            self.total = self.total + x
            return self.total * 2

    model = Net()
    graph = evaluated(flow, lambda self, x: self.model(x), model)
    outs = [told(graph(floats(flow, 3, seed=n))) for n in range(4)]
    return {"outs": outs, "total": told(model.total)}
