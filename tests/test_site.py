"""The documentation site: all pages are in it, its tables are complete, and it needs no network."""

import ast
import importlib.util
import inspect
import json
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import torchgraph as tg
from tests.support import settle
from torchgraph.options.checking import public_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CODE = re.compile(r"`([^`]+)`")


def rows(page: str, head: str = "") -> list[tuple[str, str]]:
    """The first two cells of each row of the tables of a page whose first row begins so."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found: list[tuple[str, str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        first, second, *body = table.splitlines()
        assert second.startswith("|---")
        if first.startswith(f"| {head}"):
            for line in body:
                cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
                found.append((cells[1], cells[2]))
    return found


def code(cell: str) -> str:
    """The code of a cell that is nothing else."""
    found = CODE.fullmatch(cell)
    assert found, cell
    return found[1]


# --- pages ---------------------------------------------------------------------------------------


def test_every_page_is_in_the_side_bar():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = "\n".join(re.findall(r"{toctree}\n(.*?)\n:::", index, re.DOTALL))
    entries = re.findall(r"^(?:.* <)?([\w./-]+)>?$", trees, re.MULTILINE)
    pages = {
        str(path.relative_to(DOCS).with_suffix(""))
        for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")]
    }

    assert len(set(entries)) == len(entries)
    assert pages - {"index"} == {entry for entry in entries if not entry.startswith("../")}


def test_every_public_name_is_in_the_reference():
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.rst"))
    named = set(re.findall(r":: torchgraph\.(\w+)", text))

    # errors.md is the reference of the errors, conf.py says the version
    assert set(tg.__all__) - {"errors", "__version__"} <= named


def test_the_picture_is_up_to_date_and_names_rooms():
    generator = runpy.run_path(str(DOCS / "generate_architecture.py"))

    assert (DOCS / "architecture.svg").read_text(encoding="utf-8") == generator["render"](), (
        "run: python docs/generate_architecture.py"
    )
    rooms = {box.room for box in generator["BOXES"] if box.room}
    assert len(rooms) > 6
    assert all((ROOT / "torchgraph" / room / "__init__.py").exists() for room in rooms)


# --- options -------------------------------------------------------------------------------------


def verbs() -> set[str]:
    """Each option, as users write it."""
    config = tg.GraphConfig()
    own = {f"config.{name}" for name in public_names(config) if name != "passes"}
    return own | {f"config.passes.{name}" for name in public_names(config.passes)}


def test_each_option_has_one_row():
    options = [*rows("options.md", "option"), *rows("options.md", "name")]
    found = [code(cell).partition("(")[0] for cell, _ in options]

    assert sorted(found) == sorted(verbs())


def test_an_option_is_called_as_its_row_says():
    for cell, second in rows("options.md", "option"):
        config = tg.GraphConfig()
        call = code(cell)
        given = {"config": config, "torch": torch, "torchgraph": tg}
        if (refused := CODE.fullmatch(second)) and hasattr(tg.errors, refused[1]):
            with pytest.raises(getattr(tg.errors, refused[1])):
                eval(call, given)
        else:
            eval(call, given)


def test_defaults_are_those_of_the_code(monkeypatch):
    monkeypatch.delenv("TORCHGRAPH_BACKEND", raising=False)
    for name, default in (
        ("set_backend", "backend"), ("set_compile_timeout", "compile_timeout"),
        ("set_confirm", "confirm"), ("set_rng", "rng"), ("set_look_again", "look_again"),
        ("set_fallback", "fallback"),
        ("set_cache_size", "cache_size"), ("set_gradient_accumulation_steps", "micro_batches"),
        ("enable_straighten_algorithm", "straighten"), ("set_cuda_graph", "cuda_graph"),
    ):  # fmt: skip
        cell = next(second for first, second in rows("options.md", "option") if name in first)
        said = cell.removesuffix(" s").strip("`").strip('"')
        value = getattr(tg.GraphConfig().options, default)
        assert said == (value if isinstance(value, str) else f"{value:g}"), name


def test_each_variable_of_the_environment_has_a_row():
    source = (ROOT / "torchgraph" / "environment.py").read_text(encoding="utf-8")
    known = set(re.findall(r"TORCHGRAPH_[A-Z_]+", source))

    assert {code(cell) for cell, _ in rows("options.md", "variable")} == known


# --- from OneFlow --------------------------------------------------------------------------------


class _Graph(tg.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x):
        loss = self.model(x).sum()
        loss.backward()
        return loss


@pytest.fixture
def names():
    """What rows name: `oneflow` is torch, `nn` torchgraph's."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = _Graph(model, optimizer)
    settle(graph, torch.ones(1, 2))
    return {
        "tg": tg,
        "torch": torch,
        "oneflow": torch,
        "nn": tg.nn,
        "graph": graph,
        "block": graph.model.to(tg.nn.graph.GraphModule),
        "optimizer": optimizer,
        "tensor": torch.ones(2),
        "head": torch.nn.Linear(2, 1),
        "print": str,
    }


def test_each_row_of_from_oneflow_is_so(names):
    found = rows("from-oneflow.md", "OneFlow")
    for there, here in found:
        call = code(there)
        if here == "same":
            eval(call, names)
        elif here == "not there":
            owner, _, name = call.rpartition(".")
            assert not hasattr(eval(owner, names), name), call
        elif here.startswith("raises "):
            with pytest.raises(getattr(tg.errors, code(here.removeprefix("raises ")))):
                eval(call, names)
        else:
            eval(code(here), names)
    assert len({there for there, _ in found}) > 100


def test_each_option_of_oneflow_is_a_row():
    found = {code(there).partition("(")[0] for there, _ in rows("from-oneflow.md", "OneFlow")}
    texts = {
        name: " ".join((inspect.getdoc(getattr(tg.GraphConfig, name, None)) or "").split())
        for name in public_names(tg.GraphConfig())
    }
    refused = ("Not available yet", "Not supported")
    of_oneflow = {
        name
        for name, text in texts.items()
        if "OneFlow: the option of the same name" in text or text.startswith(refused)
    }

    assert len(of_oneflow) > 15
    assert {f"graph.config.{name}" for name in of_oneflow} <= found


# --- footguns ------------------------------------------------------------------------------------


def test_each_footgun_has_a_test_and_each_test_a_row():
    tree = ast.parse((ROOT / "tests" / "test_footguns.py").read_text(encoding="utf-8"))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    cells = (cell.lower() for cell, _ in rows("footguns.md", "what"))
    said = ["test_" + re.sub(r"\W+", "_", cell).strip("_") for cell in cells]

    assert sorted(said) == sorted(tests)


# --- the site ------------------------------------------------------------------------------------


class _Loads(HTMLParser):
    """What a page loads by itself: all but links that a reader clicks."""

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attrs):
        of = dict(attrs)
        if tag != "a":
            self.urls += [of[name] for name in ("src", "href", "data", "poster") if of.get(name)]
        if tag == "meta" and of.get("http-equiv") == "refresh":
            self.urls.append(of["content"].partition("url=")[2])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra `docs`")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", tmp_path],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    pages = [*tmp_path.rglob("*.html")]
    assert len(pages) > len([*DOCS.glob("*.md")])
    for page in pages:
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        for url in loads.urls:
            path = url.partition("#")[0].partition("?")[0]
            assert not re.match(r"\w+:|//", url), f"{page.name}: {url}"
            assert not path or (page.parent / path).exists(), f"{page.name}: {url}"
    for sheet in tmp_path.rglob("*.css"):
        for url in re.findall(r"url\(\s*[\"']?([^\"')]+)", sheet.read_text(encoding="utf-8")):
            assert url.startswith("data:") or (sheet.parent / url).exists(), f"{sheet.name}: {url}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra `docs`")
def test_a_browser_asks_no_other_host(tmp_path):
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-c", "docs", ".", site], cwd=ROOT, check=True
    )
    other = site / "other.html"
    other.write_text('<img src="http://elsewhere.invalid/image.png">', encoding="utf-8")

    assert browse(other.as_uri(), tmp_path)[1] == {"http://elsewhere.invalid/image.png"}
    for page in ("index.html", "docs/index.html", "docs/differences.html"):
        assert browse((site / page).as_uri(), tmp_path)[1] == set()
    shown, asked = browse(f"{(site / 'search.html').as_uri()}?q=scheduler", tmp_path)
    assert "docs/migrating.html" in shown  # the search works from files
    assert asked == set()


def browse(url: str, folder: Path) -> tuple[str, set[str]]:
    """What a page shows in the end, and what it has asked hosts for; no error on its console."""
    log = folder / "log.json"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += ["--virtual-time-budget=4000", "--enable-logging=stderr", "--dump-dom"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    done = subprocess.run(
        ["chromium", *options, url], capture_output=True, text=True, timeout=120, check=True
    )
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert errors == [] or url.endswith("other.html")
    events = json.loads(log.read_text(encoding="utf-8"))["events"]
    starts = [event["params"] for event in events if "initiator" in event.get("params", {})]
    # What Chromium asks for itself, such as its dictionaries, no origin has initiated.
    return done.stdout, {one["url"] for one in starts if one["initiator"] != "not an origin"}
