"""Which line an error or a warning names, and errors that are the user's own."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.contract.models import Eval, Function, data, made
from torchgraph import errors


def test_the_error_in_a_forward_of_the_user_comes_through_as_it_is():
    class Own(Exception):
        pass

    def build(x):
        raise Own("mine")

    with pytest.raises(Own, match=r"^mine$"):
        Function(build)(torch.ones(1))


def test_an_error_names_the_line_in_the_users_module_not_in_torch():
    class Deep(nn.Module):
        def forward(self, x):
            return x + torch.from_numpy(x.detach().numpy())  # HERE

    model = nn.Sequential(nn.Linear(4, 4), Deep())
    with pytest.raises(errors.DataDependent) as found:
        Eval(model)(*data())
    assert found.value.where.function == "forward"
    assert found.value.where.text.endswith("# HERE")


def test_warn_points_at_the_users_line():
    model, optimizer = made()
    other = nn.Linear(4, 4)
    graph = Function(lambda x: model(other(x)).sum().backward(), optimizer, model=model)
    with pytest.warns(errors.UnregisteredModuleWarning) as found:
        graph(*data())
    assert found[0].filename == __file__


def test_unequal_devices():
    model = nn.Linear(4, 2)

    def build(x):
        return model(x) + torch.ones(2, device="meta")  # HERE

    expected = r"(?s)meta.*test_error_lines\.py:\d+.*# HERE.*Fix"
    with pytest.raises(errors.DeviceMismatch, match=expected):
        Function(build, model=model)(*data())


TYPED_IN = """
import torch, torchgraph as tg

def build(x):
    return torch.empty(3) + x

step = tg.step(build)
try:
    step(torch.ones(3))
except tg.errors.NoProgram as error:
    print(error.where)
step.config.set_fallback("eager")
step(torch.ones(3))
"""


@pytest.mark.parametrize(
    ("arguments", "given", "file"),
    [(["-c", TYPED_IN], None, "<string>"), ([], TYPED_IN, "<stdin>")],
)
def test_lines_that_are_typed_in_have_numbers(arguments, given, file):
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(f"{file}:5 in build")
    assert f"{file}:13: EagerWarning" in ran.stderr


def test_what_a_class_of_a_script_is_given_is_no_line_of_the_users():
    space = {"__name__": "__main__", "__file__": "script.py", "user_frames": errors.user_frames}
    exec(compile("def made(): return user_frames()", "<string>", "exec"), space)
    assert space["made"]()[0].function == (
        "test_what_a_class_of_a_script_is_given_is_no_line_of_the_users"
    )
