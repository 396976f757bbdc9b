"""What a pickle of OneFlow's may hold besides plain values, as data: nothing of it is ever called.

The names in `MAKERS` are all the globals that are read; each is a function of ours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....._torch.modules import set_versions
from .....errors import CheckpointDamaged

Name = tuple[str, str]


@dataclass(frozen=True)
class Global:
    """A global that a pickle names."""

    name: Name


@dataclass(eq=False)
class TensorRecord:
    """A tensor: where it lies (``path``), or its values (``data``, ``dtype``)."""

    state: dict[Any, Any] | None = None


@dataclass(eq=False)
class DtypeRecord:
    """A dtype of OneFlow's, by its number."""

    number: int | None = None


@dataclass(eq=False)
class NumpyDtype:
    """A dtype of NumPy's: ``f4``, little-endian once ``order`` says so."""

    code: str
    order: str = "|"


@dataclass(eq=False)
class ArrayRecord:
    """An array of NumPy's; a number, where ``shape`` is None."""

    dtype: NumpyDtype | None = None
    shape: tuple[int, ...] | None = None
    content: bytes = b""
    is_fortran: bool = False


@dataclass(eq=False)
class SizeRecord:
    """The shape of a tensor."""

    sizes: tuple[Any, ...]


def refused(what: str) -> CheckpointDamaged:
    """The error for what a checkpoint does not have."""
    return CheckpointDamaged(
        what,
        fix="load it with OneFlow if you trust it, and save tensors and plain values alone.",
    )


def _tensor() -> TensorRecord:
    return TensorRecord()


def _dtype() -> DtypeRecord:
    return DtypeRecord()


def _numpy_dtype(code: object, align: object = False, copy: object = True) -> NumpyDtype:
    if type(code) is not str:
        raise refused("it has a dtype of NumPy's that is none.")
    return NumpyDtype(code)


def _empty_array(cls: object, shape: object, code: object) -> ArrayRecord:
    if cls != Global(("numpy", "ndarray")):
        raise refused("it has an array of a class of its own.")
    return ArrayRecord()


def _scalar(dtype: object, content: object) -> ArrayRecord:
    if not isinstance(dtype, NumpyDtype) or type(content) is not bytes:
        raise refused("it has a number of NumPy's that is none.")
    return ArrayRecord(dtype, None, content)


def _size(sizes: object = ()) -> SizeRecord:
    if type(sizes) is not tuple:
        raise refused("it has a shape that is none.")
    return SizeRecord(sizes)


def _ordered_dict(pairs: object = ()) -> OrderedDict[Any, Any]:
    if pairs != () and pairs != []:
        raise refused("it has an OrderedDict of a form that OneFlow does not write.")
    return OrderedDict()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if type(text) is not str or encoding != "latin1":
        raise refused("it has bytes that are none.")
    return text.encode("latin1")


def _complex(real: object, imaginary: object) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise refused("it has a complex number that is none.")
    return complex(real, imaginary)


MAKERS: dict[Name, Callable[..., Any]] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("_codecs", "encode"): _encode,
    ("builtins", "complex"): _complex,
    ("numpy", "dtype"): _numpy_dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("oneflow", "Tensor"): _tensor,
    ("oneflow.nn", "Parameter"): _tensor,
    ("oneflow._oneflow_internal", "Tensor"): _tensor,
    ("oneflow", "Size"): _size,
    ("oneflow._oneflow_internal", "dtype"): _dtype,
}
NAMED_ONLY: frozenset[Name] = frozenset({("numpy", "ndarray")})
"""Globals that are an argument of another."""


def made(maker: object, arguments: object) -> Any:
    """What a global makes of its arguments."""
    if not isinstance(maker, Global) or maker.name not in MAKERS or type(arguments) is not tuple:
        raise refused("it calls what is no class of OneFlow's.")
    try:
        return MAKERS[maker.name](*arguments)
    except TypeError as error:
        name = ".".join(maker.name)
        raise refused(f"it has a {name} of a form that OneFlow does not write.") from error


def set_state(value: object, state: Any) -> None:
    """Let a value that was made take its state, once."""
    if isinstance(value, OrderedDict):
        _set_versions(value, state)
    elif isinstance(value, TensorRecord) and value.state is None and type(state) is dict:
        value.state = state
    elif isinstance(value, DtypeRecord) and value.number is None and type(state) is int:
        value.number = state
    elif isinstance(value, NumpyDtype) and type(state) is tuple and len(state) == 8:
        _set_order(value, state)
    elif isinstance(value, ArrayRecord) and value.dtype is None and type(state) is tuple:
        _set_content(value, state)
    else:
        raise refused("it has an object in a state that OneFlow does not write.")


def _set_versions(value: OrderedDict[Any, Any], state: Any) -> None:
    if type(state) is not dict or list(state) != ["_metadata"]:
        raise refused("it has an OrderedDict with attributes of its own.")
    set_versions(value, state["_metadata"])


def _set_order(value: NumpyDtype, state: tuple[Any, ...]) -> None:
    _, order, *parts, _, _, _ = state
    if order not in ("<", "|") or parts != [None, None, None]:
        raise refused("it has an array of NumPy's that is not little-endian, or of no numbers.")
    value.order = order


def _set_content(value: ArrayRecord, state: tuple[Any, ...]) -> None:
    if len(state) != 5:
        raise refused("it has an array of NumPy's that is none.")
    _, shape, dtype, is_fortran, content = state
    if (
        type(shape) is not tuple
        or not all(type(size) is int and size >= 0 for size in shape)
        or not isinstance(dtype, NumpyDtype)
        or type(is_fortran) is not bool
        or type(content) is not bytes
    ):
        raise refused("it has an array of NumPy's that is none, or of objects.")
    value.dtype, value.shape = dtype, shape
    value.is_fortran, value.content = is_fortran, content
