"""The body of a step: what a training loop does with a model, a loss and an optimizer."""

from __future__ import annotations

from .arguments import arguments
from .loops import LOOPS, functional, hooked
from .losses import loss
from .models import model
from .optimizers import optimizer, scheduler
from .source import Source

ZEROS = (
    "{o}.zero_grad()",
    "{o}.zero_grad()",
    "{o}.zero_grad(set_to_none=False)",
    "{m}.zero_grad()",
    "for p in {m}.parameters(): p.grad = None",
)

# Between backward() and step().
ADJUSTMENTS = (
    "norm = torch.nn.utils.clip_grad_norm_({m}.parameters(), 1.0)",
    "torch.nn.utils.clip_grad_norm_({m}.parameters(), 0.1, norm_type=float('inf'))",
    "torch.nn.utils.clip_grad_norm_({m}.parameters(), 0.5, norm_type=1, foreach=True)",
    "torch.nn.utils.clip_grad_value_({m}.parameters(), 0.05)",
    "torch.nn.utils.clip_grad_value_({m}.parameters(), 0.01, foreach=False)",
    "for p in {m}.parameters(): p.grad = None if p.grad is None else p.grad * 0.5",
    "for p in {m}.parameters(): p.grad is None or p.grad.add_(torch.randn_like(p), alpha=0.01)",
    "for p in {m}.parameters(): p.grad is None or p.grad.data.clamp_(-0.1, 0.1)",
    "norm = torch.nn.utils.get_total_norm([p.grad for p in {m}.parameters() "
    "if p.grad is not None])",
    "torch._foreach_mul_([p.grad for p in {m}.parameters() if p.grad is not None], 0.9)",
)

# At any place of the step outside of the forward part, after it.
EXTRAS = (
    "with torch.no_grad(): total += loss",
    "total = total + loss.detach()",
    "seen.append(z.detach().mean())",
    "table['loss'] = loss.detach()",
    "model.last = z.detach()",
    "with torch.no_grad(): z2 = torch.softmax(z, 1)",
    "torch.rand(3)",
    "total.copy_(loss.detach())",
    "if loss > 1.5: total = total * 0.5",
    "assert torch.isfinite(loss) or True",
)

RETURNS = (
    "return loss",
    "return loss.detach(), z",
    "return {'loss': loss, 'z': z.detach(), 'nothing': None, 'number': 3}",
    "return [loss, (z[:, :2], z.t())]",
    "return z.view(-1, 2, 4)[:, 1], loss",
    "return z, z",
    "return z, z[1:]",
    "return z.argmax(1), (z > 0), loss.double()",
    "return total + loss",
    "return {n: p.grad.norm() for n, p in model.named_parameters() if p.grad is not None}",
    "return [p.grad.clone() for p in model.parameters() if p.grad is not None]",
    "return x.detach() * 2, loss",
    "return None",
    "return torch.stack([loss, loss]).expand(3, 2), z[:0]",
)


def forward(source: Source, x: str = "x", m: str = "model") -> list[str]:
    """The forward part and the loss, maybe under autocast."""
    lines = [f"z = {m}({x})", f"loss = {loss(source, 'z')}"]
    if source.chance(0.2):
        lines.append(f"loss = loss + 0.1 * {loss(source, 'z')}")
    if source.chance(0.15) and not source.smooth:
        inside = source.pick((lines[:1], lines))
        arguments = source.pick(("'cpu', torch.bfloat16", "'cpu', torch.float16",
                                 "'cpu', torch.bfloat16, cache_enabled=False"))  # fmt: skip
        indented = [f"    {line}" for line in inside]
        return [f"with torch.autocast({arguments}):", *indented, *lines[len(inside) :]]
    return lines


def zero(source: Source, m: str = "model", o: str = "optimizer") -> str:
    return source.pick(ZEROS).format(m=m, o=o)


def adjust(source: Source, m: str = "model") -> list[str]:
    return [line.format(m=m) for line in source.some(ADJUSTMENTS, 2)]


def supervised(source: Source) -> None:
    lines = [*forward(source), "loss.backward()"]
    if source.chance(0.2):
        lines[-1:] = ["loss.backward(retain_graph=True)", f"({loss(source, 'z')}).backward()"]
    lines += [*adjust(source), "optimizer.step()"]
    place = source.pick((0, 0, 0, 1, len(lines), None))  # None: gradients add up
    if place is not None:
        lines.insert(0 if place == 1 and lines[0].startswith("with") else place, zero(source))
    source.step += lines


def accumulating(source: Source) -> None:
    inner = [*forward(source, "rows"), "(loss / 2).backward()"]
    source.step += [
        zero(source),
        "whole = (y, t)",
        "for rows, y, t in zip(x.chunk(2), y.chunk(2), t.chunk(2)):",
        *(f"    {line}" for line in inner),
        *adjust(source),
        "optimizer.step()",
    ]


def penalty(source: Source) -> None:
    source.step += [
        zero(source),
        "inputs = x.detach().clone().requires_grad_()",
        *forward(source, "inputs"),
        "(slope,) = torch.autograd.grad(loss, inputs, create_graph=True)",
        "(loss + slope.square().sum()).backward()",
        "optimizer.step()",
    ]


def by_hand(source: Source) -> None:
    """No optimizer steps: the gradients are used here."""
    take, use = source.pick(
        (
            ("loss.backward()", "p.grad"),
            ("grads = dict(zip(model.parameters(), torch.autograd.grad(loss, "
             "list(model.parameters()), allow_unused=True)))", "grads[p]"),
        )
    )  # fmt: skip
    update = source.pick(("p -= 0.1 * {g}", "p.sub_({g}, alpha=0.05)", "p.data.add_({g}, alpha=-1)",
                          "p.copy_(p - 0.1 * {g})", "p.data = p.data - 0.1 * {g}"))  # fmt: skip
    source.step += [
        *forward(source),
        take,
        "with torch.no_grad():",
        "    for p in model.parameters():",
        f"        if {use} is not None:",
        f"            {update.format(g=use)}",
        source.pick(("model.zero_grad()", "model.zero_grad(set_to_none=False)", "pass")),
    ]


def assigned(source: Source) -> None:
    """Gradients by autograd.grad, assigned."""
    source.step += [
        *forward(source),
        "used = [p for p in model.parameters() if p.requires_grad]",
        "for p, g in zip(used, torch.autograd.grad(loss, used, allow_unused=True)):",
        f"    p.grad = {source.pick(('g', 'None if g is None else g * 0.5', 'g'))}",
        "optimizer.step()",
    ]


def adversaries(source: Source) -> None:
    """Two models and two optimizers in turn."""
    source.setup.append("critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))")
    source.watched["critic"] = "critic"
    optimizer(source, "judges", "critic")
    source.step += [
        zero(source, "critic", "judges"),
        "fake = model(x)",
        f"judged = {loss(source, 'critic(fake.detach())')}",
        "judged.backward()",
        *adjust(source, "critic"),
        "judges.step()",
        zero(source),
        "z = critic(fake)",
        f"loss = -({loss(source, 'z')})",
        "loss.backward()",
        *adjust(source),
        "optimizer.step()",
    ]


def carried(source: Source) -> None:
    """A hidden state that goes from call to call."""
    source.setup += ["cell = nn.GRUCell(8, 8)", "hidden = torch.zeros(1, 8)"]
    source.watched |= {"cell": "cell", "hidden": "hidden"}
    source.cells.append("hidden")
    source.step += [
        zero(source),
        "inner = cell(model(x), hidden.expand(len(x), 8))",
        "hidden = inner.detach().mean(0, keepdim=True)",
        "z = inner",
        f"loss = {loss(source, 'z')}",
        "loss.backward()",
        "optimizer.step()",
    ]


def scaled(source: Source) -> None:
    size = source.pick(("8.0", "1024.0", "2.0 ** 120"))
    source.setup.append(
        f"scaler = torch.amp.GradScaler('cpu', init_scale={size}, growth_interval=3)"
    )
    source.watched["scaler"] = "scaler"
    source.events += [
        "if call == {k}: scaler.update(4.0)",
        "if call == {k}: scaler.load_state_dict(scaler.state_dict() | {'scale': 16.0})",
        "if call == {k}: scaler.set_backoff_factor(0.25)",
    ]
    clip = ["scaler.unscale_(optimizer)", *adjust(source)] if source.chance(0.5) else []
    source.step += [
        zero(source),
        *forward(source),
        "scaler.scale(loss).backward()",
        *clip,
        "scaler.step(optimizer)",
        "scaler.update()",
    ]


def closure(source: Source) -> None:
    inner = [zero(source), *forward(source), "loss.backward()"]
    source.step += [
        "def evaluate():",
        "    nonlocal z",
        *(f"    {line}" for line in inner),
        "    return loss",
        "z = None",
        "loss = optimizer.step(evaluate)",
    ]


def evaluation(source: Source) -> None:
    guard = source.pick(("with torch.no_grad():", "with torch.inference_mode():", "if True:"))
    source.step += [guard, *(f"    {line}" for line in forward(source))]


STEPS = (supervised,) * 6 + (accumulating, penalty, by_hand, assigned, adversaries, carried, scaled,
                             closure, evaluation)  # fmt: skip


def averages(source: Source) -> None:
    """Slow weights that follow the model's."""
    source.setup.append("slow = copy.deepcopy(model)")
    source.watched["slow"] = "slow"
    move = source.pick(("s.lerp_(p, 0.1)", "s.mul_(0.9).add_(p, alpha=0.1)", "s.copy_(p)",
                        "s.data = 0.9 * s.data + 0.1 * p.data"))  # fmt: skip
    source.step += [
        "with torch.no_grad():",
        "    for s, p in zip(slow.parameters(), model.parameters()):",
        f"        {move}",
    ]


def step(source: Source) -> None:
    """The whole program but for the calls."""
    model(source)
    optimizer(source, "optimizer", "model")
    if schedules := source.chance(0.35):
        scheduler(source, "scheduler", "optimizer")
    if source.chance(0.1):
        source.setup.append(
            "for p in model.parameters(): p.register_hook(lambda grad: grad * 0.9)"
            " if p.requires_grad else None"
        )
    arguments(source)
    if source.chance(0.08) and not source.smooth:
        dtype = source.pick(("double", "double", "bfloat16"))
        source.setup.append(f"model.{dtype}()")
        source.step.append(f"x, y = x.{dtype}(), y.{dtype}()")
    kind = source.pick(STEPS if source.smooth or source.chance(0.6) else LOOPS)
    kind(source)
    if kind not in (by_hand, evaluation, hooked, functional):
        if schedules:
            source.step.append("scheduler.step()")
        if source.chance(0.15):
            averages(source)
    source.setup += ["total = torch.zeros(())", "seen, table = [], {}"]
    source.watched |= {"total": "total", "seen": "seen", "table": "table"}
    source.cells.append("total")
    source.step += source.some(EXTRAS, 2) if source.chance(0.4) else []
    source.step.append(source.pick(RETURNS))
