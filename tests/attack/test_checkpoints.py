"""``tg.save`` and ``tg.load``: what comes back, what is refused, and that no damage gets past."""

import json
import math
import os
import resource
import signal
import stat
import threading
from collections import Counter, OrderedDict, defaultdict
from contextlib import contextmanager

import pytest
import torch
from safetensors import safe_open

import torchgraph as tg
from tests.contract.models import Net
from torchgraph.artifact import layout
from torchgraph.errors import (
    CheckpointDamaged,
    CheckpointFileError,
    CheckpointNotFound,
    InvalidOption,
    NotSavable,
)

STATE = {
    "plain": [None, True, False, 0, -1, 2**53, 2**53 + 1, -(10**5000), "a.b", "", "\ud800", "ü"],
    "floats": [0.0, -0.0, 0.1, 1e308, 5e-324, math.inf, -math.inf],
    "complex": 1 - 0.0j,
    "bytes": b"\0\xff",
    "empty": [[], (), {}, OrderedDict(), torch.Size([])],
    "nested": ({"a": [({},)]}, torch.Size([2, 3]), torch.float16, torch.device("cuda:1")),
    "keys": {10**5000: torch.ones(1), 1: "int", "1": "str", None: 0, False: 1, 0.5: 2},
    "ordered": OrderedDict([("z", 1), ("a", 2)]),
    "counter": Counter({3: 2}),
    "a.b": torch.tensor(1),
    "a": {"b": torch.tensor(2)},
    "__metadata__": torch.tensor(3),
}


def exactly(left, right):
    """Equal, of the same types throughout."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)
    if isinstance(left, dict):
        return all(map(exactly, left.items(), right.items())) and len(left) == len(right)
    if isinstance(left, (list, tuple)):
        return all(map(exactly, left, right)) and len(left) == len(right)
    return left == right if isinstance(left, int) else repr(left) == repr(right)


def bits(tensor):
    return bytes(tensor.detach().reshape(-1).contiguous().untyped_storage()[: tensor.nbytes])


def again(state, folder):
    tg.save(state, folder / "state")
    return tg.load(folder / "state")


def test_plain_values_come_back_as_they_were(tmp_path):
    assert exactly(again(STATE, tmp_path), STATE)
    found = again([math.nan, defaultdict(list, a=1), torch.tensor(math.nan).item()], tmp_path)
    assert math.isnan(found[0])
    assert exactly(found[1], {"a": 1})
    assert os.listdir(tmp_path) == ["state"]


DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype)} - {torch.complex32}, key=str
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_comes_back_or_is_refused(dtype, tmp_path):
    try:
        source = torch.arange(48, dtype=torch.uint8).view(dtype)
        source.clone()
    except RuntimeError:
        source = None
    if source is None or source.is_quantized:
        made = torch.empty(2, dtype=dtype) if "q" not in str(dtype) else None
        if made is not None:
            with pytest.raises(NotSavable, match=r"state\['x'\]"):
                tg.save({"x": made}, tmp_path / "state")
        return
    for tensor in (source, source[0], source[:0], source[:2].reshape(1, 2, 1)):
        assert exactly(again({"x": tensor}, tmp_path), {"x": tensor})


def test_layouts_that_are_dense_come_back(tmp_path):
    x = torch.arange(120.0).reshape(2, 3, 4, 5)
    forms = [
        x.to(memory_format=torch.channels_last),
        x.permute(3, 1, 0, 2),
        x[:, :1].transpose(0, 3),
    ]
    for form, found in zip(forms, again(forms, tmp_path), strict=True):
        assert torch.equal(form, found)
    assert [one.stride() for one in again(forms[:2], tmp_path)] == [f.stride() for f in forms[:2]]
    views = [
        x[..., ::2],
        x[0, 0, :1].expand(3, 5),
        torch.view_as_complex(x[..., :2].clone()).conj(),
    ]
    for form, found in zip(views, again(views, tmp_path), strict=True):
        assert torch.equal(form, found)
        assert found.is_contiguous()


def test_one_tensor_in_two_places_is_one_and_overlapping_views_come_apart(tmp_path):
    weight = torch.nn.Parameter(torch.randn(1000))
    found = again({"a": weight, "b": weight.detach(), "tail": weight.detach()[1:]}, tmp_path)
    assert found["a"] is found["b"]
    assert type(found["a"]) is torch.Tensor
    assert not found["a"].requires_grad
    found["a"].zero_()
    assert torch.equal(found["tail"], weight.detach()[1:])
    assert (tmp_path / "state").stat().st_size < 2 * 4000 + 2000


def test_any_reader_of_safetensors_opens_it(tmp_path):
    state = {"model": Net().state_dict(), "z": torch.ones(2, 3).t()}
    tg.save(state, tmp_path / "state")
    with safe_open(str(tmp_path / "state"), "pt") as file:
        assert "model.first.weight" in file.keys()  # noqa: SIM118  # it has no __contains__
        for name, value in state["model"].items():
            assert torch.equal(file.get_tensor(f"model.{name}"), value)
        assert torch.equal(file.get_tensor("z"), state["z"])
        assert json.loads(file.metadata()["tree"])


def test_a_module_state_keeps_its_versions(tmp_path):
    state = Net().state_dict()
    assert again(state, tmp_path)._metadata == state._metadata
    state._metadata["norm"] = {"version": 1}
    del state["norm.num_batches_tracked"]  # as a checkpoint of an early torch
    Net().load_state_dict(again(state, tmp_path))


# --- what is refused -----------------------------------------------------------------------------

loop: list = [1]
loop.append({"again": loop})
deep: list = []
for _ in range(5000):
    deep = [deep]
REFUSED = {
    "a function": lambda: 0,
    "an object": object(),
    "a class": int,
    "a module": torch.nn.Linear(1, 1),
    "a generator": torch.Generator(),
    "a set": {1},
    "a named tuple": torch.ones(2).max(0),
    "a cycle": loop,
    "deep": deep,
    "a key": {(1, 2): 3},
    "an enum": signal.SIGINT,
    "a memory view": memoryview(b"x"),
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.ones(1, device="meta"),
    "lazy": torch.nn.LazyLinear(1).weight,
    "nested": torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
    "a subclass": torch.ones(1).as_subclass(type("Mine", (torch.Tensor,), {})),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_plain_data_is_refused_by_its_path(name, tmp_path):
    (tmp_path / "state").write_text("before")
    with pytest.raises(NotSavable, match=r"state\['model'\]\[1\]") as found:
        tg.save({"x": torch.ones(1), "model": [0, REFUSED[name]]}, tmp_path / "state")
    assert found.value.way_out
    assert (tmp_path / "state").read_text() == "before"
    assert os.listdir(tmp_path) == ["state"]


def test_memory_that_was_given_back_is_refused(tmp_path):
    tensor = torch.ones(5)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(NotSavable, match="memory"):
        tg.save(tensor, tmp_path / "state")


# --- the file system -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 3, b"bytes", "", "a\0b", "\ud900", {}])
def test_a_path_is_text(path):
    with pytest.raises((InvalidOption, CheckpointFileError)):
        tg.save({}, path)
    with pytest.raises((InvalidOption, CheckpointFileError)):
        tg.load(path)


@pytest.mark.parametrize("ending", ["/", "/.", "/.."])
def test_a_path_that_names_a_folder(ending, tmp_path):
    before = tmp_path / "run"
    before.write_bytes(b"mine")
    with pytest.raises(CheckpointFileError, match="names a folder"):
        tg.save({"a": 1}, f"{before}{ending}")
    assert before.read_bytes() == b"mine"


def test_where_no_file_can_be(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    os.symlink("loop", tmp_path / "loop")
    places = [tmp_path / "no" / "state", tmp_path, tmp_path / "fifo", "/dev/null"]
    for path in [*places, tmp_path / "loop", tmp_path / ("x" * 300)]:
        with pytest.raises(CheckpointFileError) as found:
            tg.save({}, path)
        assert isinstance(found.value, OSError)
        assert found.value.errno
        with pytest.raises(CheckpointDamaged if path == tmp_path else CheckpointFileError):
            tg.load(path)  # in a folder may be a Graph
    with pytest.raises(FileNotFoundError) as missing:
        tg.load(tmp_path / "nowhere")
    assert type(missing.value) is CheckpointNotFound
    assert sorted(os.listdir(tmp_path)) == ["fifo", "loop"]


@contextmanager
def a_full_disk():
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(CheckpointFileError, match="cannot be written"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@contextmanager
def an_interrupt():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            yield


@contextmanager
def a_header_that_could_not_be_loaded():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "_HEADER", 1000)
        with pytest.raises(NotSavable, match="bytes, of 1,000 at most"):
            yield


@pytest.mark.parametrize("failure", [a_full_disk, an_interrupt, a_header_that_could_not_be_loaded])
def test_a_save_that_fails_leaves_the_file_before(failure, tmp_path, interruptible):
    tg.save({"x": 1}, tmp_path / "state")
    with failure():
        tg.save({"x": torch.ones(1_000_000), "more": list(range(1000))}, tmp_path / "state")
    assert tg.load(tmp_path / "state") == {"x": 1}
    assert os.listdir(tmp_path) == ["state"]


def test_modes_and_links(tmp_path):
    old = os.umask(0o027)
    try:
        tg.save(1, tmp_path / "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o600)
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "dangling").symlink_to("later")
    tg.save(2, tmp_path / "link")
    tg.save(3, tmp_path / "dangling")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    assert [tg.load(tmp_path / name) for name in ("new", "later")] == [2, 3]


def test_savers_of_one_path_leave_one_whole_file(tmp_path):
    def saves(number):
        for _ in range(20):
            tg.save([number] * 100, tmp_path / "state")

    threads = [threading.Thread(target=saves, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "state").exists():
            assert len(set(tg.load(tmp_path / "state"))) == 1
    assert os.listdir(tmp_path) == ["state"]
