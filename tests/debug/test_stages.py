import io
import re
import sys
import time

import pytest
from rich.console import Console

from torchgraph.debug.stages import Stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def open_screen(monkeypatch):
    """Gives a function that makes stderr pass for a terminal: pytest sets stderr after fixtures."""

    def open_screen(term="xterm"):
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setenv("TERM", term)
        for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        return sys.stderr

    return open_screen


def compile_once(stages, *, seconds=0.0):
    with stages.stage("building graph", parts=2):
        with stages.part("building graph inputs"):
            time.sleep(seconds)
        with stages.part("building graph modules"):
            pass
    with stages.stage("building plan"):
        pass


def fail(stages, *, seconds=0.0):
    with stages.stage("building graph"):
        time.sleep(seconds)
        raise ValueError("bad")


def test_level_0_prints_the_stages(capsys):
    compile_once(Stages("G_0", "G", 0))
    assert re.sub(r"\d+\.\d\ds", "0.00s", capsys.readouterr().out).splitlines() == [
        "(GRAPH:G_0:G) start building graph.",
        "(GRAPH:G_0:G) building graph Done! Cost time: 0.00s.",
        "(GRAPH:G_0:G) start building plan.",
        "(GRAPH:G_0:G) building plan Done! Cost time: 0.00s.",
    ]


def test_level_1_prints_their_parts(capsys):
    compile_once(Stages("G_0", "G", 1))
    assert capsys.readouterr().out.splitlines()[1:5] == [
        "(GRAPH:G_0:G) start building graph inputs.",
        "(GRAPH:G_0:G) end building graph inputs.",
        "(GRAPH:G_0:G) start building graph modules.",
        "(GRAPH:G_0:G) end building graph modules.",
    ]


def test_silent_by_default(capsys):
    compile_once(Stages("G_0", "G"))
    assert capsys.readouterr() == ("", "")


def test_an_error_is_always_told_on_stderr(capsys):
    stages = Stages("G_0", "G")
    with pytest.raises(ValueError, match="bad"):
        fail(stages)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "[ERROR](GRAPH:G_0:G) building graph got error.\n"


def test_an_error_that_does_not_reach_the_user_is_not_told(capsys):
    stages = Stages("G_0", "G")
    with pytest.raises(ValueError, match="bad"), stages.stage("building graph", goes_on=True):
        raise ValueError("bad")
    assert capsys.readouterr() == ("", "")


def test_the_seconds_are_kept_in_order():
    stages = Stages("G_0", "G")
    compile_once(stages, seconds=0.02)
    assert list(stages.seconds) == [
        "building graph",
        "building graph inputs",
        "building graph modules",
        "building plan",
    ]
    assert stages.seconds["building graph"] >= stages.seconds["building graph inputs"] >= 0.02


def test_a_failed_stage_has_seconds_too():
    stages = Stages("G_0", "G")
    with pytest.raises(ValueError, match="bad"):
        fail(stages, seconds=0.01)
    assert stages.seconds["building graph"] > 0.005


def test_lines_go_to_the_given_console(capsys):
    file = io.StringIO()
    compile_once(Stages("[G]_0", "G", 0, Console(file=file, width=20)))
    assert capsys.readouterr().out == ""
    # Neither wrapped nor read as markup.
    assert file.getvalue().startswith("(GRAPH:[G]_0:G) start building graph.\n")


def test_a_bar_on_a_terminal_when_it_takes_long(open_screen):
    screen = open_screen()
    compile_once(Stages("G_0", "G", patience=0.01), seconds=0.15)
    shown = screen.getvalue()
    assert "G_0: building graph inputs" in shown
    assert shown.endswith(("\x1b[2K", "\x1b[?25h", "\r\x1b[1A\x1b[2K"))  # gone, cursor is back


def test_no_bar_when_it_is_quick(open_screen):
    screen = open_screen()
    compile_once(Stages("G_0", "G", patience=5.0))
    assert screen.getvalue() == ""


def test_no_bar_next_to_lines(open_screen):
    screen = open_screen()
    compile_once(Stages("G_0", "G", 0, patience=0.0), seconds=0.05)
    assert screen.getvalue() == ""


def test_no_bar_in_a_pipe_even_with_forced_colour(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setenv("FORCE_COLOR", "1")
    compile_once(Stages("G_0", "G", patience=0.0), seconds=0.05)
    assert pipe.getvalue() == ""


def test_no_bar_on_a_dumb_terminal(open_screen):
    screen = open_screen("dumb")
    compile_once(Stages("G_0", "G", patience=0.0), seconds=0.05)
    assert screen.getvalue() == ""


def test_the_bar_goes_when_the_stage_fails(open_screen):
    screen = open_screen()
    with pytest.raises(ValueError, match="bad"):
        fail(Stages("G_0", "G", patience=0.0), seconds=0.1)
    shown = screen.getvalue()
    assert "G_0: building graph" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert shown.endswith("[ERROR](GRAPH:G_0:G) building graph got error.\n")  # not wiped with it
