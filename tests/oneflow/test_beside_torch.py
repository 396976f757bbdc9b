"""Code for plain torch in the same process: as it was before `torchgraph.oneflow` came."""

import pickle
import subprocess
import sys
import textwrap
import traceback
import types
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import torchgraph.oneflow as flow

KNOWN_BEFORE = """
import torch
handled = {getattr(torch.Tensor, one): one for one in ("sum", "to", "__floordiv__")}
import torchgraph.oneflow as flow
flow.ones

import types
other = types.ModuleType("of_torch")
other.handled = handled
exec('''
import torch
class Handled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return handled[func]
x = torch.ones(2).as_subclass(Handled)
assert (x.sum(), x.to(torch.float64), x // 2) == ("sum", "to", "__floordiv__")
lazy = torch.nn.LazyLinear(2).to(torch.float64)
assert lazy(torch.ones(1, 3, dtype=torch.float64)).dtype is torch.float64
''', other.__dict__)
"""


def of_torch(text, name="tests_of_plain_torch"):
    """The names of a module that does not speak OneFlow."""
    module = types.ModuleType(name)
    exec(compile(textwrap.dedent(text), f"{name}.py", "exec"), module.__dict__)
    return module


COMPUTES = """
    import torch

    def computed(x):
        y = x.sum(0).softmax(0) // 2 + x.mean() + x.to(torch.float64).max().to(torch.float32)
        y = y.view(-1) * 2 - 1
        return y.std() + y.norm() + x.clamp(0, 1).sum() + x.masked_fill(x > 0, 1.0).var()

    def by_the_class(x):
        total = sum(map(torch.Tensor.sum, [x, x])) + torch.Tensor.norm(x)
        return total + torch.Tensor.__floordiv__(x, 2) + torch.Tensor.mean(x)
"""


def test_tables_that_were_keyed_by_members_before_hold():
    subprocess.run([sys.executable, "-c", KNOWN_BEFORE], check=True, timeout=120)


class _Same(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["computed", "by_the_class"])
@pytest.mark.parametrize("in_a_mode", [False, True])
def test_torch_compile_needs_no_break(name, in_a_mode):
    torch.compiler.reset()
    function = getattr(of_torch(COMPUTES), name)
    x = torch.randn(3, 4)
    with _Same() if in_a_mode else torch.enable_grad():
        found = torch.compile(function, fullgraph=True, backend="eager")(x)
    assert torch.equal(found, function(x))


def test_members_are_pickled_by_their_name():
    module = of_torch("import torch\nmember = torch.Tensor.sum")
    assert pickle.loads(pickle.dumps(module.member)) is module.member
    assert type(module.member).__name__ == "method_descriptor"


def test_libraries_do_not_see_what_torch_lacks():
    """They tell a DTensor by `to_local`."""
    found = of_torch("def asked(x):\n    return hasattr(x, 'to_local'), hasattr(x, 'placement')")
    code = found.asked.__code__.replace(co_filename=f"{torch.__path__[0]}/none.py")
    asked = types.FunctionType(code, {"__name__": "a_library", "hasattr": hasattr})
    assert asked(torch.ones(1)) == (False, False)
    assert found.asked(torch.ones(1)) == (True, True)


def test_errors_and_warnings_name_the_line_of_the_caller():
    found = of_torch(
        """
        import torch
        def wrong():
            return torch.ones(2) + torch.ones(3)
        def warned():
            return torch.ones(1, dtype=torch.complex64).to(torch.float32)
        """
    )
    with pytest.raises(RuntimeError) as caught:
        found.wrong()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "wrong"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found.warned()
    assert [one.filename for one in told] == ["tests_of_plain_torch.py"]


def test_who_is_looked_at_from_c_does_not_speak():
    """`pickle` looks for an object in all modules, in the frame of whoever pickles."""
    text = "def asked(get):\n    return get()\ndef of(x): return x // 2"
    found = of_torch(text, "tests_looked_at")
    found.asked(partial(getattr, flow, "add"))
    assert found.of(torch.tensor([-3])).tolist() == [-2]


def test_a_local_import_and_getattr_speak():
    text = """
    def asked(x):
        import torchgraph.oneflow as flow
        getattr(flow, "ones")
        return x // 2
    """
    assert of_torch(text, "tests_asks_inside").asked(torch.tensor([-3])).tolist() == [-1]


def test_the_class_itself_has_oneflows_for_who_speaks():
    x = torch.tensor([-3])
    assert flow.Tensor.__floordiv__(x, 2).tolist() == [-1]
    assert torch.Tensor.to_local(x) is x
    assert nn.Module.to_local is not None
