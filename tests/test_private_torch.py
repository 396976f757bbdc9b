"""Private names of torch are used in ``torchgraph/_torch`` alone: attributes, and their names."""

import ast
import contextlib
import ctypes
import dis
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

PACKAGE = Path(__file__).parents[1] / "torchgraph"
FILES = sorted(set(PACKAGE.rglob("*.py")) - set((PACKAGE / "csrc").rglob("*.py")))
OUTSIDE = [path for path in FILES if PACKAGE / "_torch" not in path.parents]

OF_FRAMEWORKS = frozenset(
    {"_backward_fn", "_clip_grad_norm", "_current_fx_name", "_get_grad_norm", "_make_closure"}
) | {
    *("_call_callback_hooks", "_call_lightning_module_hook", "_call_strategy_hook"),
    *("_step_fn", "_zero_grad_fn"),
}
"""Of Lightning and transformers, which have no public name for it; in integrations/ alone."""
OF_PYTHON = frozenset({"_fields", "_make", "_replace", "_reconstruct"}) | {
    name
    for module, name in (
        *((ctypes, "_SimpleCData"), (dis, "_parse_exception_table")),
        *((os, "_exit"), (sys, "_getframe"), (sys, "_current_frames")),
    )
}
"""Of named tuples, of pickles of NumPy and of Python's modules."""

WRITTEN_IN_PYTHON = (
    *("torch._ops", "torch._tensor", "torch.amp.grad_scaler", "torch.autograd", "torch.cuda"),
    *("torch.fx", "torch.jit._script", "torch.library", "torch.nn.modules", "torch.nn.parameter"),
    *("torch.optim", "torch.storage", "torch.utils.data", "torch.utils.hooks"),
)
WRITTEN_IN_C = (
    *(torch.Tensor, torch.UntypedStorage, torch.Generator, torch.Size, torch.dtype, torch.device),
    *(torch._C.FunctionSchema, torch._C.Argument, torch._C.ScriptModule, torch.fx.Node),
    *(torch.cuda.Stream, torch.cuda.Event, type(torch.zeros(1, requires_grad=True).exp().grad_fn)),
)


def is_private(name: str) -> bool:
    """True for ``_name``; not for what torchgraph itself hangs on the user's objects."""
    return re.fullmatch(r"_(?!_|torchgraph_)\w+", name) is not None


class Definitions(ast.NodeVisitor):
    """By class, its bases and the private names that it gives to itself and to its instances."""

    def __init__(self) -> None:
        self.bases: dict[str, set[str]] = {}
        self.names: dict[str, set[str]] = {}
        self._inside: list[str] = []

    @classmethod
    def of(cls, sources: Iterable[str]) -> "Definitions":
        found = cls()
        for source in sources:
            found.visit(ast.parse(source))
        return found

    @property
    def all(self) -> set[str]:
        return set().union(*self.names.values())

    def reached(self, name: str) -> set[str]:
        """What a class has, bases included."""
        pending, seen = [name], set[str]()
        while pending:
            one = pending.pop()
            pending += self.bases.get(one, set()) - seen
            seen.add(one)
        return set().union(*(self.names.get(one, set()) for one in seen))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside.append(node.name)
        named = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
        bases = {ast.unparse(base).rpartition(".")[2] for base in named}
        self.bases.setdefault(node.name, set()).update(bases)
        for part in node.body:
            if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._add(part.name)
            for one in filter(lambda one: isinstance(one, ast.Name), targets(part)):
                self._add(one.id)
            for text in ast.walk(part) if is_slots(part) else ():
                self._add(getattr(text, "value", None))
        self.generic_visit(node)
        self._inside.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._inside and isinstance(node.ctx, ast.Store) and is_self(node.value):
            self._add(node.attr)
        self.generic_visit(node)

    def _add(self, name: object) -> None:
        if isinstance(name, str) and is_private(name):
            self.names.setdefault(self._inside[-1], set()).add(name)


def targets(part: ast.stmt) -> list[ast.expr]:
    if isinstance(part, ast.Assign):
        return part.targets
    return [part.target] if isinstance(part, ast.AnnAssign) else []


def is_slots(part: ast.stmt) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "__slots__" for one in targets(part))


def is_self(node: ast.expr) -> bool:
    """True for ``self``, ``cls`` and ``super()``."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def python_modules() -> Iterator[str]:
    for name in WRITTEN_IN_PYTHON:
        module = importlib.import_module(name)
        yield inspect.getsource(module)
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            with contextlib.suppress(OSError):
                yield (Path(module.__path__[0]) / f"{found.name}.py").read_text(encoding="utf-8")


OPS = {full.partition("::")[2].partition(".")[0] for full in torch._C._dispatch_get_all_op_names()}
OF_TORCH = Definitions.of(python_modules()).all
OF_TORCH |= {name for cls in WRITTEN_IN_C for name in dir(cls) if is_private(name)}
ATTRIBUTES = OF_TORCH - OPS - OF_PYTHON
"""Of torch's objects alone: lists of operators have names such as ``_softmax``."""


class Use(NamedTuple):
    line: int
    name: str


class Finder(ast.NodeVisitor):
    """Uses of private attributes that are not torchgraph's own, nor Python's, nor operators.

    A name that torch's objects have, too, is torchgraph's only on ``self``, where the class or one
    of its bases defines it.
    """

    def __init__(self, own: Definitions) -> None:
        self._own = own
        self._plainly_own = own.all - OF_TORCH
        self._inside: list[str] = []
        self._judged: set[ast.expr] = set()
        self.found: set[Use] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside.append(node.name)
        self.generic_visit(node)
        self._inside.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if not is_slots(node):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._look(node, node.attr, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """``getattr(owner, "_name")``, ``attrgetter("_name")``, ``vars(owner).get("_name")``."""
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("getattr", "hasattr", "setattr", "delattr") and len(node.args) > 1:
            self._named(node.args[1], node.args[0])
        elif called in ("attrgetter", "methodcaller") or held_by(node.func) is not None:
            for argument in node.args:
                self._named(argument, held_by(node.func))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if held_by(node) is not None:
            self._named(node.slice, held_by(node))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """``"_name" in vars(owner)``."""
        for found in map(owner_of, node.comparators):
            if found is not None:
                self._named(node.left, found)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for part in node.values:  # their texts are no names
            if isinstance(part, ast.FormattedValue):
                self.visit(part)

    def visit_Constant(self, node: ast.Constant) -> None:
        """The names of torch's own attributes, whatever is done with them."""
        if node not in self._judged and node.value in ATTRIBUTES:
            self._look(node, str(node.value), None)

    def _named(self, node: ast.expr, owner: ast.expr | None) -> None:
        self._judged.add(node)
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            self._look(node, f"{node.values[0].value}x", owner)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._look(node, node.value, owner)

    def _look(self, node: ast.expr, name: str, owner: ast.expr | None) -> None:
        known = name in OF_PYTHON or name in self._plainly_own
        if owner is not None:
            known = known or is_operators(owner) or self._has(owner, name)
        if is_private(name) and not known:
            self.found.add(Use(node.lineno, name))

    def _has(self, owner: ast.expr, name: str) -> bool:
        """True where ``owner`` is an object of a class of torchgraph that defines this name."""
        return is_self(owner) and any(name in self._own.reached(cls) for cls in self._inside)


def held_by(node: ast.expr) -> ast.expr | None:
    """The owner in ``vars(owner)[...]`` and in ``owner.__dict__.get``."""
    return owner_of(getattr(node, "value", node))


def owner_of(attributes: ast.expr) -> ast.expr | None:
    """The owner in ``vars(owner)`` and in ``owner.__dict__``."""
    if isinstance(attributes, ast.Call) and attributes.args:
        called = attributes.func
        return attributes.args[0] if isinstance(called, ast.Name) and called.id == "vars" else None
    is_dict = isinstance(attributes, ast.Attribute) and attributes.attr == "__dict__"
    return attributes.value if is_dict else None


def is_operators(node: ast.expr) -> bool:
    """True for ``aten`` and ``torch.ops.aten``, which hold operators by their names."""
    return ast.unparse(node).split(".")[:2] in (["aten"], ["torch", "ops"])


OWN = Definitions.of(path.read_text("utf-8") for path in FILES)


def uses(source: str, own: Definitions = OWN) -> list[Use]:
    finder = Finder(own)
    finder.visit(ast.parse(source))
    return sorted(finder.found)


def test_private_attributes_of_torch_live_in_one_room():
    found = {path.relative_to(PACKAGE): uses(path.read_text("utf-8")) for path in OUTSIDE}
    frameworks = {path: used for path, used in found.items() if "integrations" in path.parts}
    assert {use.name for used in frameworks.values() for use in used} <= OF_FRAMEWORKS
    others = found.keys() - frameworks.keys()
    assert {str(path): found[path] for path in others if found[path]} == {}


@pytest.mark.parametrize(
    "code",
    [
        "op._schema.name",
        "node.target._schema.arguments",
        "op._overloadname",
        "module._modules.get('0')",
        "self.model._parameters",
        "x._version",
        "x.untyped_storage()._cdata",
        "x._values()",
        "node._rename('y')",
        "graph._root",
        "script._c.getattr",
        "fn._sequence_nr()",
        "scaler._scale",
        "scheduler._schedulers[0]",
        "torch._foreach_add_",
        "something._that_nobody_defines",
        "getattr(target, '_schema', None)",
        "getattr(x, '_nobody', None)",
        "getattr(torch, f'_sym_{name}')",
        "hasattr(optimizer, '_step_supports_amp_scaling')",
        "operator.attrgetter('_version')",
        "vars(module)['_modules']",
        "vars(module).get('_anything', {})",
        "'_anything' in vars(module)",
        "module.__dict__['_buffers']",
        "STATE = ('training', '_parameters')",
        "own.get('_modules')",
    ],
)
def test_what_is_found(code):
    assert [use.line for use in uses(f"def function(self):\n    return 0\n{code}\n")] == [3]


@pytest.mark.parametrize(
    "code",
    [
        "torch.ops.aten._to_copy.default",
        "aten._softmax.default",
        "getattr(aten, '_log_softmax').default",
        "KERNELS = {'_softmax': 0, '_native_batch_norm_legit': 1}",
        "place._replace(start=0)",
        "sys._getframe(1)",
        "name.endswith('_backward')",
        "f'_{name}'",
        "f'{name}_modules'",
        "x.__class__",
        "_, value = pair",
    ],
)
def test_what_is_not(code):
    assert uses(code) == []


CLASS = """
class Base:
    _flags = ()

    def __init__(self):
        self._modules = []
        self._held_here = {}


class Derived(Base):
    __slots__ = ("_buffers",)

    def both(self, other):
        return self._modules, self._buffers, self._flags, vars(self)["_modules"], other._held_here

    def wrong(self, other):
        return other._modules, self._parameters, vars(other)["_buffers"]  # found


class Other:
    def __init__(self):
        self._own = self._modules
"""


def test_names_that_torch_has_too_belong_to_a_class():
    found = uses(CLASS, Definitions.of([CLASS]))
    lines = CLASS.splitlines()
    wrong = next(number for number, line in enumerate(lines, 1) if line.endswith("# found"))
    assert [use.name for use in found if use.line == wrong] == [
        "_buffers",
        "_modules",
        "_parameters",
    ]
    assert [use.name for use in found if use.line != wrong] == ["_modules"]
