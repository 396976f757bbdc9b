"""Which directory may be the cache's: nobody else can write to it, or replace it by another."""

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from tests.attack.entries import needs_root, plant, run
from torchgraph.environment import cache_directory
from torchgraph.errors import BackendWarning, InvalidOption
from torchgraph.lower import DiskCache
from torchgraph.lower.inductor.cache import private, scratch
from torchgraph.lower.inductor.cache.private import NotPrivate, private_directory
from torchgraph.lower.inductor.cache.scratch import Scratch

STRANGER = 12345


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(path: Path) -> str:
    with pytest.raises(NotPrivate) as why:
        private_directory(path)
    return str(why.value)


def test_directories_are_made_for_the_user_alone(tmp_path):
    before = os.umask(0)
    try:
        private_directory(tmp_path / "a" / "b")
        plant(DiskCache(tmp_path / "a" / "b"), "abc", tmp_path / "ran")
    finally:
        os.umask(before)
    everything = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    assert [path for path in everything if mode(path) & 0o077] == []


@pytest.mark.parametrize("bits", [0o777, 0o757, 0o1777])
def test_what_others_may_write_is_refused_and_left(bits, tmp_path):
    root = tmp_path / "cache"
    plant(DiskCache(root), "abc", tmp_path / "ran")
    root.chmod(bits)
    assert "others may write" in refused(root)
    was_found, warned = run(DiskCache(root), "abc")
    assert (was_found, len(warned)) == (False, 1)
    assert mode(root) == bits
    assert (root / "abc").exists()


def test_what_the_group_may_write_is_refused_unless_nobody_else_is_in_it(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o770)
    monkeypatch.setattr(private, "_is_alone_in", lambda group: False)
    assert "others may write" in refused(root)
    monkeypatch.setattr(private, "_is_alone_in", lambda group: True)
    assert mode(private_directory(root)) == 0o700
    root.chmod(0o770)
    monkeypatch.setattr(private, "_has_acl", lambda path: True)
    assert "others may write" in refused(root)


@needs_root
def test_a_group_that_somebody_is_in(tmp_path):
    private._is_alone_in.cache_clear()
    assert not private._is_alone_in(STRANGER)
    assert not private._is_alone_in(1)  # daemon's


@needs_root
@pytest.mark.parametrize("bits", [0o700, 0o755, 0o777, 0o1777])
def test_no_step_on_the_way_belongs_to_another(bits, tmp_path):
    root = tmp_path / "theirs" / "cache"
    root.mkdir(parents=True)
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    (tmp_path / "theirs").chmod(bits)
    assert "theirs belongs to another user" in refused(root)


def test_no_step_on_the_way_is_open_to_all(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "others may write" in refused(tmp_path / "open" / "cache")
    assert list((tmp_path / "open").iterdir()) == []
    (tmp_path / "open").chmod(0o1777)  # as /tmp
    assert private_directory(tmp_path / "open" / "cache") == tmp_path / "open" / "cache"


def test_a_link_is_not_followed_into_a_chmod(tmp_path):
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents").chmod(0o755)
    (tmp_path / "cache").symlink_to("documents")
    assert private_directory(tmp_path / "cache") == tmp_path / "documents"
    assert mode(tmp_path / "documents") == 0o755


def test_a_link_leads_nowhere_that_is_not_private(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "inside").symlink_to("x/../open/")
    (tmp_path / "x").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "inside" / "deep")
    assert "others may write" in refused(tmp_path / "cache")
    (tmp_path / "round").symlink_to("round")
    assert "too many links" in refused(tmp_path / "round" / "cache")


@needs_root
def test_a_link_of_another(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("mine")
    os.chown(tmp_path / "link", STRANGER, STRANGER, follow_symlinks=False)
    assert "link belongs to another user" in refused(tmp_path / "link")


def test_a_directory_that_is_replaced_is_looked_at_again(tmp_path):
    cache = DiskCache(tmp_path / "cache")
    plant(cache, "abc", tmp_path / "ran")
    shutil.rmtree(tmp_path / "cache")
    plant(cache, "abc", tmp_path / "ran")
    assert run(cache, "abc") == (True, [])


@pytest.mark.parametrize("given", ["", "relative/path", "."])
def test_a_relative_xdg_cache_home_counts_as_none(given, monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHGRAPH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "torchgraph"


def test_without_a_home_nothing_is_kept_in_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHGRAPH_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "not/absolute")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(BackendWarning, match="no home directory"):
        plant(DiskCache(), "abc", tmp_path / "ran")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOME", "/")
    assert cache_directory() == Path("/.cache/torchgraph")


def test_a_relative_directory_stays_where_it_was_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", "here")
    monkeypatch.chdir(tmp_path)
    cache = DiskCache()
    monkeypatch.chdir("/")
    assert cache.root == tmp_path / "here"


def test_temporary_files_too_are_only_where_nobody_else_can_put_theirs(monkeypatch, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "open"))
    assert Scratch().path.parent != tmp_path / "open"

    def refuse(path: Path) -> Path:
        raise NotPrivate("others may write")

    monkeypatch.setattr(scratch, "steps_are_safe", refuse)
    with pytest.raises(InvalidOption, match="TMPDIR"):
        Scratch()


def test_what_a_killed_process_has_left_among_temporary_files_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive = Scratch().path
    dead = tmp_path / f"torchgraph-scratch-{os.getpid()}-deadbeef"
    other = tmp_path / "torchgraph-scratch-notes"
    for path in (dead, other):
        path.mkdir(mode=0o700)
    for path in (alive, dead, other):
        os.utime(path, (0, 0))
    Scratch()
    assert [path.exists() for path in (alive, dead, other)] == [True, False, True]
