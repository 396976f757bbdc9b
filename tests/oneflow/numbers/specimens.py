"""Arguments of one call as plain data, and one call made from them, under OneFlow or under torch.

Only numpy and the standard library: the same file runs under OneFlow 0.9 (Python 3.10) and here.
"""

import math

import numpy as np


def T(*shape: int, seed=0, low=-2.0, high=2.0, dtype="float32", grad=True):
    """A float tensor of fixed values, spread evenly and in no order between low and high."""
    return ("float", shape, seed, low, high, dtype, grad)


def V(values, dtype="int64"):
    """A tensor of these values, without a gradient."""
    return ("values", values, dtype)


def D(name):
    """A dtype."""
    return ("dtype", name)


def is_spec(value):
    return isinstance(value, tuple) and len(value) > 0 and value[0] in ("float", "values", "dtype")


def spread(shape, seed, low, high, digits=3):
    count = int(np.prod(shape))
    steps = [
        math.modf(abs(math.sin(12.9898 * i + 78.233 * seed + 1.0) * 43758.5453))[0]
        for i in range(count)
    ]
    return np.round(low + (high - low) * np.array(steps, "float64"), digits).reshape(shape)


def built(value, library, leaves):
    """The argument of a specimen; float leaves that want a gradient are appended to `leaves`."""
    if not is_spec(value):
        if isinstance(value, (list, tuple)):
            return type(value)(built(one, library, leaves) for one in value)
        return value
    if value[0] == "dtype":
        return getattr(library, value[1])
    if value[0] == "values":
        return library.tensor(np.array(value[1]), dtype=getattr(library, value[2]))
    _, shape, seed, low, high, dtype, grad = value
    numbers = spread(shape, seed, low, high).astype("float32")
    leaf = library.tensor(numbers, dtype=getattr(library, dtype))
    if not grad:
        return leaf
    leaf.requires_grad_(True)
    leaves.append(leaf)
    return leaf * 1.0


def kept(tensor):
    """What is stored of a tensor: dtype, shape, values."""
    dtype = str(tensor.dtype).split(".")[-1]
    tensor = tensor.detach()
    array = (tensor.float() if dtype in ("float16", "bfloat16") else tensor).cpu().numpy()
    values = array.ravel().tolist()
    if array.dtype.kind == "f":
        values = [float(f"{one:.7g}") if array.dtype == np.float32 else one for one in values]
    return [dtype, list(array.shape), values]


def flat(result, library):
    """The tensors of a result, in order."""
    if isinstance(result, library.Tensor):
        return [result]
    if not hasattr(result, "__len__") or isinstance(result, str):
        return []
    found = []
    for one in result:
        found += flat(one, library)
    return found


def backward(outputs, library):
    total = None
    for k, one in enumerate(outputs):
        if one.requires_grad:
            weights = spread(tuple(one.shape), 91 + k, 0.5, 1.5, 1).astype("float32")
            part = (one.float() * library.tensor(weights)).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()


def grads(leaves):
    return [None if leaf.grad is None else kept(leaf.grad) for leaf in leaves]


def call_function(function, args, kwargs, library):
    """The outputs of a function, the gradients of its float arguments, what it changed in place."""
    leaves = []
    given = built(list(args), library, leaves)
    named = {name: built(value, library, leaves) for name, value in kwargs.items()}
    inputs = flat(given, library) + flat(list(named.values()), library)
    before = [kept(one) for one in inputs]
    result = function(*given, **named)
    outputs = flat(result, library)
    record = {"out": [kept(one) for one in outputs]}
    after = [kept(one) for one in inputs]
    changed = {
        str(k): now
        for k, (now, then) in enumerate(zip(after, before, strict=True))
        if repr(now) != repr(then)
    }
    if changed:
        record["changed"] = changed
    if not outputs and isinstance(result, (bool, int, float, str)):
        record["value"] = result
    try:
        backward(outputs, library)
        record["grads"] = grads(leaves)
    except RuntimeError:
        record["grads"] = "none"
    return record


def filled(module, library):
    """Fixed values in every parameter and float buffer of a module."""
    with library.no_grad():
        named = list(module.named_parameters()) + list(module.named_buffers())
        for k, (name, one) in enumerate(named):
            if "float" in str(one.dtype) and name != "pos_weight":
                low = 0.5 if name.endswith("var") else -1.0
                numbers = spread(tuple(one.shape), 50 + k, low, 1.5).astype("float32")
                one.copy_(library.tensor(numbers))


def call_module(make, args, kwargs, inputs, training, library):
    """A module's state, outputs, gradients, buffers after one call."""
    leaves = []
    module = make(
        *built(list(args), library, []), **{n: built(v, library, []) for n, v in kwargs.items()}
    )
    state = {name: list(one.shape) for name, one in module.state_dict().items()}
    filled(module, library)
    module.train(training)
    given = built(list(inputs), library, leaves)
    tensors = flat(given, library)
    before = [kept(one) for one in tensors]
    outputs = flat(module(*given), library)
    record = {"state": state, "out": [kept(one) for one in outputs]}
    changed = {
        str(k): kept(one) for k, one in enumerate(tensors) if repr(kept(one)) != repr(before[k])
    }
    if changed:
        record["changed"] = changed
    backward(outputs, library)
    record["grads"] = grads(leaves)
    record["parameters"] = grads([one for _, one in module.named_parameters()])
    buffers = [kept(one) for name, one in module.named_buffers() if name in state]
    if buffers:
        record["buffers"] = buffers
    return record
