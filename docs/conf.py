"""Sphinx's settings. `make docs` writes the site into site/, with warnings as errors.

Pages are read where a code host shows them, so links between them mean the same in both places. No
page loads anything from another host.
"""

from __future__ import annotations

from typing import Any

import torchgraph

project = "torchgraph"
author = "the authors of torchgraph"
release = version = torchgraph.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
include_patterns = [
    "docs/**",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
]
include_patterns += ["torchgraph/csrc/README.md", "examples/deploy_cpp/README.md"]
exclude_patterns = [".*", "site", "build", "dist", "runs", "*.egg-info"]
root_doc = "docs/index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
language = "en"

html_theme = "furo"
html_title = "torchgraph"
html_static_path = ["theme"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "theme/icon.svg"
html_additional_pages = {"index": "forward.html"}
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False
html_show_search_summary = False  # it would be fetched, and files cannot be
templates_path = ["templates"]
pygments_style = "default"
highlight_language = "none"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
default_role = "code"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Any) -> None:
    """The docstring of a room says to those who build the house what it may touch: left out."""
    app.connect("autodoc-process-docstring", _without_rules)


def _without_rules(_: Any, what: str, *rest: Any) -> None:
    lines: list[str] = rest[-1]
    rules = [number for number, line in enumerate(lines) if line.startswith("Touches:")]
    if what == "module" and rules:
        del lines[rules[0] :]
