"""A Graph as an object: names, states, compilation, printing, and errors that scripts catch."""

import contextlib
import io
import re
from typing import Any

from .made import case, evaluated, filled, floats, meta, perceptron, told, train_graph, weights


@case
def names(flow):
    class Named(flow.nn.Graph):
        def build(self, x):
            return x * 2

    flow.nn.Graph._child_init_cnt.clear()
    graphs = [Named(), Named(), Named()]
    return {"names": [graph.name for graph in graphs], "compiled": graphs[0].is_compiled}


@case
def training_and_is_compiled(flow):
    model = perceptron(flow)
    train = train_graph(flow, model, flow.optim.SGD(model.parameters(), lr=0.1))
    evaluate = evaluated(flow, lambda self, x: self.model(x), model)
    before = [train.training, train.is_compiled, evaluate.training, evaluate.is_compiled]
    train(floats(flow, 4, 3), floats(flow, 4, 2))
    evaluate(floats(flow, 4, 3))
    return {"before": before, "after": [train.is_compiled, evaluate.is_compiled]}


@case
def compiled_first(flow):
    model = perceptron(flow)
    graph = train_graph(flow, model, flow.optim.Adam(model.parameters(), lr=0.1, eps=1e-3))
    out = graph._compile(floats(flow, 4, 3), floats(flow, 4, 2))
    found = {"meta": meta(out), "compiled": graph.is_compiled, "before": weights(model)}
    losses = [told(graph(floats(flow, 4, 3), floats(flow, 4, 2))) for _ in range(4)]
    return {**found, "losses": losses, "weights": weights(model)}


@case
def compiled_in_halves(flow):
    model = perceptron(flow)
    graph = train_graph(flow, model, flow.optim.SGD(model.parameters(), lr=0.1))
    graph.build_graph(floats(flow, 4, 3), floats(flow, 4, 2))
    graph.finish_complie_and_init_runtime()
    losses = [told(graph(floats(flow, 4, 3), floats(flow, 4, 2))) for _ in range(4)]
    return {"losses": losses, "compiled": graph.is_compiled}


@case
def shapes_of_compiled_outputs(flow):
    graph = evaluated(flow, lambda self, x: (x.sum(dim=0), {"a": x > 0}))
    first, second = graph._compile(floats(flow, 4, 3))
    return {"metas": [meta(first), meta(second["a"])]}


@case
def states_of_modules(flow):
    model = perceptron(flow)
    train = train_graph(flow, model, flow.optim.SGD(model.parameters(), lr=0.1))
    train(floats(flow, 4, 3), floats(flow, 4, 2))
    state = train.state_dict()
    return {
        "names": list(state["model"]),
        "weights": {k: told(v) for k, v in state["model"].items()},
    }


@case
def states_loaded_before_the_first_call(flow):
    source = evaluated(flow, lambda self, x: self.model(x), perceptron(flow))
    state = {"model": {name: value * 2 for name, value in source.state_dict()["model"].items()}}
    model = perceptron(flow)
    graph = evaluated(flow, lambda self, x: self.model(x), model)
    graph.load_state_dict(state)
    return {"out": told(graph(floats(flow, 4, 3))), "weights": weights(model)}


@case
def training_resumed(flow):
    def steps(graph: Any, first: int, last: int) -> list[Any]:
        return [
            told(graph(floats(flow, 4, 3, seed=n), floats(flow, 4, 2, seed=n)))
            for n in range(first, last)
        ]

    model = perceptron(flow)
    graph = train_graph(flow, model, flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    losses = steps(graph, 0, 3)
    state = graph.state_dict()
    other = perceptron(flow)
    resumed = train_graph(flow, other, flow.optim.SGD(other.parameters(), lr=0.1, momentum=0.9))
    resumed.load_state_dict(state)
    return {"losses": losses + steps(resumed, 3, 6), "weights": weights(other)}


@case
def weights_changed_between_calls(flow):
    model = filled(flow, flow.nn.Linear(3, 2))
    graph = evaluated(flow, lambda self, x: self.model(x), model)
    found = []
    for step in range(4):
        found.append(told(graph(floats(flow, 4, 3))))
        with flow.no_grad():
            model.weight.copy_(floats(flow, 2, 3, seed=step))
    return {"found": found}


@case
def module_given_anew(flow):
    class Holder(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = filled(flow, flow.nn.Linear(3, 2), seed=1)
            self.model = filled(flow, flow.nn.Linear(3, 2), seed=2)

        def build(self, x):
            return self.model(x)

    return {"out": told(Holder()(floats(flow, 4, 3)))}


@case
def debug_off_prints_nothing(flow):
    graph = evaluated(flow, lambda self, x: self.model(x), perceptron(flow))
    graph.debug(-1)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        graph(floats(flow, 4, 3))
    return {"said": said.getvalue()}


@case
def printed_lines(flow):
    flow.nn.Graph._child_init_cnt.clear()
    graph = evaluated(flow, lambda self, x: self.model(x), perceptron(flow))
    before = repr(graph).splitlines()
    graph(floats(flow, 4, 3))
    after = [line for line in repr(graph).splitlines() if "OPERATOR" not in line]
    kinds = [re.sub(r":tensor\(.*|size=.*", "", line).rstrip() for line in after]
    heads = [
        line for line in kinds if re.match(r"\s*\((GRAPH|CONFIG|INPUT|MODULE|PARAM|OUTPUT)", line)
    ]
    return {
        "before": [line.split(":tensor")[0] for line in before],
        "after": heads,
        "shallow": graph._shallow_repr(),
    }


@case
def blocks(flow):
    graph_module, graph_tensor = flow.nn.graph.GraphModule, flow.nn.graph.GraphTensor
    model = perceptron(flow)
    graph = evaluated(flow, lambda self, x: self.model(x), model)
    block = graph.model[0].to(graph_module)
    weight = graph.model[0].weight
    found = [block.name, block.name_prefix, block.type, weight.to(graph_tensor).name]
    found += [weight.to(graph_tensor).name_prefix, weight.to(graph_tensor).type]
    block.set_stage(1)
    block.activation_checkpointing = True
    found += [block.stage_id, block.activation_checkpointing]
    is_live = [
        graph.model[0].to(flow.nn.Module) is model[0],
        weight.to(flow.Tensor) is model[0].weight,
    ]
    walked = [one.to(graph_module).name for one in graph.model.modules()]
    return {"found": found, "is_live": is_live, "walked": walked, "repr": repr(block)}


# --- errors ---------------------------------------------------------------------------------------


def _raises(kind: type[BaseException], run: Any) -> bool:
    try:
        run()
    except kind:
        return True
    return False


@case
def errors_of_attributes(flow):
    class Empty(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.plain = 1

    class NotBegun(flow.nn.Graph):
        def __init__(self):
            self.model = flow.nn.Linear(2, 2)

    graph, linear = Empty(), flow.nn.Linear(2, 2)
    optimizer = flow.optim.SGD(linear.parameters(), lr=0.1)
    return {
        "tensor": _raises(AttributeError, lambda: setattr(graph, "t", floats(flow, 2))),
        "optimizer": _raises(AttributeError, lambda: setattr(graph, "o", optimizer)),
        "taken": _raises(KeyError, lambda: setattr(graph, "plain", linear)),
        "config": _raises(KeyError, lambda: setattr(graph, "config", linear)),
        "dotted": _raises(KeyError, lambda: setattr(graph, "a.b", linear)),
        "missing": _raises(AttributeError, lambda: graph.nothing),
        "not begun": _raises(AttributeError, NotBegun),
        "no build": _raises(NotImplementedError, lambda: graph(floats(flow, 2))),
    }


@case
def errors_of_add_optimizer(flow):
    graph = evaluated(flow, lambda self, x: x)
    linear, other = flow.nn.Linear(2, 2), flow.nn.Linear(2, 2)
    of_linear = flow.optim.SGD(linear.parameters(), lr=0.1)
    of_other = flow.optim.SGD(other.parameters(), lr=0.1)
    step = flow.optim.lr_scheduler.StepLR(of_other, 2)
    return {
        "none": _raises(AssertionError, lambda: graph.add_optimizer(None)),
        "module": _raises(AssertionError, lambda: graph.add_optimizer(linear)),
        "scheduler": _raises(AssertionError, lambda: graph.add_optimizer(of_linear, lr_sch=step)),
        "scaler": _raises(AssertionError, lambda: graph.set_grad_scaler(None)),
    }


@case
def errors_of_steps(flow):
    model = perceptron(flow)

    class NoBackward(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x):
            return self.model(x).sum()

    def fails(self, x):
        raise KeyError("of the user's")

    x = floats(flow, 4, 3)
    return {
        "no backward": _raises(Exception, lambda: NoBackward()(x)),
        "own": _raises(KeyError, lambda: evaluated(flow, fails)(x)),
        "wrong shapes": _raises(
            Exception, lambda: evaluated(flow, lambda self, x: self.model(x), model)(x[:, :2])
        ),
    }
