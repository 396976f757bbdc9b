"""Lines of functions: each takes x (batch, WIDTH) to x of the same shape, without parameters."""

from __future__ import annotations

from .source import Source

SMOOTH = (
    "torch.tanh(x)",
    "F.gelu(x)",
    "F.silu(x)",
    "F.softmax(x, 1) * x",
    "x * torch.sigmoid(x)",
    "F.layer_norm(x, (8,))",
    "F.normalize(x)",
    "F.dropout(x, 0.3, self.training)",
    "F.pad(x, (1, 1))[:, 1:-1]",
    "F.mish(x[:, :, None]).squeeze(-1)",
    "x - x.logsumexp(1, keepdim=True)",
    "x.view(-1, 2, 4).transpose(1, 2).reshape(-1, 8)",
    "x.unflatten(1, (2, 4)).movedim(1, 2).flatten(1)",
    "x.reshape(2, -1).reshape(x.shape)",
    "torch.cat([x[:, 4:], x[:, :4]], 1)",
    "torch.stack(x.chunk(2, 1), 2).flatten(1)",
    "torch.hstack(x.split([3, 5], 1)[::-1])",
    "x.flip(1)",
    "x.roll((1, 3), (0, 1))",
    "x.t().contiguous().t()",
    "x.expand(2, *x.shape).mean(0)",
    "x.unfold(1, 2, 2).flatten(1)",
    "x.as_strided((len(x), 8), (8, 1)) if x.is_contiguous() else x",
    "x[:, [7, 6, 5, 4, 3, 2, 1, 0]]",
    "x[:, torch.arange(8) // 2 * 2]",
    "x[..., None].repeat(1, 1, 2).sum(2)",
    "x.index_select(1, torch.tensor([1, 0, 3, 2, 5, 4, 7, 6]))",
    "torch.einsum('bi,bj->bi', x, x) / 8",
    "torch.einsum('bi,bi,b->bi', x, x, x[:, 0]) / 9",
    "torch.baddbmm(x[:, None], x[:, None], x[:, :, None] * x[:, None]).squeeze(1) / 9",
    "torch.addcmul(x, x, x.flip(0), value=0.1)",
    "torch.lerp(x, x.mean(0), 0.25)",
    "x.cumsum(1) / 8",
    "torch.cumprod(torch.sigmoid(x), 1)",
    "torch.logcumsumexp(x, 1)",
    "x.tril() + x.triu(1)",
    "x + x.diag().sum()",
    "x + torch.outer(x[:, 0], x[0])",
    "x.var(0, keepdim=True) + x",
    "x.std(1, unbiased=False, keepdim=True) * x",
    "x / (1 + x.norm(dim=1, keepdim=True))",
    "x / (1 + x.norm())",
    "x * torch.linalg.vector_norm(x, 3, dim=1, keepdim=True).clamp(max=2)",
    "torch.fft.irfft(torch.fft.rfft(x), n=8)",
    "torch.fft.fft(x).real / 3",
    "torch.fft.fft2(x, norm='ortho').abs()",
    "torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) * 1j).flatten(1)",
    "torch.complex(x, x.flip(1)).conj().imag",
    "torch.polar(x.abs() + 0.1, x).real",
    "x.to(torch.float64).expm1().float().tanh()",
    "x.double().cos().to(x.dtype)",
    "torch.atan2(x, x.flip(1) + 3)",
    "x.square().add(1).rsqrt() * x",
    "x.pow(3) / 9",
    "torch.special.erf(x) + torch.special.i0e(x)",
    "F.cosine_similarity(x, x.flip(0))[:, None] + x",
    "F.interpolate(x[:, None], scale_factor=0.5, mode='linear')[:, 0].repeat(1, 2)",
    "x + torch.linalg.inv(torch.eye(8) * 20 + x.T @ x)[0]",
    "torch.linalg.solve(torch.eye(8) * 9 + x.T @ x, x.T).T",
    "F.scaled_dot_product_attention(*[x.view(-1, 1, 2, 4)] * 3, is_causal=True).flatten(1)",
    "F.scaled_dot_product_attention(*[x.view(-1, 2, 2, 2)] * 3).transpose(1, 2).flatten(1)",
    "torch.func.vmap(lambda row: row * row.sum())(x) / 9",
    "sum(torch.meshgrid(x[0], x[0], indexing='ij'))[0] + x",
    "x + torch.randn(x.shape) * 0.1",
    "x * torch.rand_like(x)",
    "x * torch.empty_like(x).uniform_(0.5, 1.5)",
    "x + torch.normal(0.0, 0.1, x.shape)",
    "torch.where(torch.arange(8) > 3, x, 0.5 * x)",
)

SHARP = (
    "F.relu(x)",
    "F.leaky_relu(x, 0.1)",
    "F.hardtanh(x)",
    "F.relu6(x * 3)",
    "x.clamp(-1, 1)",
    "x.clamp(min=x.mean())",
    "x.abs() - x.relu()",
    "torch.where(x > 0, x, 0.1 * x)",
    "x.sort(1).values",
    "x.sort(dim=0, descending=True, stable=True)[0]",
    "x.gather(1, x.argsort(1))",
    "x.scatter(1, x.detach().argsort(1), x.flip(1))",
    "x.scatter_add(1, x.detach().argmax(1, keepdim=True), x[:, :1])",
    "torch.zeros_like(x).scatter_reduce(1, torch.arange(8).expand(len(x), 8) // 2, x, 'amax')",
    "x.index_add(1, torch.tensor([0, 0, 7]), x[:, :3], alpha=0.5)",
    "x.index_fill(1, torch.tensor([2, 4]), 0.5)",
    "x.index_put((torch.arange(len(x)), x.argmax(1)), x[:, 0], accumulate=True)",
    "x.masked_fill(x > 1, 0.5)",
    "x.masked_scatter(x > 0.5, x.flip(0))",
    "x.take_along_dim(x.argsort(1, descending=True), 1)",
    "x.max(1, keepdim=True).values - x",
    "x.max() - x",
    "torch.minimum(x, x.flip(1))",
    "x.topk(4, 1).values.repeat(1, 2)",
    "x.kthvalue(3, 1, keepdim=True).values + x",
    "x - x.median(1, keepdim=True).values",
    "x.cummax(1).values",
    "x.prod(1, keepdim=True) + x",
    "x.quantile(0.3, 1, keepdim=True) * x",
    "x + x.round() + x.sign().floor()",
    "x.fmod(0.7) + x.remainder(0.3)",
    "x + x.frac() + x.trunc()",
    "torch.cdist(x, x).sum(1, keepdim=True) / 9 + x",
    "x + F.one_hot(x.argmax(1), 8)",
    "x + F.gumbel_softmax(x, hard=True)",
    "x + torch.bernoulli(torch.sigmoid(x))",
    "x + torch.multinomial(torch.softmax(x, 1), 1)",
    "x[:, torch.randperm(8)]",
    "x + torch.bucketize(x, torch.linspace(-1, 1, 5)) / 5",
    "x + (x > 0).sum(1, keepdim=True) / 8",
    "x + (x > 0).any(1, keepdim=True).float()",
    "x + torch.nan_to_num(torch.log(x), nan=0.1, neginf=-1.0, posinf=1.0)",
    "x.bfloat16().float()",
    "(x.bfloat16() @ torch.eye(8, dtype=torch.bfloat16)).float()",
    "x.half().float()",
    "x + (x * 10).int() / 10",
    "x * (x.detach() > 0)",
    "x + torch.histc(x.detach(), 4, -1, 1).repeat(2) / 9",
    "F.max_pool1d(x[:, None], 2)[:, 0].repeat(1, 2)",
    "F.grid_sample(x.view(-1, 2, 2, 2), torch.zeros(len(x), 2, 2, 2) + 0.1).flatten(1)",
    "F.rrelu(x, training=self.training)",
    "F.threshold(x, 0.1, 0.05)",
    "torch.copysign(x, x.flip(1))",
    "x.unique_consecutive().sum() / 40 + x",
    "x + len(x.nonzero()) / 40",
    "x + x[x > 0].sum() / 40",
)

# Statements; x is a tensor of their own before them.
IN_PLACE = (
    "x[:, 0] = 0.5",
    "x[:, :4].mul_(2)",
    "x[:, ::2] += 1",
    "x[:, 1:3] = x[:, 4:6]",
    "x[0] = x[-1]",
    "x.add_(0.1).tanh_()",
    "x.t()[0].copy_(x[:, 1])",
    "x.view(-1, 2, 4)[:, 1].sub_(0.5)",
    "x.diagonal().fill_(0.3)",
    "x.clamp_(-1, 1)",
    "x[x > 1] = 1.0",
    "x[x > 1] -= 0.5",
    "x.masked_fill_(x < -1, -1)",
    "x.index_copy_(1, torch.tensor([0, 3]), x[:, :2].clone())",
    "x.scatter_(1, torch.zeros(len(x), 1, dtype=torch.long), x[:, 4:5].clone())",
    "x.index_put_((torch.tensor([0, 0]), torch.tensor([1, 2])), torch.tensor(0.5))",
    "x.mul_(torch.rand(8))",
    "x.transpose_(0, 1).add_(1).t_()",
    "x.squeeze_().unsqueeze_(0).squeeze_(0)",
    "F.relu_(x)",
    "F.dropout(x, 0.2, self.training, inplace=True)",
    "x.lerp_(x.flip(0), 0.3)",
    "torch.sin(x.detach(), out=torch.empty_like(x))",
    "x.data.mul_(0.9)",
    "x.register_hook(lambda grad: grad * 0.5) if x.requires_grad else None",
    "x.register_hook(lambda grad: grad.clamp(-0.1, 0.1)) if x.requires_grad else None",
)

BRANCHES = (
    "if x.mean() > 0: x = x * 0.5",
    "if self.training: x = x + 0.1",
    "if x.shape[0] > 3: x = x * 1.5",
    "if bool((x > 2).any()): x = x.clamp(max=2)",
    "for _ in range(len(x) % 3): x = torch.tanh(x)",
    "if torch.is_grad_enabled(): x = x * 1.1",
)


def expression(source: Source) -> None:
    table = SMOOTH if source.smooth or source.chance(0.5) else SHARP
    source.forward.append(f"x = {source.pick(table)}")


def in_place(source: Source) -> None:
    if source.smooth:
        return expression(source)
    source.forward.append(source.pick(("x = x.clone()", "x = x * 1", "x = x + 0.0")))
    source.forward += source.some(IN_PLACE, 3)
    return None


def branch(source: Source) -> None:
    if not source.smooth:
        source.forward.append(source.pick(BRANCHES))


def residual(source: Source) -> None:
    """Something from earlier on, now and behind the next block."""
    name = source.name("r")
    source.forward.insert(source.random.randint(0, len(source.forward)), f"{name} = x")
    join = source.pick(
        (
            "x + {r}",
            "{r} * torch.sigmoid(x)",
            "torch.stack([x, {r}]).mean(0)",
            "torch.cat([x[:, :4], {r}[:, 4:]], 1)",
            "x.add({r}, alpha=0.3)",
        )
    )
    source.forward.append(f"x = {join.format(r=name)}")


def without_grad(source: Source) -> None:
    inner = source.pick(SMOOTH)
    source.forward.append(
        source.pick(
            (
                f"with torch.no_grad(): n = {inner}",
                f"n = ({inner}).detach()",
                f"with torch.no_grad(), torch.autocast('cpu', torch.bfloat16): n = {inner}",
            )
        )
    )
    source.forward.append("x = x + 0.1 * n")


def custom(source: Source) -> None:
    """An autograd function of the user's own."""
    name = source.name("Own")
    forward, backward = source.pick(
        (
            ("x.round()", "g"),
            ("x.sign() * x.abs().sqrt()", "g * x.abs().clamp(max=1)"),
            ("torch.exp(-x * x)", "-2 * x * torch.exp(-x * x) * g"),
            ("x.clone()", "-g"),
            ("x.view_as(x)", "g + torch.zeros_like(x)"),
        )
    )
    source.helpers += [
        f"class {name}(torch.autograd.Function):",
        "    @staticmethod",
        "    def forward(ctx, x):",
        "        ctx.save_for_backward(x)",
        f"        return {forward}",
        "",
        "    @staticmethod",
        "    def backward(ctx, g):",
        "        (x,) = ctx.saved_tensors",
        f"        return {backward}",
        "",
        "",
    ]
    source.forward.append(f"x = {name}.apply(x)")


BLOCKS = (expression, expression, expression, in_place, branch, residual, without_grad, custom)
