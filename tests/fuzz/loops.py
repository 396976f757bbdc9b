"""More bodies of a step: loops in the manner of what people publish."""

from __future__ import annotations

from .losses import loss
from .optimizers import optimizer
from .source import Source


def hooked(source: Source) -> None:
    """Each parameter is updated as soon as its gradient is there."""
    update = source.pick(
        (
            "p.sub_(p.grad, alpha=0.05)",
            "p.data.add_(p.grad, alpha=-0.01)",
            "p.grad.mul_(0.5)",
            "p.mul_(0.99).sub_(p.grad.sign(), alpha=0.01)",
        )
    )
    source.setup += [
        "def update(p):",
        f"    with torch.no_grad(): {update}",
        f"    {source.pick(('p.grad = None', 'pass'))}",
        "for p in model.parameters():",
        "    if p.requires_grad: p.register_post_accumulate_grad_hook(update)",
    ]
    source.step += ["z = model(x)", f"loss = {loss(source, 'z')}", "loss.backward()"]


def epochs(source: Source) -> None:
    """Several updates in one call."""
    source.step += [
        f"for turn in range({source.pick((2, 3))}):",
        "    optimizer.zero_grad()",
        "    z = model(x)",
        f"    loss = {loss(source, 'z')}",
        "    loss.backward()",
        "    optimizer.step()",
    ]


def queue(source: Source) -> None:
    """What earlier calls found is part of the loss."""
    size = source.pick((2, 3))
    source.setup.append(f"queue = {source.pick(('[]', 'collections.deque()'))}")
    source.watched["queue"] = "list(queue)"
    pop = source.pick(("queue.pop(0)", "del queue[0]"))
    if "deque" in source.setup[-1]:
        pop = "queue.popleft()"
    source.step += [
        "optimizer.zero_grad()",
        "z = model(x)",
        f"loss = {loss(source, 'z')}",
        "for old in queue: loss = loss + 0.1 * (z - old[: len(z)].mean(0)).square().mean()",
        "queue.append(z.detach())",
        f"if len(queue) > {size}: {pop}",
        "loss.backward()",
        "optimizer.step()",
    ]


def memory(source: Source) -> None:
    """An LSTM's state, kept as an attribute, an entry of a dict, or buffers."""
    read, write = source.pick(
        (
            ("model.memory", "model.memory = tuple(s.detach() for s in state)"),
            ("held['memory']", "held['memory'] = [s.detach() for s in state]"),
            ("held['memory']", "[a.copy_(b.detach()) for a, b in zip(held['memory'], state)]"),
            ("held['memory']", "held['memory'][0].data = state[0].data; held['memory'][1].mul_(0)"),
        )
    )
    source.setup += [
        "lstm = nn.LSTM(8, 8)",
        "held = {'memory': [torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)]}",
        "model.memory = (torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))",
    ]
    source.watched |= {"held": "held", "memory": "model.memory", "lstm": "lstm"}
    source.step += [
        "optimizer.zero_grad()",
        f"z, state = lstm(model(x)[:, None], tuple({read}))",
        f"with torch.no_grad(): {write}",
        "z = z[:, 0]",
        f"loss = {loss(source, 'z')}",
        "loss.backward()",
        "optimizer.step()",
    ]


def meta(source: Source) -> None:
    """A gradient through a step of inner updates."""
    graph = source.pick(("create_graph=True", "create_graph=False"))
    source.step += [
        "optimizer.zero_grad()",
        "weights = {n: p for n, p in model.named_parameters() if p.requires_grad}",
        "z = torch.func.functional_call(model, weights, (x,))",
        f"loss = {loss(source, 'z')}",
        f"grads = torch.autograd.grad(loss, list(weights.values()), {graph}, allow_unused=True)",
        "fast = {n: p if g is None else p - 0.1 * g for (n, p), g in zip(weights.items(), grads)}",
        "z = torch.func.functional_call(model, fast, (x,))",
        f"loss = {loss(source, 'z')}",
        "loss.backward()",
        "optimizer.step()",
    ]


def functional(source: Source) -> None:
    """torch.func's gradients, per sample or of the whole batch."""
    source.setup.append("head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))")
    source.watched["head"] = "head"
    per_sample = source.chance(0.5)
    source.step += [
        "weights = dict(head.named_parameters())",
        "with torch.no_grad(): features = model(x)",
        "def error(weights, one, target):",
        "    return (torch.func.functional_call(head, weights, (one,)) - target).square().mean()",
        "grads = torch.func.vmap(torch.func.grad(error), (None, 0, 0))(weights, features, y)"
        if per_sample
        else "grads = torch.func.grad(error)(weights, features, y)",
        "with torch.no_grad():",
        f"    for n, p in head.named_parameters(): p -= 0.1 * grads[n]{'.mean(0)' * per_sample}",
        "z = head(features)",
        "loss = (z - y).square().mean()",
    ]


def policy(source: Source) -> None:
    """Actions are drawn, and what they earn weighs their log-probabilities."""
    source.step += [
        "z = model(x)",
        "chosen = torch.multinomial(torch.softmax(z.detach().nan_to_num(0, 0, 0), 1), 1)",
        "reward = y.gather(1, chosen)[:, 0]",
        "gain = (reward - reward.mean()) / (reward.std(unbiased=False) + 1e-5)",
        "loss = -(z.log_softmax(1).gather(1, chosen)[:, 0] * gain).mean()",
        "optimizer.zero_grad()",
        "loss.backward()",
        "optimizer.step()",
    ]


def backwards(source: Source) -> None:
    """Other forms of backward."""
    back = source.pick(
        (
            "z.backward(torch.ones_like(z) * 0.1)",
            "torch.autograd.backward([loss, z.sum()], [None, torch.tensor(0.1)])",
            "loss.backward(inputs=[p for p in model.parameters() if p.requires_grad][-2:])",
            "loss.backward(create_graph=True)",
            "(loss * loss.detach()).backward()",
            "loss.backward(torch.tensor(3.0))",
            "z.register_hook(lambda g: g * 2); z.retain_grad(); loss.backward(); z.grad.sum()",
        )
    )
    source.step += [
        "optimizer.zero_grad()",
        "z = model(x)",
        f"loss = {loss(source, 'z')}",
        back,
        "optimizer.step()",
    ]


def constrained(source: Source) -> None:
    """Weights are written by hand before or after the update."""
    write = source.pick(("p.clamp_(-0.2, 0.2)", "p.div_(p.norm() + 1)", "p.data.clamp_(-0.1, 0.1)",
                         "p.copy_(p.round(decimals=3))", "p.add_(torch.randn_like(p), alpha=0.01)",
                         "p[:1] = 0", "p.data = p.data * 0.9", "p.set_(p * 0.9)"))  # fmt: skip
    lines = ["with torch.no_grad():", f"    for p in model.parameters(): {write}"]
    body = ["optimizer.zero_grad()", "z = model(x)", f"loss = {loss(source, 'z')}",
            "loss.backward()", "optimizer.step()"]  # fmt: skip
    source.step += lines + body if source.chance(0.4) else body + lines


def turns(source: Source) -> None:
    """A second model that is trained in some calls alone, by an argument or by what was found."""
    source.setup.append("other = nn.Linear(8, 8)")
    source.watched["other"] = "other"
    optimizer(source, "moves", "other")
    source.parameters.insert(0, "now")
    source.arguments.insert(0, source.pick(("call % 2 == 0", "call % 3 == 2", "call > 4")))
    source.step += [
        "optimizer.zero_grad()",
        "z = other(model(x))",
        f"loss = {loss(source, 'z')}",
        "loss.backward()",
        "optimizer.step()",
        source.pick(("if now:", "if now and loss < 2:", "if not now:")),
        "    moves.step()",
        f"    {source.pick(('moves.zero_grad()', 'moves.zero_grad(set_to_none=False)', 'pass'))}",
    ]


def updates(source: Source) -> None:
    """Accumulation over calls."""
    source.parameters.insert(0, "update")
    source.arguments.insert(0, source.pick(("call % 2 == 1", "call % 3 == 2")))
    source.step += [
        "z = model(x)",
        f"loss = {loss(source, 'z')} / 2",
        "loss.backward()",
        "if update:",
        "    optimizer.step()",
        f"    {source.pick(('optimizer.zero_grad()', 'optimizer.zero_grad(set_to_none=False)'))}",
    ]


LOOPS = (hooked, epochs, queue, memory, meta, functional, policy, backwards, constrained, turns,
         updates)  # fmt: skip
