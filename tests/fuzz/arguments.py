"""What a step is called with, and what it does to its arguments."""

from __future__ import annotations

from .source import Source

# Parameters, arguments, and first lines of the step.
FORMS = (
    ("batch, t", "{'x': x, 'y': y}, t", "x, y = batch['x'], batch['y']"),
    ("pair, t", "(x, [y, None]), t", "x, (y, _) = pair"),
    ("*given", "x, y, t", "x, y, t = given"),
    ("t, **given", "t, x=x, y=y", "x, y = given['x'], given['y']"),
    ("batch", "types.SimpleNamespace(x=x, y=y, t=t)", "x, y, t = batch.x, batch.y, batch.t"),
    ("x, y, t, scale", "x, y, t, 0.5 if call < 5 else 0.25", "x = x * scale"),
    ("x, y, t, scale", "x, y, t, torch.tensor(call / 10)", "x = x + scale"),
    ("x, y, t, scale=1.0", "x, y, t, **({'scale': 0.5} if call % 3 == 2 else {})", "x = x * scale"),
    ("x, y, t, more", "x, y, t, None if call % 3 else y", "if more is not None: x = x + more"),
    ("x, y, t, more", "x, y, t, x", "x = x * 0.5 + more"),
    ("x, y, t, more", "x, y, t, x[:, ::2]", "x = x + more.repeat(1, 2)"),
    ("x, y, t, more", "x, y, t, [x, y][: 1 + call % 2]", "for one in more: x = x + 0.1 * one"),
    ("x, y, t, mode", "x, y, t, 'ab'[call % 2]", "x = {'a': torch.tanh, 'b': torch.sin}[mode](x)"),
    ("x, y, t, rows", "x, y, t, slice(None)", "x = x[rows]"),
    ("x, y, t, kind", "x, y, t, torch.float64", "x = x.to(kind).to(torch.float32)"),
)

# Lines that write arguments; x, y and t are compared after each call.
WRITES = (
    "x.mul_(0.9)",
    "x[0] = 0.5",
    "y.add_(x)",
    "y.copy_(x)",
    "t.clamp_(max=6)",
    "x.t_().t_()",
    "y[:, 0], y[:, 1] = y[:, 1].clone(), y[:, 0].clone()",
    "x.data.add_(0.1)",
    "y.zero_()",
    "y.set_(x.detach() * 2)",
    "y.data = x.detach() * 2",
)

# Between the calls; ``found`` is what the call before returned.
EVENTS = (
    "if call > 2 and torch.is_tensor(found) and found.shape == x.shape: x = found.detach()",
    "if call > 2 and torch.is_tensor(found): found.detach().zero_()",
    "x = static.copy_(x)",
    "x = static.add_(0.1)",
    "static.data = x; x = static",
    "x, y = y, x",
    "x, y = torch.stack([x, y])",
    "y = x.flip(0) if call % 2 else x",
    "if call == 5: kept[-1] = None",
)


def arguments(source: Source) -> None:
    """To be called before the step is written."""
    if source.chance(0.3):
        parameters, given, line = source.pick(FORMS)
        source.parameters, source.arguments = [parameters], [given]
        source.step.append(line)
    if source.chance(0.12) and not source.smooth:
        source.step.append(source.pick(WRITES))
    if source.chance(0.2) and not source.smooth:
        source.before_call.append(source.pick(EVENTS))
