"""Graph classes that are written wrong, and steps that cannot be: several lines each."""

CLASSES = {
    "BuildNotOverridden": """
class Forgotten(tg.Graph):
    pass
Forgotten()(x)

class Forward(tg.Graph):
    def forward(self, x):
        return x
Forward()(x)

class Misspelt(tg.Graph):
    def biuld(self, x):
        return x
Misspelt()(x)

class Number(tg.Graph):
    build = 5
Number()(x)

class Nothing(tg.Graph):
    build = None
Nothing()

class Layer(tg.Graph):
    build = nn.Linear
Layer()(x)

tg.Graph()(x)
""",
    "ModuleNameTaken": """
class Calls(tg.Graph):
    def __call__(self, x):
        return self.build(x)

class Private(tg.Graph):
    def build(self, x):
        return self._dry_run(x)
    def _dry_run(self, x):
        return x

class Mixin:
    def _tree(self, x):
        return x
class Mixed(Mixin, tg.Graph):
    def build(self, x):
        return self._tree(x)

class Early(tg.Graph):
    def __init__(self):
        self._modules = {}
        super().__init__()
Early()
""",
    "GraphNotInitialized": """
class NoSuper(tg.Graph):
    def __init__(self):
        pass
    def build(self, x):
        return x
NoSuper()(x)

class Late(tg.Graph):
    def __init__(self):
        self.model = model
        super().__init__()
Late()

class LateOptimizer(tg.Graph):
    def __init__(self):
        self.add_optimizer(sgd)
        super().__init__()
LateOptimizer()

class LateOption(tg.Graph):
    def __init__(self):
        self.config.enable_amp(True)
        super().__init__()
LateOption()
""",
    "DataDependent": """
@tg.Graph.trace
def to_numpy(x):
    return x.numpy()
to_numpy(x)
""",
    "UnsupportedOutput": """
@tg.Graph.trace
def file(x):
    return stream
file(x)

@tg.Graph.trace
def closure(x):
    return lambda: x
closure(x)

@tg.Graph.trace
def generator(x):
    return (x * n for n in range(3))
generator(x)

@tg.Graph.trace
def yields(x):
    yield x
yields(x)

@tg.Graph.trace
async def later(x):
    return x
later(x)

@tg.step
async def later(x):
    return x
later(x)

@tg.step
def yields(x):
    yield x
yields(x)
""",
    "NonScalarBackward": """
class Rows(Step):
    def build(self, x):
        self.model(x).backward()
Rows()(x)

class NoReduction(Step):
    def build(self, x):
        loss = F.mse_loss(self.model(x), x[:, :2], reduction="none")
        loss.backward()
        return loss
NoReduction()(x)

tg.train_step(model, lambda out, y: out - y, sgd)(x, x[:, :2])
""",
    "OptimizerWithoutBackward": """
class Forgets(Step):
    def build(self, x):
        return self.model(x).mean()
Forgets()(x)
""",
    "BackwardWithoutOptimizer": """
class NoOptimizer(Eval):
    def build(self, x):
        loss = self.model(x).mean()
        loss.backward()
        return loss
NoOptimizer(model)(x)
""",
    "ParameterOutsideGraph": """
class Foreign(tg.Graph):
    def __init__(self):
        super().__init__()
        self.add_optimizer(sgd)
    def build(self, x):
        loss = model(x).mean()
        loss.backward()
Foreign()(x)

graph.add_optimizer(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
graph(x)

graph.model = nn.Linear(4, 2)
graph(x)

class Hidden(tg.Graph):
    def __init__(self):
        super().__init__()
        self.layers = [model]
        self.add_optimizer(sgd)
    def build(self, x):
        loss = self.layers[0](x).mean()
        loss.backward()
Hidden()(x)
""",
    "ParameterInTwoOptimizers": """
graph.add_optimizer(torch.optim.Adam(model.parameters()))
graph(x)
""",
    "OptimizerStepInBuild": """
class StepsToo(Step):
    def build(self, x):
        loss = self.model(x).mean()
        loss.backward()
        sgd.step()
        return loss
step = StepsToo()
step.config.set_gradient_accumulation_steps(2)
step(x)
""",
    "ScalerInBuild": """
class Scales(Step):
    def build(self, x):
        loss = self.model(x).mean()
        scaler.scale(loss).backward()
        return loss
step = Scales()
step.set_grad_scaler(scaler)
step(x)
""",
    "NotAnOptimizer": """
graph.add_optimizer(None)

graph.add_optimizer(torch.optim.SGD)

graph.add_optimizer(model.parameters())

graph.add_optimizer("adam")

graph.add_optimizer(model)

graph.add_optimizer(sgd)

graph.add_optimizer(scheduler)

graph.add_optimizer(adam, lr_sch=scheduler)

graph.add_optimizer(adam, lr_sch=0.1)

graph.add_optimizer(adam, lr_sch=torch.optim.lr_scheduler.StepLR)

graph.add_optimizer(adam, lr_sch=lambda epoch: 0.5)

graph.add_optimizer(adam, lr_sch=[torch.optim.lr_scheduler.StepLR(adam, 2)])

tg.step(lambda x: x).add_optimizer(sgd)

tg.train_step(model, F.mse_loss, None)

tg.train_step(model, F.mse_loss, model.parameters())

tg.train_step(model, F.mse_loss, sgd, "cosine")

tg.train_step(model, F.mse_loss, adam, scheduler)
""",
    "InvalidOption": """
graph.add_optimizer()

graph.add_optimizer(adam, scheduler)

graph.add_optimizer(adam, lr_scheduler=None)

graph.add_optimizer(adam, is_sparse="yes")

graph.add_optimizer(adam, is_sparse=None)

graph.add_optimizer(optimizer=adam)
""",
    "UnsupportedOptimizer": """
graph.add_optimizer(adam, is_sparse=True)

graph.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), is_sparse=True)
""",
    "SchedulerSteppedTwice": """
late = tg.train_step(model, F.mse_loss, sgd, scheduler)
late(x, x[:, :2])
scheduler.step()
late(x, x[:, :2])
""",
    "SchedulerNeedsLoss": """
class Silent(tg.Graph):
    def __init__(self):
        super().__init__()
        self.model = model
        self.add_optimizer(sgd, lr_sch=torch.optim.lr_scheduler.ReduceLROnPlateau(sgd))
    def build(self, x):
        self.model(x).mean().backward()
Silent()(x)
""",
    "UnsupportedInput": """
config.set_gradient_accumulation_steps(3)
graph(x)

config.set_gradient_accumulation_steps(2)
graph(x.sum())

config.set_gradient_accumulation_steps(2, whole=["y"])
graph(x)
""",
}
"""Error -> wrong uses, apart by an empty line."""
