"""A second function beside the step, which reads the same model."""

from __future__ import annotations

from .source import Source

BODIES = (
    ("with torch.no_grad(): return model(x)",),
    ("with torch.no_grad(): return model(x).argmax(1), F.mse_loss(model(x), x)",),
    ("model.eval()", "with torch.no_grad(): z = model(x)", "model.train()", "return z"),
    ("optimizer.zero_grad()", "model(x).sum().backward()", "optimizer.step()", "return None"),
    ("with torch.no_grad():", "    for p in model.parameters(): p.mul_(0.99)"),
    ("return sum(p.detach().sum() for p in model.parameters())",),
    ("return {n: b.clone() for n, b in model.named_buffers()}",),
    ("model.load_state_dict({n: v * 0.9 for n, v in model.state_dict().items()})",),
)


def evaluating(source: Source) -> None:
    source.setup += [
        "score = None",
        "def evaluate(x):",
        *(f"    {line}" for line in source.pick(BODIES)),
    ]
    if source.chance(0.8):
        source.graphed += ["evaluate = tg.step(evaluate)", "evaluate.config.set_backend('aten')"]
    source.before_call += source.pick(
        (
            ["if call % 2: score = evaluate(x)"],
            ["if call > 2: score = evaluate(x)"],
            ["model.eval()", "score = evaluate(x)", "model.train()"],
        )
    )
    source.watched["score"] = "score"
