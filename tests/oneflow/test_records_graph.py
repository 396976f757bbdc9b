"""Graphs whose `build` reads: the same batches, in the same order, as a loop in eager torch."""

from __future__ import annotations

import gc
import multiprocessing
import time
import warnings
from itertools import chain

import pytest
import torch
from torch import nn

from tests.oneflow.records_kit import (
    BATCH,
    COUNT,
    Numbers,
    folder as folder,
    reader,
    workers as workers,
)
from torchgraph.errors import GraphError
from torchgraph.oneflow._port.errors import NotPorted
from torchgraph.oneflow._port.records import ahead
from torchgraph.oneflow._port.records.fed import Fed
from torchgraph.oneflow._port.records.images.arrangers import CropMirrorNormalize
from torchgraph.oneflow._port.records.images.decoders import (
    ImageResize,
    OFRecordImageDecoder,
    OFRecordImageDecoderRandomCrop,
)
from torchgraph.oneflow._port.records.readers import CoinFlip, OFRecordRawDecoder

MEAN, STD = [123.68, 116.779, 103.939], [58.393, 57.12, 57.375]


class Images(nn.Module):
    """A loader as the classification models of OneFlow's users have it."""

    def __init__(self, folder, train):
        super().__init__()
        shuffles = {"random_shuffle": True, "shuffle_after_epoch": True, "random_seed": 7}
        given = {**shuffles, "shuffle_buffer_size": 10} if train else {}
        self.train_record_reader = reader(folder, **given)
        self.record_label_decoder = OFRecordRawDecoder("class/label", (), torch.int32)
        self.flip = CoinFlip(BATCH, random_seed=1) if train else None
        if train:
            self.decoder = OFRecordImageDecoderRandomCrop("encoded", "RGB", random_seed=3)
            self.resize = ImageResize(target_size=[16, 16])
            self.normal = CropMirrorNormalize("RGB", mean=MEAN, std=STD)
        else:
            self.decoder = OFRecordImageDecoder("encoded", "RGB")
            self.resize = ImageResize(target_size=18, keep_aspect_ratio=True)
            self.normal = CropMirrorNormalize("RGB", crop_h=16, crop_w=16, mean=MEAN, std=STD)

    def forward(self):
        record = self.train_record_reader()
        label = self.record_label_decoder(record)
        image = self.resize(self.decoder(record))[0]
        flips = self.flip() if self.flip is not None else None
        return self.normal(image, flips), label


def model_of():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(4 * 14 * 14, 7),
    )  # fmt: skip
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Train(Fed):
    def __init__(self, loader, model, optimizer):
        super().__init__()
        self.loader, self.model = loader, model
        self.add_optimizer(optimizer)

    def build(self):
        image, label = self.loader()
        image = image.to("cpu")
        loss = nn.functional.cross_entropy(self.model(image), label.long())
        loss.backward()
        return loss, label


class Evaluate(Fed):
    def __init__(self, loader, model):
        super().__init__()
        self.loader, self.model = loader, model

    def build(self):
        image, label = self.loader()
        return self.model(image).softmax(-1), label


def eager_losses(folder, steps):
    model, optimizer = model_of()
    train, evaluation = Images(folder, True), Images(folder, False)
    torch.manual_seed(5)
    for step in range(steps):
        image, label = train()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(image), label.long())
        loss.backward()
        optimizer.step()
        yield loss.item(), label.tolist(), model
        if step % 7 == 6:
            model.eval()
            with torch.no_grad():
                image, label = evaluation()
                yield model(image).softmax(-1).tolist(), label.tolist(), model
            model.train()


@pytest.mark.parametrize(
    ("count", "quick", "forks"),
    [(0, 0.01, False), (1, 0.01, True), (None, 1e9, False), (None, 0.0, True)],
)
def test_twenty_steps_are_those_of_eager(folder, workers, count, quick, forks, monkeypatch):
    """Training and evaluation in turn, with dropout: bit for bit, whoever decodes."""
    workers(count)
    monkeypatch.setattr(ahead, "_QUICK", quick)  # seconds up to which the call itself decodes
    model, optimizer = model_of()
    graph = Train(Images(folder, True), model, optimizer)
    evaluation = Evaluate(Images(folder, False), model)
    expected = list(eager_losses(folder, 20))
    torch.manual_seed(5)
    found = []
    for step in range(20):
        loss, label = graph()
        found.append((loss.item(), label.tolist()))
        if step % 7 == 6:
            model.eval()
            found.append(tuple(value.tolist() for value in evaluation()))
            model.train()
    assert found == [(loss, label) for loss, label, _ in expected]
    other = expected[-1][2]
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    assert "17 by programs, 3 recorded, 0 in eager" in " ".join(str(graph.report()).split())
    assert bool(multiprocessing.active_children()) == forks


def test_several_readers_and_batches_that_begin_anew(folder, workers):
    graph = Numbers(reader(folder, batch_size=40), reader(folder, batch_size=3))
    for step in range(5):
        first, second = graph()
        assert first.tolist() == [(40 * step + n) % COUNT for n in range(40)]
        assert second.tolist() == [3 * step + n for n in range(3)]


def test_each_graph_reads_for_itself(folder, workers):
    """So it is in OneFlow, of Graphs and of eager calls of one reader."""
    shared = reader(folder, batch_size=2)
    first, second = Numbers(shared), Numbers(shared)
    assert first()[0].tolist() == [0, 1]
    assert second()[0].tolist() == [0, 1]
    assert first()[0].tolist() == [2, 3]
    assert first.decode(shared()).tolist() == [0, 1]
    assert second()[0].tolist() == [2, 3]


def test_accumulation_reads_a_batch_for_each_micro_batch(folder, workers):
    """As OneFlow does: results are those of all micro-batches."""

    class Accumulates(Fed):
        def __init__(self):
            super().__init__()
            self.read, self.decode = (
                reader(folder, batch_size=3),
                OFRecordRawDecoder("fields", (5,), torch.float32),
            )
            self.model = nn.Linear(5, 1)
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
            self.config.set_gradient_accumulation_steps(2)

        def build(self):
            fields = self.decode(self.read())
            loss = self.model(fields).square().mean()
            loss.backward()
            return loss, fields[:, -1]

    graph = Accumulates()
    model = nn.Linear(5, 1)
    model.load_state_dict(graph.model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read = reader(folder, batch_size=3)
    for step in range(5):
        losses, last = graph()
        assert last.tolist() == [6 * step + n for n in range(6)]
        optimizer.zero_grad()
        for micro in range(2):
            loss = model(graph.decode(read())).square().mean()
            (loss / 2).backward()
            assert losses[micro] == loss
        optimizer.step()


def test_images_that_build_computes_with(folder, workers):
    """What torch has touched, or written to, is cropped and normalised in the step."""

    class Clones(Fed):
        def __init__(self, writes):
            super().__init__()
            self.loader, self.writes = Images(folder, True), writes

        def build(self):
            of = self.loader
            image, flips = of.resize(of.decoder(of.train_record_reader()))[0], of.flip()
            if self.writes:
                return of.normal(image.bitwise_not_(), flips)
            return of.normal(image.clone(), flips.clone())

    for writes in (False, True):
        graph, loader = Clones(writes), Images(folder, True)
        for _ in range(4):
            image = loader.resize(loader.decoder(loader.train_record_reader()))[0]
            expected = loader.normal(~image if writes else image, loader.flip())
            assert torch.equal(graph(), expected)


def test_arguments_base_classes_and_looks(folder, workers):
    class Adds(Numbers):
        def build(self, more, *, by=2):
            return super().build()[0] * by + more

    graph = Adds(reader(folder, batch_size=2))
    with pytest.raises(NotPorted, match="call the Graph once"):
        graph.check(torch.tensor(1))
    assert [graph(torch.tensor(n), by=3).tolist() for n in range(4)] == [
        [0, 3], [7, 10], [14, 17], [21, 24],
    ]  # fmt: skip
    assert graph.check(torch.tensor(1), by=3) is None  # and no batch is lost
    assert graph(torch.tensor(0)).tolist() == [16, 18]


def test_workers_end_with_a_graph_that_a_collection_finds(folder, workers):
    graph = Numbers(reader(folder, batch_size=2))
    graph.itself = [graph.build]
    graph(), graph()
    begun = time.perf_counter()
    del graph
    gc.collect()
    assert not multiprocessing.active_children()
    assert time.perf_counter() - begun < 4


def test_a_graph_without_readers_costs_nothing(workers):
    class Plain(Fed):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 2)

        def build(self, x, scale=1.0):
            return self.model(x) * scale

    graph, x = Plain(), torch.randn(3, 2)
    for _ in range(5):
        assert torch.equal(graph(x), graph.model(x))
    assert "3 by programs, 2 recorded, 0 in eager" in " ".join(str(graph.report()).split())
    assert not multiprocessing.active_children()


def test_an_iterator_in_build_gives_right_numbers_and_a_warning():
    """It is run in eager: the way to a program is an argument, or a reader of records."""

    class Draws(Fed):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(1, 1)
            self.batches = iter([torch.full((4, 1), float(n)) for n in range(9)])

        def build(self):
            return self.model(next(self.batches))

    graph, found = Draws(), []
    with pytest.warns(UserWarning, match="pass it in"):
        found += [graph() for _ in range(6)]
    for step, one in enumerate(found):
        assert torch.equal(one, graph.model(torch.full((4, 1), float(step))))


def _same(found, expected):
    pairs = zip(chain(*found), chain(*expected), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_a_step_that_fails_leaves_its_batch(folder, workers):
    """A `build` that raises in its second call, and gradients that refuse a later one."""
    workers(1)
    expected = Numbers(reader(folder))
    numbers = [expected() for _ in range(5)]
    graph = Numbers(reader(folder))
    found = [graph()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph.decode, "forward", lambda records: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                graph()
    found += [graph() for _ in range(4)]
    assert _same(found, numbers)


def _in_a_fork(graph, sent):
    try:
        graph()
    except GraphError as error:
        sent.put(error.what)


def test_a_fork_takes_no_batches_of_its_parent(folder, workers):
    workers(1)
    graph, expected = Numbers(reader(folder)), Numbers(reader(folder))
    numbers = [expected() for _ in range(7)]
    found = [graph() for _ in range(3)]
    context = multiprocessing.get_context("fork")
    sent = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        child = context.Process(target=_in_a_fork, args=(graph, sent))
        child.start()
    said = sent.get(timeout=60)
    child.join()
    assert "forked" in said
    found += [graph() for _ in range(4)]
    assert _same(found, numbers)
