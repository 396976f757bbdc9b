"""Optimizers with options, and schedulers."""

from __future__ import annotations

from .source import Source

# Class: its options; each is left out more often than not.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "SGD": ("momentum=0.9", "weight_decay=0.01", "maximize=True", "@implementation"),
    "Adam": (
        "betas=(0.5, 0.9)", "eps=1e-4", "weight_decay=0.01", "amsgrad=True", "maximize=True",
        "@implementation",
    ),
    "AdamW": ("betas=(0.8, 0.95)", "weight_decay=0.1", "amsgrad=True", "@implementation"),
    "NAdam": ("weight_decay=0.01", "decoupled_weight_decay=True", "momentum_decay=0.01", "@each"),
    "RAdam": ("weight_decay=0.01", "decoupled_weight_decay=True", "maximize=True", "@each"),
    "Adamax": ("weight_decay=0.01", "maximize=True", "@each"),
    "Adadelta": ("rho=0.8", "weight_decay=0.01", "maximize=True", "@each"),
    "Adagrad": (
        "lr_decay=0.1", "weight_decay=0.01", "initial_accumulator_value=0.1", "@implementation",
    ),
    "RMSprop": ("alpha=0.9", "centered=True", "momentum=0.5", "weight_decay=0.01", "@each"),
    "Rprop": ("etas=(0.4, 1.3)", "maximize=True", "@each"),
    "ASGD": ("lambd=1e-3", "alpha=0.6", "t0=3", "weight_decay=0.01", "@each"),
    "Adafactor": ("weight_decay=0.01", "beta2_decay=-0.7", "d=1.5", "@each"),
}  # fmt: skip
SMOOTH = ("SGD", "RMSprop", "Adagrad", "Adadelta")  # no step of a constant size from tiny gradients
IMPLEMENTATIONS = ("foreach=True", "foreach=False", "fused=True")

GROUPS = (
    "{m}.parameters()",
    "list({m}.parameters())",
    "{m}.named_parameters()",
    "[{{'params': [p for p in {m}.parameters() if p.ndim > 1], 'weight_decay': 0.05}}, "
    "{{'params': [p for p in {m}.parameters() if p.ndim < 2], 'lr': 0.003}}]",
    "[{{'params': [p]}} for p in {m}.parameters()]",
)

SCHEDULERS = (
    "StepLR({o}, 3, gamma=0.5)",
    "ExponentialLR({o}, 0.9)",
    "CosineAnnealingLR({o}, 6)",
    "CosineAnnealingWarmRestarts({o}, 3)",
    "LinearLR({o}, 0.5, total_iters=4)",
    "PolynomialLR({o}, 5)",
    "MultiStepLR({o}, [2, 5])",
    "LambdaLR({o}, lambda number: 1 / (1 + number))",
    "MultiplicativeLR({o}, lambda number: 0.9)",
    "CyclicLR({o}, 0.001, 0.01, step_size_up=2, cycle_momentum=False)",
    "OneCycleLR({o}, 0.02, total_steps=40, cycle_momentum=False)",
    "SequentialLR({o}, [torch.optim.lr_scheduler.ConstantLR({o}, 0.1, 2), "
    "torch.optim.lr_scheduler.ExponentialLR({o}, 0.8)], [3])",
)


def optimizer(source: Source, name: str, model: str) -> str:
    """Assign an optimizer of ``model`` to ``name`` before the step; its class."""
    kind = source.pick(SMOOTH if source.smooth else tuple(OPTIMIZERS))
    options = [source.pick(("lr=0.01", "lr=0.003", "lr=0.1"))]
    if kind == "SGD" and not source.smooth and source.chance(0.3):
        options += ["momentum=0.8", source.pick(("nesterov=True", "dampening=0.1"))]
    elif not source.smooth and kind in ("SGD", "Adam", "AdamW") and source.chance(0.1):
        options = ["lr=torch.tensor(0.01)", "foreach=False"]
    for option in OPTIMIZERS[kind]:
        if option[0] == "@" and "foreach=False" in options:
            continue
        if source.chance(0.3) and option.split("=")[0] not in " ".join(options):
            options.append(option)
    # Else a gradient of nothing but rounding, of a bias before a batch norm, makes whole steps.
    if source.smooth and kind == "Adagrad" and "initial" not in " ".join(options):
        options.insert(1, "initial_accumulator_value=0.1")
    if source.smooth and kind == "RMSprop":
        options.insert(1, "eps=1e-3")
    if options[-1].startswith("@"):
        some = IMPLEMENTATIONS if options[-1] == "@implementation" else IMPLEMENTATIONS[:2]
        options[-1] = source.pick(some)
    parameters = source.pick(GROUPS[:1] * 4 + GROUPS).format(m=model)
    source.setup.append(f"{name} = torch.optim.{kind}({parameters}, {', '.join(options)})")
    source.watched[name] = name
    return kind


def scheduler(source: Source, name: str, optimizer: str) -> None:
    made = source.pick(SCHEDULERS).format(o=optimizer)
    source.setup.append(f"{name} = torch.optim.lr_scheduler.{made}")
    source.events += [
        f"if call == {{k}}: {name}.step()",
        f"if call == {{k}}: {name}.load_state_dict({name}.state_dict())",
        f"if call == {{k}}: {name}.base_lrs[0] = 0.5",
    ]
    source.watched[name] = name
