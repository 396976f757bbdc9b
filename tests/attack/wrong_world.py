"""What the snippets of the wrong uses are run in: fresh objects by short names."""

from __future__ import annotations

import copy
import io
import itertools
import linecache
import pickle
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from torchgraph import ops

_NUMBERS = itertools.count()


class OwnScaler(torch.amp.GradScaler):
    """Steps in a way of its own."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Does not step."""


@dataclass(frozen=True)
class Nameless(tg.passes.Pass):
    """A pass without a name."""

    def exact(self, program: Any) -> bool:
        """As it is."""
        return True

    def apply(self, program: Any, edit: Any) -> None:
        """Do nothing."""


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 2))


class World(dict[str, Any]):
    """The names of one snippet."""

    def __init__(self) -> None:
        model = _model()
        linear = model[0]
        assert isinstance(linear, nn.Linear)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        class Step(tg.Graph):
            def __init__(self, **options: Any) -> None:
                super().__init__(**options)
                self.model = model
                self.add_optimizer(sgd)

            def build(self, x: torch.Tensor) -> torch.Tensor:
                loss: torch.Tensor = self.model(x).square().mean()
                loss.backward()
                return loss

        class Eval(tg.Graph):
            def __init__(self, model: nn.Module) -> None:
                super().__init__()
                self.model = model

            def build(self, x: torch.Tensor, **more: Any) -> Any:
                return self.model(x)

        graph = Step()

        def setup() -> tg.testing.Setup:
            made = _model()
            optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
            return tg.testing.Setup(made, optimizer, lambda model, x: model(x).mean())

        super().__init__(
            torch=torch,
            nn=nn,
            F=functional,
            stream=io.StringIO(),
            tg=tg,
            ops=ops,
            Nameless=Nameless,
            copy=copy,
            pickle=pickle,
            SimpleNamespace=SimpleNamespace,
            OwnScaler=OwnScaler,
            GraphModule=tg.nn.graph.GraphModule,
            __file__=__file__,
            __name__="users",
            model=model,
            sgd=sgd,
            adam=torch.optim.Adam(model.parameters()),
            scheduler=torch.optim.lr_scheduler.StepLR(sgd, 2),
            scaler=torch.amp.GradScaler("cpu"),
            static=tg.amp.StaticGradScaler(2.0),
            setup=setup,
            Step=Step,
            Eval=Eval,
            graph=graph,
            config=graph.config,
            block=graph.model.to(tg.nn.graph.GraphModule),
            evaluation=Eval(model),
            x=torch.ones(8, 4),
        )

    def run(self, snippet: str, name: str = "") -> None:
        """Run it as a file of its own, whose lines errors can quote."""
        name = f"/home/user/{name or f'script_{next(_NUMBERS)}'}.py"
        linecache.cache[name] = (len(snippet), None, snippet.splitlines(keepends=True), name)
        exec(compile(snippet, name, "exec"), self)


def one_a_line(uses: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(error, snippet) of each line."""
    for error, lines in uses.items():
        yield from ((error, line) for line in textwrap.dedent(lines).split("\n") if line)


def by_empty_lines(uses: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(error, snippet) of each paragraph."""
    for error, text in uses.items():
        yield from ((error, part.strip("\n")) for part in text.split("\n\n") if part.strip())
