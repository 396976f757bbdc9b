"""Whether Inductor's C++ form of a region calls nothing but kernels that it is known to call well.

It calls some ops by ways that lose their arguments' types, lists of integers say, and then fails
when it runs. Python calls those.
"""

from __future__ import annotations

import re
from pathlib import Path

_CALL = re.compile(r"\b(?:aoti_torch_(\w+)\(|(callBoxed|custom_op_wrapper|proxy_executor))")
_KNOWN = frozenset(
    {
        *("empty_strided", "new_tensor_handle"),
        *("cpu_mm_out", "cpu_addmm_out", "cpu_bmm_out", "cpu_baddbmm_out"),
        *("cpu_convolution", "cpu_convolution_backward"),
        *("cpu_scatter_reduce_two_out", "cpu__scaled_dot_product_flash_attention_for_cpu"),
        "cpu__scaled_dot_product_flash_attention_for_cpu_backward",
    }
)


def is_known(directory: Path) -> bool:
    """True when all that the code in ``directory`` calls is known."""
    return all(calls_known(file.read_text(encoding="utf-8")) for file in directory.rglob("*.cpp"))


def calls_known(code: str) -> bool:
    """True when all that C++ code calls is known."""
    return {shim or other for shim, other in _CALL.findall(code)} <= _KNOWN
