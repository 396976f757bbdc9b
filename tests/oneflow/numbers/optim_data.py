"""Which optimizers and schedulers the rows of `optim-0.9.json` are of, with their settings."""

from typing import Any

Case = tuple[str, dict[str, Any]]

OPTIMIZERS: dict[str, Case] = {
    "SGD lr": ("SGD", {}),
    "SGD weight_decay": ("SGD", {"lr": 0.1, "weight_decay": 0.2}),
    "SGD momentum": ("SGD", {"lr": 0.1, "momentum": 0.8}),
    "SGD dampening": (
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.2},
    ),
    "SGD dampening alone": ("SGD", {"lr": 0.1, "dampening": 0.3}),
    "SGD nesterov": ("SGD", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.2, "nesterov": True}),
    "SGD nesterov dampening": (
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "nesterov": True},
    ),
    "SGD nesterov alone": ("SGD", {"lr": 0.1, "nesterov": True}),
    "SGD maximize": ("SGD", {"lr": 0.1, "momentum": 0.8, "maximize": True}),
    "SGD maximize all": (
        "SGD",
        {
            **{"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.2},
            **{"nesterov": True, "maximize": True},
        },
    ),
    "RMSprop lr": ("RMSprop", {}),
    "RMSprop alpha": ("RMSprop", {"lr": 0.1, "alpha": 0.7}),
    "RMSprop eps": ("RMSprop", {"lr": 0.1, "eps": 0.1}),
    "RMSprop weight_decay": ("RMSprop", {"lr": 0.1, "weight_decay": 0.2, "eps": 1e-3}),
    "RMSprop centered": (
        "RMSprop",
        {"lr": 0.1, "alpha": 0.8, "centered": True, "eps": 1e-2, "weight_decay": 0.1},
    ),
    "Adagrad lr": ("Adagrad", {}),
    "Adagrad lr_decay": ("Adagrad", {"lr": 0.1, "lr_decay": 0.2}),
    "Adagrad weight_decay": ("Adagrad", {"lr": 0.1, "weight_decay": 0.2}),
    "Adagrad initial_accumulator_value": (
        "Adagrad",
        {"lr": 0.1, "initial_accumulator_value": 0.5, "lr_decay": 0.1},
    ),
    "Adagrad eps": ("Adagrad", {"lr": 0.1, "eps": 0.3}),
    "Adadelta lr": ("Adadelta", {}),
    "Adadelta rho": ("Adadelta", {"lr": 0.5, "rho": 0.6}),
    "Adadelta eps": ("Adadelta", {"eps": 1e-2}),
    "Adadelta weight_decay": ("Adadelta", {"eps": 1e-2, "weight_decay": 0.2}),
    "LAMB lr": ("LAMB", {}),
    "LAMB betas": ("LAMB", {"lr": 0.1, "betas": (0.7, 0.9)}),
    "LAMB eps": ("LAMB", {"lr": 0.1, "eps": 0.1}),
    "LAMB weight_decay": ("LAMB", {"lr": 0.1, "weight_decay": 0.2, "betas": (0.7, 0.9)}),
    "LAMB adam_w_mode": ("LAMB", {"lr": 0.1, "weight_decay": 0.2, "adam_w_mode": False}),
    "LAMB do_bias_correction": (
        "LAMB",
        {"lr": 0.1, "weight_decay": 0.2, "do_bias_correction": False},
    ),
}
for _name in ("Adam", "AdamW"):
    OPTIMIZERS |= {
        f"{_name} lr": (_name, {}),
        f"{_name} betas": (_name, {"lr": 0.1, "betas": (0.7, 0.9)}),
        f"{_name} eps": (_name, {"lr": 0.1, "eps": 0.1}),
        f"{_name} weight_decay": (_name, {"lr": 0.1, "weight_decay": 0.2}),
        f"{_name} amsgrad": (
            _name,
            {"lr": 0.1, "betas": (0.7, 0.6), "weight_decay": 0.2, "amsgrad": True},
        ),
        f"{_name} do_bias_correction": (
            _name,
            {"lr": 0.1, "weight_decay": 0.2, "do_bias_correction": False},
        ),
    }

LATE = (
    *("SGD dampening", "Adam weight_decay", "AdamW amsgrad", "Adam do_bias_correction"),
    *("RMSprop centered", "Adagrad lr_decay", "Adadelta eps", "LAMB weight_decay"),
)
"""Where a parameter has no gradient in some steps."""

GRAPHS = (
    *("SGD dampening", "SGD nesterov dampening", "SGD maximize all", "SGD weight_decay"),
    *("Adam do_bias_correction", "AdamW do_bias_correction", "AdamW amsgrad", "Adam lr"),
    *("RMSprop centered", "RMSprop weight_decay", "Adagrad lr_decay", "Adadelta weight_decay"),
    *("Adagrad initial_accumulator_value", "LAMB weight_decay", "LAMB adam_w_mode"),
    "LAMB do_bias_correction",
)

CLIPS = {"2": (0.5, 2.0), "1": (0.5, 1.0), "inf": (0.3, float("inf")), "wide": (100.0, 2.0)}
"""``clip_grad_max_norm`` and ``clip_grad_norm_type``."""

SCHEDULERS: dict[str, Case] = {
    "ConstantLR": ("ConstantLR", {}),
    "ConstantLR all": ("ConstantLR", {"factor": 0.3, "total_iters": 4}),
    "LinearLR": ("LinearLR", {}),
    "LinearLR all": ("LinearLR", {"start_factor": 0.2, "end_factor": 0.7, "total_iters": 6}),
    "StepLR": ("StepLR", {"step_size": 3}),
    "StepLR all": ("StepLR", {"step_size": 4, "gamma": 0.5}),
    "MultiStepLR": ("MultiStepLR", {"milestones": [2, 5]}),
    "MultiStepLR all": ("MultiStepLR", {"milestones": [1, 4, 9], "gamma": 0.7}),
    "ExponentialLR": ("ExponentialLR", {"gamma": 0.8}),
    "PolynomialLR": ("PolynomialLR", {"decay_batch": 7}),
    "PolynomialLR all": (
        "PolynomialLR",
        {"decay_batch": 7, "end_learning_rate": 0.05, "power": 2.0},
    ),
    "PolynomialLR cycle": (
        "PolynomialLR",
        {"decay_batch": 4, "end_learning_rate": 0.05, "power": 1.5, "cycle": True},
    ),
    "CosineDecayLR": ("CosineDecayLR", {"decay_steps": 9}),
    "CosineDecayLR all": ("CosineDecayLR", {"decay_steps": 9, "alpha": 0.2}),
    "CosineAnnealingLR": ("CosineAnnealingLR", {"T_max": 6}),
    "CosineAnnealingLR all": ("CosineAnnealingLR", {"T_max": 6, "eta_min": 0.1}),
    "CosineAnnealingWarmRestarts": ("CosineAnnealingWarmRestarts", {"T_0": 4}),
    "CosineAnnealingWarmRestarts T_mult": ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
    "CosineAnnealingWarmRestarts all": (
        "CosineAnnealingWarmRestarts",
        {"T_0": 3, "T_mult": 2, "eta_min": 0.05, "decay_rate": 0.6, "restart_limit": 2},
    ),
    "CosineAnnealingWarmRestarts decay_rate": (
        "CosineAnnealingWarmRestarts",
        {"T_0": 4, "decay_rate": 0.5, "restart_limit": 3, "eta_min": 0.01},
    ),
    "LambdaLR": ("LambdaLR", {"lr_lambda": lambda step: 0.8**step}),
}

INNER = (
    *("ConstantLR all", "LinearLR all", "StepLR all", "MultiStepLR all", "ExponentialLR"),
    *("PolynomialLR all", "PolynomialLR cycle", "CosineDecayLR all", "CosineAnnealingLR all"),
    "CosineAnnealingWarmRestarts all",
)
"""What `WarmUpLR` is put around."""

WARM: dict[str, dict[str, Any]] = {
    "default": {},
    "prefix": {"warmup_prefix": True},
    "constant": {"warmup_method": "constant", "warmup_factor": 0.25, "warmup_iters": 3},
    "constant prefix": {"warmup_method": "constant", "warmup_iters": 3, "warmup_prefix": True},
    "linear": {"warmup_factor": 0.1, "warmup_iters": 4},
    "none": {"warmup_iters": 0},
}

GRAPH_SCHEDULERS = (
    *("PolynomialLR cycle", "CosineDecayLR all", "CosineAnnealingWarmRestarts all"),
    *("LinearLR all", "MultiStepLR all"),
)

METRICS = (1.0, 0.9, 0.95, 0.96, 0.97, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.499, 0.7, 0.7, 0.7, 0.7)
PLATEAUS: dict[str, dict[str, Any]] = {
    "min": {"patience": 1, "factor": 0.5},
    "max": {"mode": "max", "patience": 1, "factor": 0.5},
    "abs": {"threshold_mode": "abs", "threshold": 0.05, "patience": 0},
    "rel": {"threshold": 0.1, "patience": 2},
    "cooldown": {"patience": 0, "cooldown": 2, "min_lr": [0.01, 0.2]},
    "eps": {"patience": 0, "factor": 0.9, "eps": 0.07},
}
