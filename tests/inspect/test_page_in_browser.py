"""Pages in a real browser: they open, are searched, filtered, folded, and fetch nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support import build
from torchgraph.inspect.page import page as pages
from torchgraph.inspect.page.data import Shown
from torchgraph.inspect.page.source import ModuleRow, Programs, Source
from torchgraph.inspect.report import Report
from torchgraph.ir import text
from torchgraph.lower.inplace.reinplace import reinplace
from torchgraph.options.options import Options, PassOptions
from torchgraph.passes import pipeline, run

from .chromium import PATH, Page, page
from .models import batch, trainer
from .pages import HOSTILE, hostile, in_eager

pytestmark = pytest.mark.skipif(not PATH, reason="no chromium is installed")
SECONDS = 2.0
"""In which a page is open, its plots drawn."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    with page(tmp_path_factory.mktemp("profile")) as opened:
        opened.listen()
        yield opened


@pytest.fixture(scope="module")
def report() -> Report:
    graph = trainer()
    graph.config.set_backend("aten")
    for _ in range(4):
        graph(*batch(4))
    return graph.report()


def opened(browser: Page, path: Path) -> float:
    """Open a page, and wait for its plots; what that took."""
    browser.size(1280, 900)
    browser.events.clear()
    start = time.monotonic()
    browser.go(path.as_uri())
    there = f"location.href === {path.as_uri()!r} && document.documentElement?.dataset.ready"
    browser.wait(there, 30)
    return time.monotonic() - start


def complaints(browser: Page) -> list[dict]:
    """Exceptions, what was written to the console, and what the policy refused."""
    kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
    return [event for event in browser.events if event["method"] in kinds]


def requests(browser: Page) -> list[str]:
    sent = [e for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    urls = [event["params"]["request"]["url"] for event in sent]
    entries = "performance.getEntriesByType('resource').map(one => one.name)"
    return [*urls, *browser.value(entries)]


@pytest.fixture
def shown(browser, report, tmp_path) -> Page:
    report.save_html(tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    return browser


def typed(browser: Page, name: str, value: str) -> None:
    """Set an input, as somebody who types does."""
    event = "change" if name in ("phase", "kind", "by", "order") else "input"
    browser.value(
        f"(() => {{ const one = document.getElementById({name!r}); one.value = {value!r};"
        f" one.dispatchEvent(new Event({event!r})); }})()"
    )


def names(browser: Page) -> list[str]:
    return browser.value("[...document.querySelectorAll('[data-op]')].map(one => one.dataset.op)")


def visible(browser: Page) -> list[str]:
    return browser.value("[...document.querySelectorAll('tr[data-path]')].map(r => r.dataset.path)")


def clicked(browser: Page, selector: str) -> None:
    browser.value(f"document.querySelector({selector!r}).click()")


def test_it_opens_without_a_complaint_and_asks_no_host(browser, report, tmp_path):
    report.save_html(tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    plots = "[...document.querySelectorAll('.plot svg')].length"

    assert complaints(browser) == []
    assert requests(browser) == [(tmp_path / "page.html").as_uri()]
    assert browser.value("document.title") == f"{report.name}: torchgraph"
    assert browser.value(plots) == 4
    assert browser.value("[...document.querySelectorAll('nav a')].map(a => a.textContent)") == [
        *("Overview", "Modules", "Ops", "Passes", "Memory", "Time", "Guards", "Programs"),
        "Refusals",
    ]


def test_nothing_can_be_fetched_from_it(shown):
    """The policy of the page itself refuses it, and a script that it does not name."""
    asked = "fetch('http://127.0.0.1:9/').then(() => 'came', () => 'refused')"
    added = (
        "(() => { const one = document.createElement('script'); one.textContent = 'hacked = 1';"
        " document.body.append(one); return typeof hacked; })()"
    )
    assert shown.value(asked) == "refused"
    assert shown.value(added) == "undefined"
    policy = [e for e in complaints(shown) if "Content Security Policy" in str(e)]
    assert len(policy) >= 2


def said_of(browser: Page, name: str) -> str:
    """The text of an op and the user's lines that it comes from."""
    at = f"data.ops.name.indexOf({name!r})"
    lines = f"(data.stacks[data.ops.stack[{at}]] || []).map(n => data.lines[n][3])"
    return browser.value(f"[data.ops.text[{at}], ...{lines}].join(' ')")


def test_search(shown):
    everything = names(shown)
    typed(shown, "search", "relu")
    found = names(shown)

    assert 0 < len(found) < len(everything)
    assert set(found) == {one for one in everything if "relu" in said_of(shown, one)}
    assert "relu_default" in found
    assert shown.value("document.getElementById('found').textContent").startswith(
        f"{len(found)} of"
    )
    typed(shown, "search", "self.drop(torch.relu model.fc")  # a line of the user's, a module
    assert names(shown) != []
    typed(shown, "search", "no such thing")
    assert names(shown) == []


def test_filters(shown):
    everything = names(shown)
    typed(shown, "phase", "backward")
    backward = names(shown)
    typed(shown, "module", "model.head")
    both = names(shown)
    typed(shown, "kind", "mm")
    three = names(shown)

    assert set(everything) > set(backward) > set(both) > set(three) != set()
    phases = "[...document.querySelectorAll('[data-op] td:nth-child(3)')].map(c => c.textContent)"
    assert set(shown.value(phases)) == {"backward"}
    modules = "[...document.querySelectorAll('[data-op] td:nth-child(4)')].map(c => c.textContent)"
    assert set(shown.value(modules)) == {"model.head"}
    clicked(shown, ".bar > button")
    shown.value(
        "[...document.querySelectorAll('button')].find(b => b.textContent === 'reset').click()"
    )
    assert names(shown) == everything


def test_a_filter_by_pass(shown, report):
    options = shown.value("[...document.getElementById('by').options].map(one => one.value)")
    assert "capture" in options
    typed(shown, "by", options[-1])
    made = "[...document.querySelectorAll('[data-op] td:nth-child(6)')].map(c => c.textContent)"
    assert set(shown.value(made)) == {options[-1]}


def test_order(shown):
    typed(shown, "order", "bytes")
    moved = shown.value("Object.fromEntries(data.ops.name.map((n, i) => [n, data.ops.bytes[i]]))")
    found = [moved[name] for name in names(shown)]
    assert found == sorted(found, reverse=True)


def test_a_click_on_a_node_shows_its_line(shown):
    clicked(shown, "[data-op=relu_default] button")
    line = "document.querySelector('.detail .line').textContent"
    detail = "document.querySelector('.detail').textContent"

    assert shown.value(line) == "hidden = self.drop(torch.relu(self.norm(self.fc(x))))"
    assert "models.py:" in shown.value(detail)
    assert "aten.relu.default(" in shown.value(detail)
    clicked(shown, "[data-op=relu_default] button")
    assert shown.value("document.querySelector('.detail')") is None


def test_modules_fold(shown):
    everything = visible(shown)
    clicked(shown, "tr[data-path=model] .fold")
    folded = visible(shown)
    clicked(shown, "tr[data-path=model] .fold")

    assert {"model", "model.fc", "model.head"} < set(everything)
    assert folded == ["model", ""]
    assert visible(shown) == everything


def test_a_module_shows_its_ops(shown):
    clicked(shown, "tr[data-path='model.norm'] .plain")
    assert shown.value("document.getElementById('module').value") == "model.norm"
    assert any("batch_norm" in name for name in names(shown))


def test_a_pass_shows_what_it_changed(shown, report):
    changed = "dce"
    assert next(one for one in report.passes if one.name == changed).edits
    selector = f"[data-pass={changed}]"
    assert shown.value(f"document.querySelectorAll('{selector} .removed').length") == 0
    shown.value(f"document.querySelector('{selector}').open = true")
    shown.wait(f"!!document.querySelector('{selector} .diff')", 10)
    count = "document.querySelectorAll('{} .removed, {} .added').length"
    assert shown.value(count.format(selector, selector)) > 0


def test_the_mouse_on_the_plot_of_memory(shown):
    """Over it the op is told, a click leads to the op."""
    plot = "document.querySelector('#plot-memory svg')"
    shown.value(f"{plot}.scrollIntoView({{block: 'center'}})")
    box = shown.value(f"{plot}.getBoundingClientRect().toJSON()")
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    told = ""
    while "node" not in told:  # until the page has come to rest
        shown.do("Input.dispatchMouseEvent", type="mouseMoved", **place)
        told = shown.value("document.querySelector('.vg-tooltip.visible')?.textContent || ''")
    for kind in ("mousePressed", "mouseReleased"):
        shown.do("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    shown.wait("!!document.querySelector('tr.open')", 10)

    assert shown.value("document.querySelector('tr.open').dataset.op") in told


def test_hostile_names_are_text(browser, tmp_path):
    report = hostile()
    report.save_html(tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    browser.value("document.querySelectorAll('[data-op] button').forEach(one => one.click())")
    browser.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")

    assert browser.value("typeof hacked") == "undefined"
    assert complaints(browser) == []
    assert requests(browser) == [(tmp_path / "page.html").as_uri()]
    assert browser.value("document.querySelector('h1').textContent") == report.name
    assert f"model.{HOSTILE}" in visible(browser)
    assert (
        browser.value("document.querySelectorAll('img, main script, main b[onmouseover]').length")
        == 0
    )


def test_a_graph_in_eager(browser, tmp_path):
    in_eager().save_html(tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    assert complaints(browser) == []
    assert "calls .numpy()" in browser.value("document.getElementById('top').textContent")
    assert visible(browser) == ["model", "model.0", "model.1"]


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_screen_and_can_be_read(shown, width, dark):
    shown.size(width, 900, dark=dark)
    shown.wait(f"document.querySelector('.plot svg').clientWidth <= {width}", 10)
    style = "getComputedStyle(document.body).{}.match(/\\d+/g).map(Number)"
    text, back = (shown.value(style.format(name)) for name in ("color", "backgroundColor"))

    assert shown.value("document.documentElement.scrollWidth") <= width
    assert contrast(text, back) > 7
    assert (sum(back) < sum(text)) is dark


def contrast(one: list[int], other: list[int]) -> float:
    """That of WCAG 2: from 1 to 21."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: list[int]) -> float:
    parts = [c / 255 for c in colour[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_it_prints(shown):
    printed = shown.do("Page.printToPDF")["data"]
    assert len(printed) > 10_000


def large(nodes: int) -> Shown:
    """A page of a generated program, half of which `cse` removes what it was captured with."""

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        for number in range(nodes // 4):
            x = torch.sin(x * (1 + number)) + torch.sin(x * (1 + number))
        return [x]

    captured = build(step, torch.zeros(64, 64))
    options = Options(passes=PassOptions(verify="fast"))
    passes = pipeline(options)
    final = run(captured, passes, options.passes)
    programs = Programs(captured, final, (reinplace(final),), (), passes, options, False)
    rows = tuple(ModuleRow(f"model.{i}" if i else "model", "Layer()", 3) for i in range(nodes // 5))
    return Shown("Large_0", Source(rows, programs), (), (), tuple(final.history))


@pytest.mark.parametrize("nodes", [400, pytest.param(7000, marks=pytest.mark.slow)])
def test_a_large_program_opens_soon(browser, tmp_path, nodes):
    path = tmp_path / "page.html"
    shown = large(nodes)
    pages.save_html(path, shown, None)
    took = opened(browser, path)

    assert shown.source.programs.final.count() >= 0.7 * nodes
    assert path.stat().st_size <= 5_000_000
    assert took <= SECONDS
    assert complaints(browser) == []
    assert len(names(browser)) == 40, "rows are drawn when they are asked for"
    typed(browser, "search", "sin")
    said = text.render(shown.source.programs.final).splitlines()
    found = sum("sin" in line for line in said if " = aten." in line)
    assert browser.value("document.getElementById('found').textContent").startswith(
        f"{found:,} of {shown.source.programs.final.count():,} ops"
    )
