import copy
import pickle

import pytest
import torch
from torch import nn

from torchgraph.blocks.block import BlockTree, GraphBlock, GraphModule
from torchgraph.blocks.proxy import Proxy, ProxyContainer, ProxyModule, proxy_of, unwrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 2)})
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.scales = nn.ParameterList([torch.ones(1)])
        self.alias = self.fc
        self.k = 7

    @property
    def first(self):
        return self.layers[0]

    def forward(self, x, *, times=1):
        return self.fc(x) * times


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def proxy(net):
    return proxy_of(BlockTree({"model": net}, "<{}>".format, "[{}]".format).block("model"))


def test_it_is_a_proxy_that_passes_for_the_module(net, proxy):
    assert type(proxy) is ProxyModule
    assert isinstance(proxy, Net)
    assert isinstance(proxy, nn.Module)
    assert isinstance(proxy, Proxy)
    assert type(proxy.seq) is ProxyContainer
    assert isinstance(proxy.seq, nn.Sequential)


def test_attributes_are_the_live_ones(net, proxy):
    assert proxy.k == 7
    assert proxy.fc.weight is net.fc.weight
    assert list(map(id, proxy.parameters())) == list(map(id, net.parameters()))
    assert proxy.state_dict().keys() == net.state_dict().keys()
    assert vars(proxy) is vars(net)
    assert "layers" in dir(proxy)
    assert proxy.forward == net.forward


def test_submodules_come_back_as_proxies(net, proxy):
    assert type(proxy.fc) is ProxyModule
    assert proxy.fc.to(nn.Module) is net.fc
    assert proxy.fc is proxy.fc
    assert repr(proxy.first) == "<model.layers.0>"
    assert repr(proxy.alias) == "<model.alias>"
    assert repr(proxy.get_submodule("heads.a")) == "<model.heads.a>"


def test_writes_go_to_the_module(net, proxy):
    proxy.k = 8
    assert net.k == 8
    proxy.fc = other = nn.Linear(3, 4)
    assert net.fc is other
    assert proxy.fc.weight is other.weight
    proxy.extra = proxy.seq
    assert net.extra is net.seq
    del proxy.extra
    assert not hasattr(net, "extra")


def test_train_and_eval(net, proxy):
    assert proxy.eval() is net
    assert not net.seq.training
    proxy.train()
    assert net.seq.training


def test_call_is_an_eager_call(net, proxy):
    x = torch.ones(2, 3)
    out = proxy(x, times=3)
    assert torch.equal(out, net(x, times=3))
    assert out.requires_grad
    with pytest.raises(TypeError):
        proxy(x, 3)


def test_to_block_module_or_elsewhere(net, proxy):
    block = proxy.fc.to(GraphModule)
    assert isinstance(block, GraphModule)
    assert block.path == "model.fc"
    assert proxy.fc.to(GraphBlock) is block
    assert proxy.to(nn.Module) is net
    assert proxy.to(torch.float64) is proxy
    assert net.fc.weight.dtype is torch.float64
    assert proxy.to("cpu") is proxy
    assert proxy.to(device=torch.device("cpu"), dtype=torch.float32) is proxy
    assert net.fc.weight.dtype is torch.float32


def test_module_list(net, proxy):
    assert len(proxy.layers) == 3
    assert [type(layer) for layer in proxy.layers] == [ProxyModule] * 3
    assert repr(proxy.layers[-1]) == "<model.layers.2>"
    assert net.layers[1] in proxy.layers
    assert proxy.layers[1] in proxy.layers
    proxy.layers[1] = nn.Tanh()
    assert isinstance(net.layers[1], nn.Tanh)
    del proxy.layers[0]
    assert len(net.layers) == 2
    assert bool(proxy.layers)


def test_a_slice_leads_to_the_same_blocks(net, proxy):
    part = proxy.layers[1:]
    assert isinstance(part, nn.ModuleList)
    assert [layer.to(GraphModule).path for layer in part] == ["model.layers.1", "model.layers.2"]
    assert part[0].to(nn.Module) is net.layers[1]
    assert repr(part) == repr(net.layers[1:])
    assert torch.equal(proxy.seq[:1](torch.ones(4)), net.seq[0](torch.ones(4)))


def test_module_dict(net, proxy):
    assert list(proxy.heads) == ["a", "b"]
    assert repr(proxy.heads["b"]) == "<model.heads.b>"
    assert "a" in proxy.heads
    assert [(key, repr(head)) for key, head in proxy.heads.items()] == [
        ("a", "<model.heads.a>"),
        ("b", "<model.heads.b>"),
    ]
    assert len(proxy.heads.values()) == 2


def test_walks_give_proxies(net, proxy):
    assert [repr(module) for module in proxy.seq.modules()] == [
        "<model.seq>",
        "<model.seq.0>",
        "<model.seq.1>",
    ]
    assert {name: repr(child) for name, child in proxy.seq.named_children()} == {
        "0": "<model.seq.0>",
        "1": "<model.seq.1>",
    }
    linears = [m.to(GraphModule).path for m in proxy.modules() if isinstance(m, nn.Linear)]
    assert linears[:2] == ["model.fc", "model.layers.0"]
    assert next(proxy.children()) == net.fc


def test_parameters_in_containers_stay_parameters(net, proxy):
    assert proxy.scales[0] is net.scales[0]
    assert list(proxy.scales)[0] is net.scales[0]  # noqa: RUF015  # iteration is what is tested


def test_a_module_without_items_has_none(proxy):
    with pytest.raises(TypeError):
        len(proxy.fc)
    with pytest.raises(TypeError):
        iter(proxy.fc)
    assert proxy.fc  # true, as any module without a length


def test_missing_attributes_name_the_path(proxy):
    with pytest.raises(AttributeError, match=r"'nope'.*'model\.fc'"):
        _ = proxy.fc.nope
    assert not hasattr(proxy, "nope")
    with pytest.raises(AttributeError):
        del proxy.nope


def test_equality_and_hash_are_the_modules(net, proxy):
    assert proxy == net
    assert net == proxy
    assert proxy != net.fc
    assert {net: 1}[proxy] == 1
    assert unwrap(proxy) is net
    assert unwrap(5) == 5


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, copy.copy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_copy_is_a_plain_module(net, clone):
    proxy = proxy_of(BlockTree({"model": net.seq}, str, str).block("model"))
    made = clone(proxy)
    assert type(made) is nn.Sequential
    assert torch.equal(made[0].weight, net.seq[0].weight)


def test_a_proxy_can_live_in_another_module(net, proxy):
    outer = nn.Sequential(proxy.fc, nn.ReLU())
    assert outer[0].weight is net.fc.weight
    assert list(outer.state_dict()) == ["0.weight", "0.bias"]
    assert outer(torch.ones(1, 3)).shape == (1, 4)


def test_torch_functions_take_a_proxy(net, proxy):
    x = torch.ones(2, 3)
    zeros = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    assert torch.func.functional_call(proxy, zeros, (x,)).eq(0).all()
    optimizer = torch.optim.SGD(proxy.parameters(), lr=0.1)
    assert optimizer.param_groups[0]["params"][0] is net.fc.weight
