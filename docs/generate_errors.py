"""Write docs/errors.md from torchgraph/errors.py: `python docs/generate_errors.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

from torchgraph import categories, errors
from torchgraph.distributed import errors as of_ranks
from torchgraph.oneflow._port import errors as of_oneflow

TARGET = Path(__file__).with_name("errors.md")
SOURCES = (errors, of_ranks, of_oneflow, categories)
HEAD = """# Errors and warnings

What each means, what triggers it, and the way out. Catch them by class, as in
`torchgraph.errors.GradPresent`; those of [several ranks](#several-ranks) are in
`torchgraph.distributed.errors`, those of [scripts for OneFlow](#scripts-for-oneflow) in
`torchgraph.oneflow._port.errors`. All errors derive from `GraphError`, all warnings from
`GraphWarning`; many also derive from the built-in class that OneFlow raises in the same place. A
message says what happened, the line of your code where it did, and the way out.

One that is raised has changed nothing, except where [`StepFailed`](#stepfailed) says that it has.

Wrong uses are refused where they are written, and change nothing: an option or an argument that is
misspelt, of another type, out of its range or without a meaning beside another one
([`InvalidOption`](#invalidoption)); a name that is not there, or is set where it is to be called
([`UnknownName`](#unknownname), with the name that was meant); a private name of Graph in a class of
yours ([`ModuleNameTaken`](#modulenametaken)). No int stands for a bool and no bool for an int. What
is wrong in your own step stays eager's error, with its type and its text, at your line; so does
what torch says of an op that is called wrongly.

What no program can hold is a [`NoProgram`](#noprogram), of the first call of a Graph or of the
second. What shows only later never raises: eager goes on, and a warning says so. With
`config.set_fallback("eager")` that holds for all of them:

| `config.set_fallback` | early | late |
|---|---|---|
| `"error"`, the default | `NoProgram` | eager, with an `EagerWarning` |
| `"eager"` | eager, with an `EagerWarning` | eager, with an `EagerWarning` |

This page is generated from `torchgraph/errors.py` by `python docs/generate_errors.py`.

## What all derive from
"""
_ROOTS = (errors.GraphError, errors.GraphWarning)
_SECTION = re.compile(r"# --- (.+?) -+$")


def render() -> str:
    """The text of the page."""
    return HEAD + "".join(map(_part, SOURCES))


def _part(module: ModuleType) -> str:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    titles = {
        number: found.group(1)
        for number, line in enumerate(source.splitlines(), start=1)
        if (found := _SECTION.match(line))
    }
    parts = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        found = getattr(module, node.name)
        if issubclass(found, _ROOTS):
            for number in [number for number in titles if number < node.lineno]:
                parts.append(f"\n## {_sentence(titles.pop(number))}\n")
            parts.append(_entry(found))
    return "".join(parts)


def _entry(found: type) -> str:
    lines = [f"\n### {found.__name__}\n", f"\n{_markdown(found.__doc__ or '')}\n"]
    fix = vars(found).get("fix", "")
    if issubclass(found, errors.NoProgram) and found is not errors.NoProgram:
        fix = f"{fix} Or {errors.NoProgram.fix}" if fix else errors.NoProgram.fix
    if fix:
        lines.append(f"\n**Fix:** {_escaped(fix)}\n")
    bases = [base.__name__ for base in found.__bases__ if base not in _ROOTS]
    if bases and found not in _ROOTS:
        lines.append(f"\nAlso caught as {' or '.join(f'`{base}`' for base in bases)}.\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("__", r"\_\_").replace("*", r"\*")


def _sentence(title: str) -> str:
    return title[0].upper() + title[1:]


def _markdown(docstring: str) -> str:
    text = " ".join(docstring.split())
    return text.replace("``", "`")


def main() -> None:
    """Write the page."""
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
