"""Blocks of modules: each is written as lines that take x (batch, WIDTH) to x of the same shape."""

from __future__ import annotations

from .source import WIDTH, Source

# Modules that keep (batch, WIDTH).
PLAIN = (
    "nn.Linear(8, 8)",
    "nn.Linear(8, 8, bias=False)",
    "nn.LayerNorm(8)",
    "nn.LayerNorm(8, elementwise_affine=False)",
    "nn.RMSNorm(8)",
    "nn.BatchNorm1d(8)",
    "nn.BatchNorm1d(8, affine=False)",
    "nn.BatchNorm1d(8, track_running_stats=False)",
    "nn.GroupNorm(2, 8)",
    "nn.Dropout(0.3)",
    "nn.AlphaDropout(0.2)",
    "nn.FeatureAlphaDropout(0.2)",
    "nn.PReLU()",
    "nn.PReLU(8)",
    "nn.RReLU()",
    "nn.ReLU(inplace=True)",
    "nn.SELU(inplace=True)",
    "nn.Hardswish()",
    "nn.Softplus(beta=2)",
    "nn.Sequential(nn.Linear(8, 5), nn.GELU(approximate='tanh'), nn.Linear(5, 8))",
    "nn.Sequential(nn.Linear(8, 16), nn.GLU())",
    "nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))",
    "nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))",
    "nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))",
)

# Modules, and how they are called.
SHAPED = (
    ("nn.Conv1d(2, 4, 3, padding=1)", "{m}(x.view(-1, 2, 4))[:, :2].flatten(1)"),
    ("nn.Conv1d(1, 1, 3, padding='same', padding_mode='circular')", "{m}(x[:, None])[:, 0]"),
    ("nn.Conv1d(8, 8, 1, groups=4)", "{m}(x[:, :, None]).squeeze(2)"),
    ("nn.ConvTranspose1d(2, 2, 2, stride=2)", "{m}(x.view(-1, 2, 4)[..., ::2]).flatten(1)"),
    ("nn.Conv2d(2, 2, (1, 3), padding=(0, 1))", "{m}(x.view(-1, 2, 2, 2)).flatten(1)"),
    ("nn.Conv2d(2, 2, 2, dilation=1, padding='same')", "{m}(x.view(-1, 2, 2, 2)).flatten(1)"),
    ("nn.BatchNorm2d(2)", "{m}(x.view(-1, 2, 2, 2)).flatten(1)"),
    ("nn.InstanceNorm1d(2, affine=True)", "{m}(x.view(-1, 2, 4)).flatten(1)"),
    (
        "nn.InstanceNorm1d(2, track_running_stats=True)",
        "{m}(x.view(-1, 2, 4)).flatten(1)",
    ),
    ("nn.Dropout1d(0.4)", "{m}(x.view(-1, 4, 2)).flatten(1)"),
    ("nn.MaxPool1d(2)", "{m}(x[:, None])[:, 0].repeat(1, 2)"),
    ("nn.AvgPool1d(3, 1, 1, count_include_pad=False)", "{m}(x[:, None])[:, 0]"),
    ("nn.AdaptiveAvgPool1d(4)", "{m}(x[:, None])[:, 0].repeat_interleave(2, 1)"),
    ("nn.Upsample(scale_factor=2)", "{m}(x[:, None, :4])[:, 0]"),
    ("nn.GRU(2, 4, batch_first=True)", "{m}(x.view(-1, 4, 2))[0][:, -1].repeat(1, 2)"),
    ("nn.LSTM(2, 2, batch_first=True)", "{m}(x.view(-1, 4, 2))[0].flatten(1)"),
    (
        "nn.LSTM(2, 1, num_layers=2, bidirectional=True, dropout=0.2)",
        "{m}(x.view(-1, 4, 2).transpose(0, 1))[0].transpose(0, 1).flatten(1)",
    ),
    ("nn.RNN(2, 2, nonlinearity='relu')", "{m}(x.view(-1, 4, 2))[0].flatten(1)"),
    ("nn.GRUCell(8, 8)", "{m}(x)"),
    ("nn.LSTMCell(8, 8)", "{m}(x)[1]"),
    (
        "nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)",
        "{m}(*[x.view(-1, 2, 4)] * 3, need_weights=False)[0].flatten(1)",
    ),
    (
        "nn.MultiheadAttention(4, 2)",
        "{m}(*[x.view(-1, 2, 4)] * 3)[0].flatten(1)",
    ),
    (
        "nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)",
        "{m}(x.view(-1, 2, 4)).flatten(1)",
    ),
    (
        "nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, norm_first=True)",
        "{m}(x.view(-1, 2, 4)).flatten(1)",
    ),
    ("nn.Bilinear(8, 8, 8)", "{m}(x, x.flip(1))"),
    ("nn.Embedding(5, 8)", "{m}((x[:, 0].detach() * 3).long().clamp(0, 4)) + x"),
    (
        "nn.Embedding(5, 8, padding_idx=0)",
        "x + {m}((x.detach() * 3).long().clamp(0, 4)).mean(1)",
    ),
    ("nn.Embedding(5, 8, max_norm=1.0)", "x + {m}(torch.arange(len(x)) % 5)"),
    ("nn.Embedding(5, 8, scale_grad_by_freq=True)", "x + {m}(torch.arange(len(x)) % 3)"),
    ("nn.EmbeddingBag(5, 8, mode='sum')", "x + {m}(torch.arange(2 * len(x)).view(-1, 2) % 5)"),
    ("nn.ParameterList([torch.randn(8) for _ in range(2)])", "x * {m}[0] + {m}[1]"),
    ("nn.ModuleDict({'a': nn.Linear(8, 8), 'b': nn.Tanh()})", "{m}['b']({m}['a'](x))"),
    ("nn.Parameter(torch.randn(8, 8) / 3)", "F.linear(x, {m}, {m}[0])"),
    ("nn.Parameter(torch.tensor(0.5))", "x * {m}"),
)


# What may happen to a linear layer between two calls.
CHANGES = (
    "if call == {k}: {m}.weight = nn.Parameter({m}.weight.detach() * 0.5)",
    "if call == {k}: {m} = nn.Linear(8, 8)",
    "if call == {k}: {m} = nn.Identity()",
    "if call == {k}: {m}.bias = None",
    "if call == {k}: {m}.weight.data = torch.ones(8, 8) / 9",
    "if call == {k}: {m}.weight.data = {m}.weight.data.t()",
    "if call == {k}: {m}.weight.grad = torch.ones(8, 8)",
    "if call == {k}: {m}.weight.requires_grad_(False)",
    "if call == {k}: {m}.forward = lambda x: x * 0.5",
    "if call == {k}: {m}.register_forward_pre_hook(lambda module, given: (given[0] * 0.5,))",
    "if call == {k}: {m}.register_full_backward_hook(lambda module, gi, go: (gi[0] * 0.5,))",
    "if call == {k}: {m}.weight.register_hook(lambda grad: grad * 0.1)",
    "if call == {k}: {m}.register_parameter('more', nn.Parameter(torch.ones(2)))",
    "if call == {k}: nn.init.zeros_({m}.bias)",
    "if call == {k}: nn.utils.prune.l1_unstructured({m}, 'weight', 0.3)",
    "if call == {k}: nn.utils.parametrize.register_parametrization({m}, 'weight', nn.Tanh())",
    "if call == {k}: model.half().float()",
    "if call == {k}: model.to(torch.float64).to(torch.float32)",
    "if call == {k}: torch.utils.swap_tensors({m}.weight, nn.Parameter(torch.ones(8, 8) / 8))",
)


def plain(source: Source) -> None:
    module = source.pick(PLAIN)
    name = source.member(module)
    source.forward.append(f"x = {name}(x)")
    if module == "nn.Linear(8, 8)" and source.form == "step":
        change = source.pick(CHANGES).replace("{m}", name.replace("self", "model"))
        source.events.append(change)


def attribute(source: Source) -> None:
    """A plain attribute that the forward reads, and that may change between calls."""
    name = source.name("a")
    value, other, line = source.pick(
        (
            ("1.5", "0.5", "x = x * self.{a}"),
            ("True", "False", "if self.{a}: x = torch.tanh(x)"),
            ("2", "3", "for _ in range(self.{a}): x = torch.sin(x)"),
            ("[1.0, 2.0]", "[0.5]", "x = x * sum(self.{a})"),
            ("{'k': 2.0}", "{'k': 0.5}", "x = x / self.{a}['k']"),
            ("torch.ones(8)", "torch.zeros(8)", "x = x + self.{a}"),
            ("torch.tensor(3.0)", "torch.tensor(2.0)", "x = x / self.{a}.item()"),
            ("torch.tanh", "torch.sin", "x = self.{a}(x)"),
            ("None", "torch.ones(8)", "if self.{a} is not None: x = x + self.{a}"),
            ("(0, 1)", "(1, 0)", "x = x.flip(self.{a}[0])"),
        )
    )
    source.members.append(f"self.{name} = {value}")
    source.forward.append(line.replace("{a}", name))
    source.events.append(f"if call >= {{k}}: model.{name} = {other}")


def shaped(source: Source) -> None:
    module, call = source.pick(SHAPED)
    source.forward.append(f"x = {call.format(m=source.member(module))}")


def twice(source: Source) -> None:
    """A submodule that is used in two places."""
    name = source.member(source.pick(PLAIN))
    source.forward += [f"x = {name}(x)", f"x = torch.tanh(x) + {name}(x * 0.5)"]


def tied(source: Source) -> None:
    first, second = source.member("nn.Linear(8, 8)"), source.member("nn.Linear(8, 8)")
    source.members.append(f"{first}.weight = {second}.weight")
    source.forward.append(f"x = {first}(torch.tanh({second}(x)))")


def untrained(source: Source) -> None:
    """A frozen submodule, or a frozen parameter of one."""
    name = source.member("nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))")
    part = source.pick(("", "[0]", "[2].weight", "[2].bias"))
    source.members.append(f"{name}{part}.requires_grad_(False)")
    source.forward.append(f"x = {name}(x)")


def checkpointed(source: Source) -> None:
    inner = ", ".join(source.pick(PLAIN[:12]) for _ in range(2))
    name = source.member(f"nn.Sequential({inner})")
    reentrant = source.pick(("use_reentrant=False", "use_reentrant=True"))
    source.forward.append(f"x = checkpoint({name}, x, {reentrant})")


def buffered(source: Source) -> None:
    """A buffer that the forward reads and updates."""
    name = source.name("b")
    source.members.append(f"self.register_buffer('{name}', torch.zeros({WIDTH}))")
    update = source.pick(
        (
            "self.{b}.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)",
            "self.{b} = 0.9 * self.{b} + 0.1 * x.detach().mean(0)",
            "self.{b}.copy_(torch.maximum(self.{b}, x.detach().abs().amax(0)))",
            "self.{b}.data.lerp_(x.data.mean(0), 0.2)",
            "self.{b}[:2] += x.detach()[0, :2]",
            "self.{b} += 1",
        )
    ).format(b=name)
    condition = source.pick(("", "if self.training: "))
    source.events += [
        f"if call == {{k}}: model.{name} = torch.ones(8)",
        f"if call == {{k}}: model.{name}.zero_()",
        f"if call == {{k}}: model.{name}.data = torch.ones(8)",
    ]
    lines = [condition + update, f"x = x + 0.1 * self.{name}{source.pick(('', '.clone()'))}"]
    source.forward += lines if source.chance(0.6) else lines[::-1]


def unused(source: Source) -> None:
    source.member(source.pick(PLAIN))


BLOCKS = (
    plain,
    plain,
    plain,
    attribute,
    shaped,
    shaped,
    twice,
    tied,
    untrained,
    checkpointed,
    buffered,
)
