"""The use of vl-convert: Vega's code for a page, and plots as SVG and PNG.

vl-convert (BSD-3) has Vega and Vega-Lite inside of it: no browser, no network. It is optional.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from ...errors import NotSupported

Spec = dict[str, Any]
"""A plot in Vega-Lite's JSON format."""

_EXPORTS = "window.vegaEmbed = vegaEmbed;"
_SCALE = 2.0


@functools.cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; about 0.9 MB. Takes two seconds once."""
    bundle = str(_library().javascript_bundle(_EXPORTS)).replace("</script", "<\\/script")
    return f"(() => {{{bundle}\n}})();"  # its short names are its own


def svg(spec: Spec) -> bytes:
    """The plot as SVG."""
    made: str = _library().vegalite_to_svg(spec, allowed_base_urls=[])
    return made.encode()


def png(spec: Spec) -> bytes:
    """The plot as PNG, two pixels for each of its own."""
    made: bytes = _library().vegalite_to_png(spec, scale=_SCALE, allowed_base_urls=[])
    return made


def _library() -> Any:
    try:
        return importlib.import_module("vl_convert")
    except ImportError as error:
        raise NotSupported(
            "Plots are drawn by vl-convert-python, which is not installed.",
            fix="pip install 'torch-nn-graph[page]'.",
        ) from error
