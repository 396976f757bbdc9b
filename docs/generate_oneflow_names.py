"""Write docs/oneflow-names.md from the table of names: `python docs/generate_oneflow_names.py`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from torchgraph.oneflow._port.names import Name, table

TARGET = Path(__file__).with_name("oneflow-names.md")
HEAD = """# OneFlow's names

Each name of OneFlow 0.9 and 1.0 that `torchgraph.oneflow` knows: {same} mean what torch's mean,
{adapted} have an adapter, which gives OneFlow's numbers, {refused} are refused with a reason.
Asking for any other name raises `NotPorted`, with the names that are near to it. How to use them:
[from OneFlow](from-oneflow.md).

This page is generated from `torchgraph/oneflow/_port/names/` by
`python docs/generate_oneflow_names.py`.
"""


def render() -> str:
    """The text of the page."""
    rows = sorted(table().values(), key=lambda row: (row.owner, row.name))
    counts = {
        "refused": sum(row.is_refused for row in rows),
        "adapted": sum(row.is_adapted for row in rows),
    }
    counts["same"] = len(rows) - sum(counts.values())
    parts = [HEAD.format(**counts)]
    for owner, inside in groupby(rows, key=lambda row: row.owner):
        parts.append(_section(owner, list(inside)))
    return "".join(parts)


def _section(owner: str, rows: list[Name]) -> str:
    text = f"\n## {'`oneflow.' + owner + '`' if owner else '`oneflow`'}\n"
    text += _table("OneFlow's", "what differs from torch", (row for row in rows if row.is_adapted))
    text += _table("refused", "why", (row for row in rows if row.is_refused))
    same = [f"`{_last(row)}`" for row in rows if not row.is_adapted and not row.is_refused]
    return text + (f"\nThe same: {', '.join(same)}.\n" if same else "")


def _table(first: str, second: str, rows: Iterable[Name]) -> str:
    cells = [f"| `{_last(row)}` | {_escaped(row.why)} |\n" for row in rows]
    return f"\n| {first} | {second} |\n|---|---|\n{''.join(cells)}" if cells else ""


def _last(row: Name) -> str:
    return row.name.rpartition(".")[2]


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def main() -> None:
    """Write the page."""
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
