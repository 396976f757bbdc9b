"""Tables of clocks and other impure functions, and of C functions that are known to be pure."""

from __future__ import annotations

import datetime
import gc
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from types import MethodType, ModuleType
from typing import Any, TypeVar

from ...errors import InvalidOption
from ...guards.aspects import Same

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_NAMED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, (*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS))),
    (time, ("localtime", "gmtime", "ctime", "asctime", "strftime", "clock_gettime")),
    (datetime.datetime, ("now", "today", "utcnow")),
    (datetime.date, ("today",)),
    (os, ("urandom", "getrandom", "times", "getloadavg")),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice", "randbits")),
    (random.SystemRandom, ("random", "getrandbits")),
    (gc, ("get_count", "get_stats")),
    (threading, ("active_count", "enumerate")),
    (os, ("stat", "lstat", "access", "readlink")),  # through a `from os import stat` of the user's
)
"""Functions whose result differs at each call whatever the step does, clocks among them."""


@cache
def clocks() -> dict[int, tuple[object, str]]:
    """The clock functions and their names, by identity."""
    found = {}
    for holder, names in _NAMED:
        for name in names:
            if hasattr(holder, name):
                for one in (getattr(holder, name), _in_class(holder, name)):
                    found[id(one)] = one, f"{holder.__name__}.{name}()"
    return found


def _in_class(holder: Any, name: str) -> object:
    """The raw attribute of a class under a name, without descriptors."""
    held = (vars(cls)[name] for cls in getattr(holder, "__mro__", ()) if name in vars(cls))
    return next(held, None)


_SETTERS = ("seed", "setstate", "set_state", "manual_seed", "set_offset")


def sets_a_generator(function: object) -> bool:
    """True for a function or method that sets the state of a random generator."""
    module = str(getattr(function, "__module__", None) or _module_of(function))
    named = getattr(function, "__name__", "") in _SETTERS
    return named and module.partition(".")[0] in ("random", "numpy", "torch", "_random")


def _module_of(function: object) -> str:
    owner = getattr(function, "__objclass__", None) or type(getattr(function, "__self__", None))
    return str(owner.__module__)


# --- code in C ------------------------------------------------------------------------------------

_PACKAGES = """
torch torchvision torchaudio torchtext torchao torchgraph functorch triton numpy scipy
pandas sklearn numexpr bottleneck numba llvmlite cupy jax jaxlib tensorflow einops opt
PIL cv2 imageio skimage matplotlib shapely pyarrow polars h5py zarr lmdb lz4 zstandard
tqdm rich yaml ruamel orjson ujson simplejson msgpack regex tokenizers sentencepiece
tiktoken safetensors transformers datasets accelerate diffusers timm bitsandbytes
flash_attn xformers apex deepspeed transformer_engine mamba_ssm causal_conv1d
google protobuf grpc onnx onnxruntime pydantic pydantic_core attr attrs cattrs
frozenlist multidict yarl aiohttp markupsafe jinja2 wrapt cffi cryptography
xxhash blake3 rapidfuzz Levenshtein networkx igraph gmpy2 mpmath sympy symengine
lxml cython Cython pybind11 nanobind ml_dtypes optree pytest coverage _pytest
torch_scatter torch_sparse torch_cluster torch_geometric pyg_lib dgl faiss
spacy thinc blis cymem preshed murmurhash srsly rdkit ase gym gymnasium pygame mypyc
"""
_KNOWN = frozenset(_PACKAGES.split())
"""Packages whose C code is pure, as far as training depends on it."""

_pure: dict[int, Same] = {}
"""By identity, the arguments of `pure`."""
_F = TypeVar("_F")


def pure(function: _F) -> _F:
    """Say of a function in C, or a class, that it computes the same from the same; gives it back.

    A program does not call it again: what it gave is a constant. Of functions whose code nobody
    can read a warning says so once, and `pure` settles it.

    Raises:
        InvalidOption: nothing can call it.
    """
    if not callable(function):
        raise InvalidOption(f"tg.pure takes a function or a class, not {function!r:.60}.")
    _pure[id(function)] = Same(function)
    return function


def is_pure(value: object) -> bool:
    """True for an argument of `pure`, a method of such a class, and its objects."""
    owners = (value, type(value), getattr(value, "__objclass__", None))
    return any(id(one) in _pure and _pure[id(one)]() is one for one in owners)


def is_unknown(value: Any) -> bool:
    """True for a function or an object whose code is in C, of a package that is not known."""
    if isinstance(value, (ModuleType, MethodType)):
        return False
    holder = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    name = getattr(value, "__module__", None) if callable(value) else type(value).__module__
    if not isinstance(name, str) and holder is not None:
        name = holder.__name__ if isinstance(holder, ModuleType) else type(holder).__module__
    return isinstance(name, str) and is_foreign(name) and not is_pure(value)


@cache
def is_foreign(module: str) -> bool:
    """True for a compiled module of an unknown package."""
    root = module.partition(".")[0]
    if {root, root.lstrip("_")} & (_KNOWN | sys.stdlib_module_names) or root == "__main__":
        return False
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
    return file.endswith((".so", ".pyd", ".dylib"))


def words_for(value: Any) -> str:
    """The display name of a function or an object."""
    named = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    module = getattr(named, "__module__", None) or getattr(type(value), "__module__", "")
    return f"{module}.{named.__qualname__}"


def parts_of(value: object) -> Iterator[object]:
    """The functions and iterables inside an iterator of C, or a function of Python's library."""
    reduce: Callable[[], Any] | None = getattr(value, "__reduce__", None)
    try:
        found = reduce() if reduce is not None else ()
    except Exception:  # it cannot be taken apart
        return
    for part in found if isinstance(found, tuple) else ():
        yield from part if isinstance(part, tuple) else (part,)
