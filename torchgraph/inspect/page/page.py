"""Writes a page: its data, its script, its style and Vega's code, in one file that loads no other.

What comes from the user is JSON in a block that no browser runs, and becomes text by `textContent`
alone. A policy in the page lets only the scripts run whose hashes it names, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from importlib.resources import files
from typing import Any

from ...artifact.files import replaced
from ...errors import InvalidOption, NoProgram
from ...options.checking import nearest
from . import convert
from .charts import PLOTS
from .data import Shown, found_of, page_data, plot
from .timings import Timings

Path = str | os.PathLike[str]
_ENDINGS = {
    "html": (".html", ".htm"),
    "svg": (".svg",),
    "png": (".png",),
    "jpeg": (".jpg", ".jpeg"),
    "pdf": (".pdf",),
}
"""What a path that ends so is taken for."""
_WRITTEN = ("html", "svg", "png")


def save_html(path: Path, shown: Shown, given: Timings) -> None:
    """Write the page. Nothing is written when its data cannot be made."""
    _check_ending(path, "html")
    data = page_data(shown, given)
    vega = convert.javascript() if "plots" in data else ""
    text = _rendered(shown.name, data, vega)
    with replaced(os.fspath(path)) as file:
        file.write(text.encode())


def save_plot(path: Path, shown: Shown, name: str, form: str, given: Timings) -> None:
    """Write one plot as ``svg`` or ``png``."""
    if name not in PLOTS:
        near = nearest(str(name), PLOTS)
        known = ", ".join(map(repr, PLOTS))
        raise InvalidOption(
            f"No plot is called {name!r}. There are: {known}.",
            fix=f"did you mean {near!r}?" if near else "",
        )
    _check_ending(path, form)
    programs = shown.source.programs
    if programs is None:
        raise stays_in_eager(shown.name, "plot")
    spec = plot(shown, found_of(shown, programs, given), name)
    drawn = convert.svg(spec) if form == "svg" else convert.png(spec)
    with replaced(os.fspath(path)) as file:
        file.write(drawn)


def stays_in_eager(name: str, verb: str) -> NoProgram:
    """The error where there is no program to ``verb``."""
    return NoProgram(
        f"{name} stays in eager: there is no program to {verb}.",
        fix="graph.report() says what runs in eager, and why.",
        falls_back=False,
    )


def _check_ending(path: Path, form: str) -> None:
    """Refuse a file ending that names another format than the one that is written."""
    given = os.path.splitext(os.fspath(path))[1].lower()
    said = next((one for one, endings in _ENDINGS.items() if given in endings), form)
    if said != form:
        raise InvalidOption(
            f"save_{form} writes {form.upper()}: {os.fspath(path)!r} is a name for {said}.",
            fix=f"name it with .{form}" + (f", or call save_{said}." if said in _WRITTEN else "."),
        )


def _rendered(name: str, data: dict[str, Any], vega: str) -> str:
    script = _part("page.js") + _part("plots.js")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src 'unsafe-inline'; script-src {_hash(vega)} {_hash(script)}"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"{name}: torchgraph"),
        "style": _part("page.css"),
        "data": _json(data),
        "vega": vega,
        "script": script,
    }
    before, *rest = _part("page.html").split("{{")
    pieces = (piece.split("}}", 1) for piece in rest)
    return before + "".join(parts[key] + after for key, after in pieces)


def _json(data: dict[str, Any]) -> str:
    """JSON without characters that begin or end HTML tags, or that UTF-8 cannot encode."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
