"""Forward steps: the modules that OneFlow's unit tests put into a Graph."""

from typing import Any

import numpy as np

from .made import case, data, evaluated, filled, floats, meta, told, weights


def _runs(flow: Any, module: Any, *inputs: Any) -> dict[str, Any]:
    """What a module gives in a Graph, three times."""
    graph = evaluated(flow, lambda self, *args: self.model(*args), module)
    outs = [graph(*inputs) for _ in range(3)]
    return {"outs": [told(out) for out in outs], "meta": meta(outs[0])}


@case
def linear(flow):
    return _runs(flow, filled(flow, flow.nn.Linear(3, 8, False)), floats(flow, 4, 3))


@case(within=1e-5)
def convolution_with_batch_norm(flow):
    nn = flow.nn
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    result = _runs(flow, filled(flow, model), floats(flow, 2, 3, 5, 5))
    return {**result, "buffers": weights(model)}


@case(within=1e-5)
def batch_norm_in_eval(flow):
    model = filled(flow, flow.nn.BatchNorm2d(3)).eval()
    return {**_runs(flow, model, floats(flow, 2, 3, 4, 4)), "buffers": weights(model)}


@case
def batch_norm_without_statistics(flow):
    model = flow.nn.BatchNorm1d(3, track_running_stats=False, affine=False)
    return _runs(flow, model, floats(flow, 6, 3))


@case
def sequential(flow):
    nn = flow.nn
    model = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2), nn.Tanh())
    return _runs(flow, filled(flow, model), floats(flow, 4, 3))


@case
def module_list(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = flow.nn.ModuleList([flow.nn.Linear(3, 3) for _ in range(3)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.layers[0](x) + self.layers[-1](x)

    return _runs(flow, filled(flow, Net()), floats(flow, 4, 3))


@case
def module_dict(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            nn = flow.nn
            self.choices = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})

        def forward(self, x):
            return self.choices["b"](self.choices["a"](x))

    return _runs(flow, filled(flow, Net()), floats(flow, 4, 3))


@case
def parameter_list(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            made = [flow.nn.Parameter(floats(flow, 3, 3, seed=n)) for n in range(2)]
            self.held = flow.nn.ParameterList(made)

        def forward(self, x):
            return flow.matmul(flow.matmul(x, self.held[0]), self.held[1])

    return _runs(flow, Net(), floats(flow, 4, 3))


@case
def parameter_dict(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            made = {name: flow.nn.Parameter(floats(flow, 3)) for name in ("a", "b")}
            self.held = flow.nn.ParameterDict(made)

        def forward(self, x):
            return x * self.held["a"] + self.held["b"]

    return _runs(flow, Net(), floats(flow, 4, 3))


@case
def one_module_under_two_names(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = flow.nn.Linear(3, 3)
            self.second = self.first

        def forward(self, x):
            return self.second(self.first(x))

    return _runs(flow, filled(flow, Net()), floats(flow, 4, 3))


@case
def one_module_twice(flow):
    model = filled(flow, flow.nn.Linear(3, 3))
    graph = evaluated(flow, lambda self, x: self.model(self.model(x)), model)
    return {"out": told(graph(floats(flow, 4, 3)))}


@case
def buffer(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", floats(flow, 3))

        def forward(self, x):
            return x * self.scale

    return _runs(flow, Net(), floats(flow, 4, 3))


@case
def embedding(flow):
    ids = flow.tensor(np.array([[0, 2], [4, 2]], np.int64))
    return _runs(flow, filled(flow, flow.nn.Embedding(5, 3)), ids)


@case
def layer_norm(flow):
    return _runs(flow, filled(flow, flow.nn.LayerNorm(6)), floats(flow, 4, 6))


@case
def group_norm(flow):
    return _runs(flow, filled(flow, flow.nn.GroupNorm(2, 4)), floats(flow, 3, 4, 5, 5))


@case(within=1e-5)
def pooling(flow):
    nn = flow.nn
    model = nn.Sequential(nn.MaxPool2d(2, 2), nn.AvgPool2d(2, 1), nn.Flatten())
    return _runs(flow, model, floats(flow, 2, 3, 6, 6))


@case
def dropout_in_eval(flow):
    model = filled(flow, flow.nn.Sequential(flow.nn.Linear(3, 3), flow.nn.Dropout(0.5))).eval()
    return _runs(flow, model, floats(flow, 4, 3))


@case
def attention(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = flow.nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = flow.chunk(self.qkv(x), 3, dim=-1)
            scores = flow.matmul(q, k.transpose(-2, -1)) * 0.5
            return flow.matmul(flow.softmax(scores, dim=-1), v)

    return _runs(flow, filled(flow, Net()), floats(flow, 2, 5, 4))


@case
def module_with_plain_attributes(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = flow.nn.Linear(3, 3)
            self.times, self.names = 3, ["a", "b"]

        def helper(self, x):
            return self.inner(x) * len(self.names)

        def forward(self, x):
            for _ in range(self.times):
                x = self.helper(x)
            return x

    return _runs(flow, filled(flow, Net()), floats(flow, 4, 3))


@case(
    bugs={
        "module": ("OneFlow writes to a proxy, which the next call of forward reads again", 1),
    }
)
def attribute_written_in_forward(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls = 1
            return x + self.calls

    model = Net()
    graph = evaluated(flow, lambda self, x: self.model(x), model)
    return {"out": told(graph(floats(flow, 3))), "module": model.calls}


@case
def functions_of_tensors(flow):
    def build(self, x, y):
        z = flow.cat([x, y], dim=0).reshape(2, -1).permute(1, 0)
        return flow.stack([z.sum(dim=1), z.mean(dim=1), z.max(dim=1)[0]]).flatten()

    graph = evaluated(flow, build)
    return {"out": told(graph(floats(flow, 2, 3), flow.tensor(data(2, 3, seed=5))))}
