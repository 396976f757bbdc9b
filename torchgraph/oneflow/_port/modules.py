"""The modules that a script imports: one for each namespace of OneFlow, filled from the table.

The same objects stand under ``torchgraph.oneflow.nn`` and, when `import_as_oneflow` was called,
under ``oneflow.nn``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .dialect import members, speakers
from .errors import NotPortedModule
from .names import namespaces, not_ported, table
from .names.leaves import as_asked

HERE = "torchgraph.oneflow"


class Namespace(ModuleType):
    """A module whose names are those of the table below a prefix; nothing else is in it."""

    def __init__(self, prefix: str) -> None:
        super().__init__(f"{HERE}.{prefix}" if prefix else HERE)
        self.__dict__.update(_prefix=prefix, __path__=[])

    def __getattr__(self, name: str) -> Any:
        # Whoever asks for a name of OneFlow's speaks OneFlow: `//` on tensors truncates there.
        speakers.heard(sys._getframe(1), name)
        return looked_up(self.__dict__["_prefix"], name)

    def __dir__(self) -> list[str]:
        return listed(self.__dict__["_prefix"])

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}>"


def root() -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of `torchgraph.oneflow`, which then has all its modules."""
    members.install()
    for prefix in namespaces():
        sys.modules.setdefault(f"{HERE}.{prefix}", Namespace(prefix))
    if not any(isinstance(finder, _Refusing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Refusing())

    def get(name: str) -> Any:
        speakers.heard(sys._getframe(1), name)
        return looked_up("", name)

    return get, partial(listed, "")


def looked_up(prefix: str, name: str) -> Any:
    """What a name of a namespace stands for.

    Raises:
        NotPortedName: the table refuses it, or lacks it.
        AttributeError: of a name with two underscores that the table lacks.
    """
    full = f"{prefix}.{name}" if prefix else name
    if (row := table().get(full)) is not None:
        return as_asked(row.value()) if row.is_adapted else row.value()
    if full in namespaces():
        return namespace(full)
    if name == "__all__":
        rows = (table().get(f"{prefix}.{one}" if prefix else one) for one in listed(prefix))
        return [row.name.rpartition(".")[2] for row in rows if row and not row.is_refused]
    if name.startswith("__"):
        raise AttributeError(f"module {HERE + '.' + prefix!r} has no attribute {name!r}")
    raise not_ported(full)


def listed(prefix: str) -> list[str]:
    """The names in a namespace."""
    start = f"{prefix}." if prefix else ""
    known = {*table(), *namespaces()}
    inside = (name.removeprefix(start) for name in known if name.startswith(start))
    return sorted({name.partition(".")[0] for name in inside})


def namespace(prefix: str) -> ModuleType:
    """The module of a namespace; the empty one is `torchgraph.oneflow`."""
    return sys.modules[f"{HERE}.{prefix}" if prefix else HERE]


def import_as_oneflow() -> None:
    """Let ``import oneflow`` give `torchgraph.oneflow`, in this process.

    Raises:
        NotPortedModule: OneFlow itself was imported before.
    """
    importlib.import_module(HERE)
    known = sys.modules.get("oneflow")
    if known is not None and known is not sys.modules[HERE]:
        raise NotPortedModule("OneFlow itself was imported before.", fix="import torchgraph first.")
    sys.modules["oneflow"] = sys.modules[HERE]
    for prefix in namespaces():
        sys.modules[f"oneflow.{prefix}"] = namespace(prefix)


class _Here(Loader):
    """Loads a namespace by another name: the module is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Refusing(MetaPathFinder):
    """Says of a module of OneFlow that it is not here, where Python would only say 'not found'.

    Under ``oneflow``, as which a script may have put `torchgraph.oneflow` into `sys.modules` by
    itself, it finds the namespaces, too.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith((f"{HERE}._port.", f"{HERE}.__main__")):
            return None
        root = next((one for one in (f"{HERE}.", "oneflow.") if fullname.startswith(one)), None)
        if root is None:
            return None
        if root == "oneflow." and sys.modules.get("oneflow") is not sys.modules.get(HERE):
            return None
        name = fullname.removeprefix(root)
        if name in namespaces():
            return ModuleSpec(fullname, _Here(namespace(name)), is_package=True)
        error = not_ported(name)
        raise NotPortedModule(error.what, fix=error.way_out)
