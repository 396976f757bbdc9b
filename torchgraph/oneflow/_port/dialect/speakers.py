"""Who speaks OneFlow: the modules whose code means OneFlow's `//`.

A module does that has asked for a name of OneFlow's, or has one of its modules among its globals;
under ``python -m torchgraph.oneflow`` all code that is no installed library does. Python's own
library, NumPy and code that was made of text act for whoever calls them: a thread pool that calls
``Tensor.argsort`` does so for the script.
"""

from __future__ import annotations

import opcode
import sys
import sysconfig
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_STANDARD = str(Path(sysconfig.get_path("stdlib")))
_INSTALLED = {"site-packages", "dist-packages"}
_OURS = ("torch", "torchgraph")
_CODE = "torchgraph.oneflow._port."
_READ_FOR_OTHERS = (
    *("torchgraph.blocks.proxy", "torchgraph.record.tape.watch"),
    "torchgraph.record.side_effects.grad_fields",
)
"""Modules of ours that read an attribute for whoever asks a proxy, or a module in `build`."""
_TAKES_A_NAME = {
    opcode.opmap[one]
    for one in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "IMPORT_STAR", "CALL_INTRINSIC_1")
    if one in opcode.opmap
}
_speaking: dict[str, bool] = {}
"""By the name of a module: whether it is code for OneFlow."""
_packages: set[str] = set()
"""Packages, and modules outside of any, of which a module is."""
_acts_for_others: dict[str, bool] = {}
"""By the name of a module: whether it is of Python's library, NumPy, or reads for others."""
_looked_at: dict[str, int] = {}
"""By the name of a module that is none: how many globals it had."""
_scripts_speak = False


def heard(frame: FrameType, asked: str = "") -> None:
    """A frame has asked for a name of OneFlow's: its module speaks, if it did so by its own code.

    Functions in C look into all modules, as `pickle` does for an object that does not say its own,
    and `inspect` asks each module for names with two underscores.
    """
    name = frame.f_globals.get("__name__")
    if name is None or _speaking.get(name):
        return
    is_of_python = asked.startswith("__") and asked != "__all__"
    if is_of_python or _acts(name, frame) or name.partition(".")[0] in _OURS:
        return
    asks = frame.f_code.co_code[frame.f_lasti] in _TAKES_A_NAME
    if asks or _imports_it(frame.f_globals) or _imports_it(frame.f_locals):
        _now_speaks(name)


def all_scripts_speak() -> None:
    """From now on code that is not installed as a library is code for OneFlow."""
    global _scripts_speak
    _scripts_speak = True
    _now_speaks("__main__")


def speaks(frame: FrameType) -> bool:
    """Whether the code of a frame is for OneFlow."""
    at: FrameType | None = frame
    while at is not None:
        name = at.f_globals.get("__name__")
        if name is None or _is_of_text(name, at):
            if _speaking.get(name or "") or _imports_it(at.f_globals):
                return True
        elif not _acts(name, at):
            return _is_for_it(name, at)
        at = at.f_back
    return _scripts_speak  # a thread that runs no code of a script


def is_library(frame: FrameType) -> bool:
    """Whether the code of a frame is of an installed package without a module for OneFlow."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if package == "torchgraph" or package in _packages or speaks(frame):
        return False
    return _is_installed(frame.f_code.co_filename)


def _now_speaks(name: str) -> None:
    _speaking[name] = True
    _packages.add(name.partition(".")[0])


def _acts(name: str, frame: FrameType) -> bool:
    """Whether the code of a module acts for its caller."""
    known = _acts_for_others.get(name)
    if known is None:
        top = name.partition(".")[0]
        is_of_python = top in sys.stdlib_module_names and _is_installed(_file(frame))
        reads = name in _READ_FOR_OTHERS
        known = _acts_for_others[name] = top == "numpy" or is_of_python or reads
    return known


def _is_of_text(name: str, frame: FrameType) -> bool:
    """Whether a script has made the code of text, by `exec` with a name for it."""
    if not _scripts_speak:
        return False
    file = _file(frame)
    is_of_a_file = not file.startswith("<") or file.startswith("<frozen ")
    return not is_of_a_file and name != "__main__" and name.partition(".")[0] not in _OURS


def _is_for_it(name: str, frame: FrameType) -> bool:
    known = _speaking.get(name)
    if known is None and _scripts_speak:
        is_ours = name.partition(".")[0] in _OURS
        known = _speaking[name] = not is_ours and not _is_installed(_file(frame))
    if known or _looked_at.get(name) == len(frame.f_globals):
        return bool(known)
    _looked_at[name] = len(frame.f_globals)
    if _imports_it(frame.f_globals):
        _now_speaks(name)
    return _speaking.get(name, False)


def _file(frame: FrameType) -> str:
    """The file of a module: what dataclasses make of text stands in it, too."""
    return str(frame.f_globals.get("__file__") or frame.f_code.co_filename)


def _is_installed(file: str) -> bool:
    """In one of Python's own folders, or in one of a user, of Debian's, of another environment."""
    is_of_python = file.startswith((_STANDARD, "<frozen "))
    return is_of_python or not _INSTALLED.isdisjoint(Path(file).parts)


def _imports_it(names: dict[str, Any]) -> bool:
    """Whether a global is a module of `torchgraph.oneflow`: to import it asks for no name."""
    # By the type: asked for its class, torch.distributed.reduce_op warns.
    values = (value for value in list(names.values()) if issubclass(type(value), ModuleType))
    modules = (value.__name__ for value in values)
    return any(_is_namespace(f"{name}.") for name in modules)


def _is_namespace(name: str) -> bool:
    """Whether the module is one of OneFlow's namespaces, rather than part of their code."""
    return name.startswith("torchgraph.oneflow.") and not name.startswith(_CODE)
