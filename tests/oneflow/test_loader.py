"""A DataLoader is torch's, and is not drawn from inside of a ``build``."""

import numpy
import pytest
import torch

import torchgraph as tg
import torchgraph.oneflow as flow
from torchgraph.oneflow._port.errors import NotPorted

DATA = flow.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2))


class Reads(flow.nn.Graph):
    def __init__(self, batches):
        super().__init__()
        self.model, self.batches = torch.nn.Linear(2, 1), batches
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self):
        (x,) = next(self.batches)
        loss = self.model(x).sum()
        loss.backward()
        return loss


def test_it_is_torchs():
    loader = flow.utils.data.DataLoader(DATA, batch_size=4)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert len(loader) == len(iter(loader)) == 2
    expected = [x.tolist() for (x,) in torch.utils.data.DataLoader(DATA, batch_size=4)]
    assert [x.tolist() for (x,) in loader] == [x.tolist() for (x,) in loader] == expected


def test_a_batch_is_not_drawn_inside_of_build():
    graph = Reads(iter(flow.utils.data.DataLoader(DATA, batch_size=2)))
    before = graph.model.weight.detach().clone()

    with pytest.raises(NotPorted, match=r"graph\(x, y\)"):
        graph()

    assert torch.equal(graph.model.weight, before)


def test_another_iterator_is_read_in_eager():
    """Its numbers are right, and a warning names the way out."""
    graph = Reads(iter([(torch.full((2, 2), float(k)),) for k in range(5)]))
    expected, model = [], torch.nn.Linear(2, 1)
    model.load_state_dict(graph.model.to(torch.nn.Module).state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(5):
        loss = model(torch.full((2, 2), float(k))).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())

    with pytest.warns(tg.errors.EagerWarning, match="pass it in as a tensor"):
        found = [graph().item() for _ in range(5)]

    assert found == expected


@pytest.mark.parametrize(
    ("sample", "dtype", "values"),  # as OneFlow 0.9 gave them
    [
        (numpy.float64(1.5), torch.float32, [1.5, 1.5]),
        (numpy.array(1.5), torch.float64, [1.5, 1.5]),
        (1.5, torch.float64, [1.5, 1.5]),
        (numpy.float32(1.5), torch.float32, [1.5, 1.5]),
        (numpy.arange(3.0)[::-1], torch.float64, [[2, 1, 0], [2, 1, 0]]),
        (numpy.arange(2, dtype=numpy.uint8)[::-1], torch.uint8, [[1, 0], [1, 0]]),
    ],
)
def test_arrays_and_numbers_of_numpy_in_a_batch(sample, dtype, values):
    nested = {"a": (sample, [sample])}
    for loader in (
        flow.utils.data.DataLoader([nested] * 2, batch_size=2),
        [flow.utils.data.dataloader.default_collate([nested] * 2)],
    ):
        for batch in loader:
            one, (other,) = batch["a"]
            assert one.dtype == other.dtype == dtype
            assert one.tolist() == other.tolist() == values


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_alone_and_in_a_worker(workers):
    loader = flow.utils.data.DataLoader(
        [numpy.float64(1.5), numpy.arange(2.0)[::-1]], batch_size=None, num_workers=workers
    )
    number, array = loader
    assert (number.dtype, number.item()) == (torch.float32, 1.5)
    assert (array.dtype, array.tolist()) == (torch.float64, [1.0, 0.0])


def test_the_collate_fn_of_a_script_stays():
    loader = flow.utils.data.DataLoader([1, 2], batch_size=2, collate_fn=sum)
    assert list(loader) == [3]
