"""A Graph that is compiled before it runs: OneFlow's ``_compile`` and its two halves."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ....calls.fallback import no_advice_taken
from ....errors import GraphError, GraphWarning, NoProgram, warn
from .calls import Calls


class AlreadyCompiled(GraphError, AssertionError):
    """``graph.build_graph(x)`` of a Graph that was compiled, or called."""

    fix = "call it before the first call, or leave it out: the first calls compile."


class Compiled(Calls):
    """Base of OneFlow's Graph. torchgraph's first calls record; here one does that is undone."""

    def _own_until_now(self) -> None:
        self._is_compiled = False
        super()._own_until_now()

    @property
    def is_compiled(self) -> bool:
        """True after the first call, or after ``_compile``."""
        return self._is_compiled or super().is_compiled

    def _compile(self, *args: Any, **kwargs: Any) -> Any:
        """Make the program of a call and run nothing: parameters, optimizers, draws stay.

        The step runs once and is taken back. Calls record by themselves, this saves none of it; it
        shows errors early, and `print(graph)` has operators. A second time it warns.

        Returns:
            What `build` returned in that step; OneFlow's hold nothing yet. None the second time.
        """
        if self.is_compiled:
            warn(
                f"{self._shallow_repr()} has been compiled, no need to compile again.", GraphWarning
            )
            return None
        _, outputs = self.build_graph(*args, **kwargs)
        self.finish_compile_and_init_runtime()
        return outputs

    def build_graph(self, *args: Any, **kwargs: Any) -> tuple[None, Any]:
        """The first half of ``_compile``: the program.

        Returns:
            (None, what `build` returned).

        Raises:
            AlreadyCompiled: and whatever a first call may raise.
        """
        if self.is_compiled:
            raise AlreadyCompiled(f"nn.Graph {self.name} has already been compiled.")
        self._runner.begin(args, kwargs)
        live, programs = self._runner.live, self._runner.programs
        options = self.config.options
        with live.lock.lock, live.telling(), live.signals, no_advice_taken(options):
            programs.cache.bring_home()
            call = live.inputs.bind(args, kwargs)
            with programs.with_states(call):
                outcome = programs.dry_outcome(call)
                if options.fallback == "eager":
                    with suppress(NoProgram):
                        programs.compiler.compile(outcome, call)
                else:
                    programs.compiler.compile(outcome, call)
        return None, outcome.returned

    def finish_compile_and_init_runtime(self) -> None:
        """The second half of ``_compile``: nothing is left to be done."""
        self._is_compiled = True

    finish_complie_and_init_runtime = finish_compile_and_init_runtime
    """The same; OneFlow 0.9 writes it like this."""

    def _shallow_repr(self) -> str:
        """``(GRAPH:LinearGraph_0:LinearGraph)``."""
        return f"(GRAPH:{self.name}:{type(self).__name__})"

    def _ops_repr(self) -> list[str]:
        """The operators that lie in no module, each as its line of `print(graph)`."""
        lines = self.full_text().splitlines()
        return [line.strip() for line in lines if line.startswith("  (OPERATOR:")]
