"""Code blocks of markdown as one script, and what each of them is to print."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection
from typing import NamedTuple

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_MARK = "@@ block "
_SAME_FOR_BOTH = (
    (re.compile(r"\b(flow|oneflow|torch)\.(?=\w)"), ""),
    (re.compile(r",?\s+dtype=(float32|int64)\b"), ""),
    (re.compile(r",?\s+(device='\w+(:\d+)?'|is_lazy='True')"), ""),
    (re.compile(r"\bcuda(:\d)?\b|\bcpu:0\b"), "cpu"),
    (re.compile(r",?\s+grad_fn=<\w+>|,?\s+requires_grad=True"), ""),
    (re.compile(r"\(GraphModule:[\w.]+\(\)\): \(\)"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=[(\[]) | (?=[)\]])"), ""),
)
"""What differs by words alone: names, devices, what torch or older documents leave out."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d*(e[-+]?\d+)?")


class Block(NamedTuple):
    """A piece of code, and the text that follows it."""

    number: int
    code: str
    output: str | None


def blocks(markdown: str) -> list[Block]:
    """The blocks of Python in order."""
    found: list[Block] = []
    for number, (language, text) in enumerate(_FENCE.findall(markdown)):
        if language in ("python", "py"):
            found.append(Block(number, textwrap.dedent(text), None))
        elif language in ("text", "") and found and found[-1].output is None:
            found[-1] = found[-1]._replace(output=text)
    return found


def script(parts: Collection[Block]) -> str:
    """The blocks as one script, which says before each of them where it is."""
    return "\n".join(f'print("{_MARK}{part.number}", flush=True)\n{part.code}' for part in parts)


def printed(out: str) -> dict[int, str]:
    """What each block printed."""
    found = {}
    for piece in out.split(_MARK)[1:]:
        number, _, text = piece.partition("\n")
        found[int(number)] = text
    return found


def assert_prints(expected: str, got: str) -> None:
    """The same text but for the numbers with a point; ``...`` on a line of its own is any text."""
    pieces = [_plain(piece) for piece in re.split(r"^ *\.\.\. *$", expected, flags=re.MULTILINE)]
    rest = _plain(got)
    for index, piece in enumerate(pieces):
        at = rest.find(piece)
        assert at == 0 or (at > 0 and index > 0), f"expected:\n{piece}\n\nprinted:\n{rest}"
        rest = rest[at + len(piece) :]
    assert not rest or not pieces[-1], f"printed more:\n{rest}"


def _plain(text: str) -> str:
    for pattern, instead in _SAME_FOR_BOTH:
        text = pattern.sub(instead, text)
    return _NUMBER.sub("#", text).strip()
