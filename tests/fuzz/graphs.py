"""Steps in the form of a Graph class, each beside the loop that its options stand for."""

from __future__ import annotations

from .losses import loss
from .models import model
from .optimizers import optimizer, scheduler
from .source import Source

# In build, after backward().
AFTER = (
    "with torch.no_grad(): self.model.seen.lerp_(z.mean(0), 0.5)",
    "for p in self.model.parameters(): p.grad is None or p.grad.mul_(0.5)",
    "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)",
    "with torch.no_grad(): self.model.seen.add_(1)",
    "norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() "
    "if p.grad is not None])",
)
RETURNS = ("return loss", "return loss, z", "return {'z': z[:, :2], 'loss': loss}", "return z")


def graph(source: Source) -> None:
    """The whole program but for the calls."""
    source.form = "graph"
    source.graphed.clear()
    model(source)
    source.members.append("self.register_buffer('seen', torch.zeros(8))")
    optimizer(source, "optimizer", "model")
    schedules = source.chance(0.4)
    if schedules:
        scheduler(source, "scheduler", "optimizer")
    found = [f"loss = {loss(source, 'z')}"]
    if source.chance(0.2):
        found.append(f"loss = loss + 0.1 * {loss(source, 'z')}")
    micro = source.pick((1, 1, 1, 2, 4)) if not schedules or source.chance(0.5) else 1
    half = source.chance(0.2) and not source.smooth
    scaler = source.chance(0.2)
    after = source.some(AFTER, 2) if micro == 1 and not scaler and source.chance(0.4) else []
    clip = source.pick((None,) * 4 + ("norm", "value", "group"))
    back = source.pick(RETURNS[:1] + RETURNS) if micro == 1 else "return loss"
    source.form = "micro" if micro > 1 else "graph"
    _build(source, found, after, back, schedules)
    _configure(source, micro, half, scaler, clip)
    _loop(source, found, after, back, (micro, half, scaler, clip, schedules))


def _build(source: Source, found: list[str], after: list[str], back: str, schedules: bool) -> None:
    follows = ", lr_sch=scheduler" if schedules else ""
    source.graphed += [
        "class Step(tg.Graph):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.model = model",
        f"        self.add_optimizer(optimizer{follows})",
        "",
        "    def build(self, x, y, t):",
        "        z = self.model(x)",
        *(f"        {line}" for line in [*found, "loss.backward()", *after, back]),
        "",
        "step = Step()",
    ]


def _configure(source: Source, micro: int, half: bool, scaler: bool, clip: str | None) -> None:
    if half:
        source.config.append("enable_amp(dtype=torch.bfloat16)")
    if micro > 1:
        source.config.append(f"set_gradient_accumulation_steps({micro})")
    if clip == "norm":
        source.config.append("set_clip_grad_norm(0.5)")
    if clip == "value":
        source.config.append("set_clip_grad_value(0.05)")
    if clip == "group":
        source.setup.append("optimizer.param_groups[0]['clip_grad_max_norm'] = 0.3")
    if scaler:
        size = source.pick(("8.0", "1024.0", "2.0 ** 126"))
        source.setup.append(
            f"scaler = torch.amp.GradScaler('cpu', init_scale={size}, growth_interval=3)"
        )
        source.watched["scaler"] = "scaler"
        source.graphed.append("step.set_grad_scaler(scaler)")


def _loop(
    source: Source,
    found: list[str],
    after: list[str],
    back: str,
    options: tuple[int, bool, bool, str | None, bool],
) -> None:
    """What eager has to do for the same."""
    micro, half, scaler, clip, schedules = options
    scaled = f"(loss / {micro})" if micro > 1 else "loss"
    part = ["z = model(x)", *found]
    if half:
        part = ["with torch.autocast('cpu', torch.bfloat16):", *(f"    {line}" for line in part)]
    part.append(f"scaler.scale({scaled}).backward()" if scaler else f"{scaled}.backward()")
    if micro > 1:
        source.step += [
            "losses = []",
            f"for x, y, t in zip(x.chunk({micro}), y.chunk({micro}), t.chunk({micro})):",
            *(f"    {line}" for line in [*part, "losses.append(loss.detach())"]),
        ]
        back = "return torch.stack(losses)"
    else:
        source.step += part
    source.step += [line.replace("self.", "") for line in after]
    if scaler:
        source.step.append("scaler.unscale_(optimizer)")
    source.step += {
        "norm": ["torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"],
        "value": ["torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)"],
        "group": ["torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]['params'], 0.3)"],
        None: [],
    }[clip]
    if scaler:
        source.step += ["scale = scaler.get_scale()", "scaler.step(optimizer)", "scaler.update()"]
    else:
        source.step.append("optimizer.step()")
    if schedules:
        source.step.append(
            "if scaler.get_scale() >= scale: scheduler.step()" if scaler else "scheduler.step()"
        )
    source.step += ["model.zero_grad()", back]
