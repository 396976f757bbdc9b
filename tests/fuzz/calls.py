"""The calls of a step: their arguments, and what happens between them."""

from __future__ import annotations

from .source import Source

# What may come before call {k}; x, y, t are its arguments.
EVENTS = (
    "if call == {k}: model.eval()",
    "if call in ({k}, {k} + 2): model.train(not model.training)",
    "model.train(call % 3 > 0)",
    "if call == {k}: optimizer.param_groups[0]['lr'] = 0.02",
    "optimizer.param_groups[-1]['lr'] = 0.01 / (1 + call)",
    "if call == {k}: optimizer.param_groups[0]['weight_decay'] = 0.3",
    "if call >= {k}: x, y, t = x[:3], y[:3], t[:3]",
    "if call in ({k}, {k} + 1): x, y, t = x[:2], y[:2], t[:2]",
    "if call == {k}: x, y, t = x.repeat(2, 1), y.repeat(2, 1), t.repeat(2)",
    "x = x.t().contiguous().t()",
    "if call >= {k}: x = x.t().contiguous().t()",
    "x = x.repeat(1, 2)[:, ::2]",
    "if call == {k}: y = x",
    "x = y = x",
    "x = x[:1].expand(4, 8)",
    "if call == {k}: x = x * float('nan')",
    "if call == {k}: x = x * 1e20",
    "x.requires_grad_()",
    "if call == {k}: model.load_state_dict(saved)",
    "if call == {k}: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",
    "if call == {k}: torch.manual_seed(call)",
    "if call == {k}: eager({given})",
    "if call == {k}: optimizer.zero_grad()",
    "if call == {k}: optimizer.zero_grad(set_to_none=False)",
    "if call == {k}: optimizer.state.clear()",
    "if call == {k}: [setattr(m, 'p', 0.6) for m in model.modules() if isinstance(m, nn.Dropout)]",
    "if call == {k}: [setattr(m, 'eps', 0.1) for m in model.modules() if hasattr(m, 'eps')]",
    "if call == {k}: [vars(m).update(momentum=0.5) for m in model.modules() if hasattr(m, 'eps')]",
    "if call == {k}: next(model.parameters()).requires_grad_(False)",
    "if call in ({k}, {k} + 2): next(model.parameters()).requires_grad_(call == {k} + 2)",
    "if call == {k}: next(model.parameters()).data.mul_(0.5)",
    "if call == {k}: [setattr(p, 'data', p.data.clone()) for p in model.parameters()]",
    "if call == {k}: [p.data.copy_(p.data.flip(0)) for p in model.parameters()]",
    "if call == {k}: total = torch.ones(())",
    "if call == {k}: seen.clear()",
    "if call == {k}: model.register_forward_hook(lambda module, given, found: found * 0.5)",
    "if call == {k}: optimizer.add_param_group({'params': [nn.Parameter(torch.ones(2))]})",
    "if call == {k}: torch.rand(5)",
    "if call == {k}: kept.clear()",
    "held = step if graphed else optimizer\n"
    "if call == {k}: held.load_state_dict(copy.deepcopy(held.state_dict()))",
    "if call == {k} and graphed: str(step), step.state_dict()",
    "if call == {k} and graphed: step.config.enable_compress_memory()",
    "if call == {k} and graphed: step.config.set_cache_size(1)",
    "if call == {k} and graphed: step.close()",
)


def calls(source: Source) -> None:
    given = ", ".join(source.arguments)
    events = (*EVENTS, *source.events, *source.events)
    fitting = events if source.form == "step" else [e for e in events if not _unfit(source, e)]
    for event in source.some(fitting, 3):
        line = event.replace("{k}", str(source.random.randint(1, 7))).replace("{given}", given)
        source.before_call.append(line)


def _unfit(source: Source, event: str) -> bool:
    """What only a step in eager's own form does: ``eager`` is no twin, micro-batches need rows."""
    words = ("eager(", "requires_grad_()", "total", "seen.", "scheduler.step()")
    rows = ("[:3]", "[:2]") if source.form == "micro" else ()
    return any(word in event for word in words + rows)
