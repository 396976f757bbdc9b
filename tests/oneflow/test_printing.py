"""The text of a tensor, with OneFlow's dtypes and its breaks of lines."""

import pytest
import torch

import torchgraph.oneflow as flow

NINE = ", ".join(["2."] * 9)


@pytest.mark.parametrize(
    ("tensor", "text"),  # as OneFlow 0.9 printed them, with torch's name of the gradient's function
    [
        (torch.tensor(3.0), "tensor(3., dtype=oneflow.float32)"),
        (torch.tensor([True]), "tensor([True], dtype=oneflow.bool)"),
        (torch.zeros(2, 0), "tensor([], size=(2, 0), dtype=oneflow.float32)"),
        (torch.tensor([1.0, 2.0]).half(), "tensor([1., 2.], dtype=oneflow.float16)"),
        (
            torch.nn.Parameter(torch.ones(1)),
            "tensor([1.], dtype=oneflow.float32, requires_grad=True)",
        ),
        (
            torch.ones(3, requires_grad=True).sum(),
            "tensor(3., dtype=oneflow.float32, grad_fn=<SumBackward0>)",
        ),
        (
            torch.ones(9, requires_grad=True) * 2,
            f"tensor([{NINE}], dtype=oneflow.float32,\n       grad_fn=<MulBackward0>)",
        ),
    ],
)
def test_the_text_of_a_tensor(tensor, text):
    assert flow.Tensor  # this module speaks OneFlow
    assert repr(tensor) == str(tensor) == text
