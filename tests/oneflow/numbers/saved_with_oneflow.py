"""Makes ``saved.json``: checkpoints that OneFlow 0.9 wrote, what is in them, and what it reads.

    python -m tests.oneflow.saved_states BACK   # with torchgraph: a checkpoint for OneFlow
    python saved_with_oneflow.py BACK           # with Python 3.10 and oneflow==0.9.0, numpy<2

A file is base64; a tensor is its dtype, shape and the base64 of its bytes in order.
"""

import base64
import collections
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow.framework import check_point_v2

TARGET = Path(__file__).with_name("saved.json")


def text(content):
    return base64.b64encode(content).decode()


def described(value):
    """Plain JSON of a value."""
    if isinstance(value, flow.Tensor):
        kind = str(value.dtype).replace("oneflow.", "")
        content = value.to(flow.float32) if value.dtype == flow.bfloat16 else value
        content = np.ascontiguousarray(content.numpy()).tobytes()
        return {"tensor": kind, "shape": list(value.shape), "bytes": text(content)}
    if isinstance(value, dict):
        ordered = isinstance(value, collections.OrderedDict)
        pairs = [[described(key), described(item)] for key, item in value.items()]
        return {"OrderedDict" if ordered else "dict": pairs}
    if isinstance(value, flow.Size):
        return {"Size": list(value)}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [described(item) for item in value]}
    if isinstance(value, (np.ndarray, np.generic)):
        return {
            "numpy": str(value.dtype),
            "shape": list(value.shape),
            "bytes": text(value.tobytes()),
        }
    if isinstance(value, flow.dtype):
        return {"dtype": str(value).replace("oneflow.", "")}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bytes):
        return {"bytes": text(value)}
    return value


def packed(folder):
    """The files of a directory."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): text(path.read_bytes()) for path in paths}


def kinds():
    state = {}
    for name in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"):
        values = flow.tensor([[0, 1, 2], [3, 100, 1]]).to(getattr(flow, name))
        state[name] = values
        state[f"{name} 0-dim"] = flow.tensor(1).to(getattr(flow, name))
    state["empty"] = flow.zeros(0, 3)
    state["transposed"] = flow.tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).transpose(0, 1)
    state["part"] = flow.tensor(np.arange(12, dtype=np.int64).reshape(3, 4))[1:, 1:3]
    state["special"] = flow.tensor(np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32))
    return state


def nested():
    flow.manual_seed(1)
    net = flow.nn.Linear(2, 3)
    optimizer = flow.optim.Adam(net.parameters(), lr=0.01)
    momentum = flow.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(flow.ones(1, 2)).sum().backward()
    optimizer.step()
    momentum.step()
    schedule = flow.optim.lr_scheduler.StepLR(momentum, 2)
    schedule.step()
    tied = flow.tensor([1.5, -2.0])
    return {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "momentum": momentum.state_dict(),
        "schedule": schedule.state_dict(),
        "epoch": 3,
        "best": 0.1,
        "infinite": float("inf"),
        "name": "näme",
        "none": None,
        "flags": [True, False],
        "pair": (1, (2, "x"), []),
        "large": [2**40, -(2**70), -1, 300, 70000],
        "bytes": b"\x00\xff",
        "array": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "number": np.float32(2.5),
        "count": np.int64(7),
        "shape": flow.ones(2, 3).shape,
        "dtype": flow.float16,
        "parameter": flow.nn.Parameter(flow.ones(2)),
        "tied": {"one": tied, "other": tied},
        3: {1: flow.tensor([1])},
    }


def modules():
    """Modules of each kind, what they take, and what they give."""
    flow.manual_seed(2)
    nn, rand = flow.nn, flow.randn
    batch_norm = nn.BatchNorm2d(3)
    batch_norm(rand(4, 3, 2, 2))
    instance_norm = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    instance_norm(rand(4, 3, 2, 2))
    ids = flow.tensor([[0, 2], [1, 1]])
    return {
        "Linear(3, 2)": (nn.Linear(3, 2), rand(2, 3)),
        "Conv1d(2, 3, 2)": (nn.Conv1d(2, 3, 2), rand(1, 2, 4)),
        "Conv2d(4, 4, 2, groups=2)": (nn.Conv2d(4, 4, 2, groups=2), rand(1, 4, 3, 3)),
        "Conv3d(1, 2, 2)": (nn.Conv3d(1, 2, 2), rand(1, 1, 2, 3, 2)),
        "ConvTranspose1d(2, 3, 2)": (nn.ConvTranspose1d(2, 3, 2), rand(1, 2, 3)),
        "ConvTranspose2d(2, 3, 2, stride=2)": (
            nn.ConvTranspose2d(2, 3, 2, stride=2),
            rand(1, 2, 2, 2),
        ),
        "BatchNorm2d(3)": (batch_norm, rand(2, 3, 2, 2)),
        "InstanceNorm2d(3, affine=True, track_running_stats=True)": (
            instance_norm,
            rand(2, 3, 2, 2),
        ),
        "InstanceNorm1d(2, affine=True)": (nn.InstanceNorm1d(2, affine=True), rand(1, 2, 3)),
        "LayerNorm(4)": (nn.LayerNorm(4), rand(2, 4)),
        "GroupNorm(2, 4)": (nn.GroupNorm(2, 4), rand(2, 4, 2)),
        "Embedding(3, 2)": (nn.Embedding(3, 2), ids),
        "PReLU(2)": (nn.PReLU(2), rand(2, 2)),
        "LSTM(2, 2, num_layers=2, bidirectional=True)": (
            nn.LSTM(2, 2, num_layers=2, bidirectional=True),
            rand(3, 1, 2),
        ),
        "GRU(2, 3)": (nn.GRU(2, 3), rand(3, 1, 2)),
        "RNN(2, 3)": (nn.RNN(2, 3), rand(3, 1, 2)),
        "LSTMCell(2, 3)": (nn.LSTMCell(2, 3), rand(2, 2)),
        "GRUCell(2, 3)": (nn.GRUCell(2, 3), rand(2, 2)),
        "RNNCell(2, 3)": (nn.RNNCell(2, 3), rand(2, 2)),
    }


def outputs_of(module, given):
    """All tensors that a module gives, one after the other."""
    module.eval()
    if type(module).__name__.endswith("Cell"):
        return None  # in 0.9 their forward raises: 'bool' object is not callable
    found = module(given)
    flat = []

    def collect(value):
        if isinstance(value, (tuple, list)):
            for item in value:
                collect(item)
        else:
            flat.append(value.detach())

    collect(found)
    return flat


class Step(flow.nn.Graph):
    """A step of training."""

    def __init__(self):
        super().__init__()
        self.model = flow.nn.Linear(2, 3)
        optimizer = flow.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.add_optimizer(optimizer)

    def build(self, x):
        loss = self.model(x).sum()
        loss.backward()
        return loss


def graph_case(folder):
    """In a process of its own: OneFlow's Graph on the CPU ends some of them at random."""
    flow.manual_seed(3)
    graph = Step()
    graph(flow.ones(1, 2))
    flow.save(graph.state_dict(), f"{folder}/graph state")
    flow.save(graph, f"{folder}/graph")
    states = {"graph state": graph.state_dict()}
    states["graph"] = {f"model.{k}": v for k, v in graph.state_dict()["model"].items()}
    found = {name: described(dict(state)) for name, state in states.items()}
    Path(folder, "values.json").write_text(json.dumps(found))


def graph_cases(checkpoints):
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(5):
            shutil.rmtree(folder)
            os.mkdir(folder)
            subprocess.run([sys.executable, __file__, "--graph", folder], check=False)
            if Path(folder, "values.json").exists():
                break
        values = json.loads(Path(folder, "values.json").read_text())
        for name, value in values.items():
            checkpoints[name] = {"files": packed(Path(folder, name)), "value": value}
            if name == "graph":  # the program is not read
                checkpoints[name]["files"]["model.mlir"] = ""


def saved(state, rank=None):
    with tempfile.TemporaryDirectory() as folder:
        flow.save(state, folder, global_dst_rank=rank)
        return {"files": packed(folder), "value": described(state)}


def variables(state):
    """As OneFlow before 0.6 wrote, and OneFlow 0.9 reads."""
    with tempfile.TemporaryDirectory() as folder:
        for name, tensor in state.items():
            check_point_v2._save_tensor_to_disk(tensor, os.path.join(folder, name))
        Path(folder, "snapshot_done").touch()
        assert {k: described(v) for k, v in flow.load(folder).items()} == {
            k: described(v) for k, v in state.items()
        }
        return {"files": packed(folder), "value": described(state)}


def single(state, key, protocol=4):
    """As OneFlow 0.9.1 and later write: the pickle of OneFlow's tensors outside of `save`."""
    content = pickle.dumps({"protocol_version": 1, key: None, "data": state}, protocol)
    return {"files": {"": text(content)}, "value": described(state)}


def main():
    checkpoints = {"kinds": saved(kinds()), "nested": saved(nested())}
    checkpoints["bfloat16"] = saved({"x": flow.tensor([1.0, 2.5, -3.0, 1e-3]).to(flow.bfloat16)})
    where = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.split(0)}
    across = {"whole": flow.tensor([[1.0, 2.0], [3.0, 4.0]]).to_global(**where), "step": 4}
    checkpoints["global"] = saved(across, rank=0)
    flow.manual_seed(4)
    checkpoints["variables"] = variables(flow.nn.BatchNorm1d(2).state_dict())
    small = {**kinds(), "net": flow.nn.Linear(2, 2).state_dict(), "epoch": 3}
    checkpoints["single"] = single(small, "__oneflow__")
    checkpoints["single, protocol 3"] = single(small, "oneflow", protocol=3)
    graph_cases(checkpoints)
    found = {
        "oneflow": flow.__version__,
        "checkpoints": checkpoints,
        "modules": {},
    }
    states = {}
    for name, (module, given) in modules().items():
        outputs = outputs_of(module, given)
        states[name] = module.state_dict()
        found["modules"][name] = {"input": described(given), "outputs": described(outputs)}
    checkpoints["modules"] = saved(states)
    del checkpoints["modules"]["value"]
    back = sys.argv[1]
    found["back"] = {"files": packed(back), "value": described(flow.load(back))}
    TARGET.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--graph":
        graph_case(sys.argv[2])
    else:
        main()
    sys.stdout.flush()
    os._exit(0)
