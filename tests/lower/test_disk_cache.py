"""Compiled code on disk: whole or not there, the user's own, two writers at once."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchgraph.environment import cache_directory, cache_limit
from torchgraph.errors import BackendWarning, InvalidOption
from torchgraph.lower import DiskCache
from torchgraph.lower.inductor.cache.entries import entries, shrink

SCRATCH = f"torchgraph-scratch-{os.getpid()}-abcd1234"


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "cache")


def make(cache, key="abc", text="code"):
    made = cache.begin()
    (made / "sub").mkdir()
    (made / "sub" / "code.so").write_text(text)
    return cache.keep(made, key)


def test_an_entry_is_found_again(cache, tmp_path):
    entry = make(cache)
    assert cache.find("abc") == entry
    assert DiskCache(tmp_path / "cache").find("abc") == entry
    assert cache.find("other") is None
    assert (entry / "sub" / "code.so").read_text() == "code"


def test_the_directory_is_the_users_own(cache, tmp_path):
    make(cache)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache").chmod(0o755)
    make(DiskCache(tmp_path / "cache"), "def")
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_nothing_is_made_before_it_is_needed(tmp_path):
    DiskCache(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_of_two_writers_the_first_stays(cache):
    one, other = cache.begin(), cache.begin()
    (one / "code").write_text("first")
    (other / "code").write_text("second")
    entry = cache.keep(one, "abc")
    assert cache.keep(other, "abc") == entry
    assert (entry / "code").read_text() == "first"
    assert not other.exists()


MAKER = """
import sys, time
from pathlib import Path
from torchgraph.lower import DiskCache

made = DiskCache(Path(sys.argv[1])).begin()
(made / "half").write_text("of it")
print(made, flush=True)
time.sleep(60)
"""


def aged(folder: Path) -> None:
    hour_ago = time.time() - 3600
    os.utime(folder, (hour_ago, hour_ago))


def test_what_a_killed_process_left_is_removed(cache):
    root = make(cache).parent
    with subprocess.Popen(
        [sys.executable, "-c", MAKER, str(root)], stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        left = Path(maker.stdout.readline().strip())
        aged(left)
        make(cache, "while it lives")
        assert (left / "half").read_text() == "of it"
        maker.send_signal(signal.SIGKILL)
        maker.wait()
    aged(left)
    make(cache, "after it")
    assert not left.exists()
    names = ["abc", "after it", "while it lives"]
    assert sorted(path.name for path in root.iterdir()) == names


def test_the_next_start_removes_what_a_killed_process_left(cache):
    root = make(cache).parent
    for name in (SCRATCH, "torchgraph-scratch-of-the-film"):
        (root / name).mkdir(mode=0o700)
        aged(root / name)
    assert DiskCache(root).find("abc") is not None
    names = ["abc", "torchgraph-scratch-of-the-film"]
    assert sorted(path.name for path in root.iterdir()) == names


def test_what_was_just_begun_stays(cache):
    """Another process may be about to lock it."""
    young = make(cache).parent / SCRATCH
    young.mkdir(mode=0o700)
    make(cache, "def")
    assert young.exists()
    aged(young)
    make(cache, "ghi")
    assert not young.exists()


def test_without_locks_nothing_is_removed(cache, monkeypatch):
    old = make(cache).parent / SCRATCH
    old.mkdir(mode=0o700)
    aged(old)

    def refuse(*_: object):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert make(cache, "def").exists()
    assert old.exists()


def test_an_entry_gives_its_lock_back(cache):
    entry = make(cache)
    handle = os.open(entry, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def used(entry: Path, seconds_ago: float) -> None:
    then = time.time() - seconds_ago
    os.utime(entry / "manifest.json", (then, then))


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A cache for two entries of a kilobyte."""
    monkeypatch.setenv("TORCHGRAPH_CACHE_LIMIT", "3.5kB")
    return DiskCache(tmp_path / "cache")


def kept(root):
    return {path.name for path in root.iterdir()}


def test_the_least_recently_used_goes(small):
    for age, key in enumerate("abcd"):
        used(make(small, key, "x" * 1000), 4000 - 1000 * age)
    root = small.root
    assert kept(root) == {"c", "d"}
    other = DiskCache(root)
    assert other.find("c") is not None
    del other
    make(small, "e", "x" * 1000)
    assert kept(root) == {"c", "e"}


def test_what_was_used_a_moment_ago_stays(small):
    for key in "abcd":
        make(small, key, "x" * 1000)
    assert kept(small.root) == set("abcd")


def test_what_a_process_has_found_stays_as_long_as_it_wants(small):
    used(make(small, "a", "x" * 1000), 1000)
    finder = DiskCache(small.root)
    found = finder.find("a")
    used(found, 9000)
    for key in "bcd":
        used(make(small, key, "x" * 1000), 1000)
    assert "a" in kept(small.root)
    del finder
    make(small, "e", "x" * 1000)
    assert "a" not in kept(small.root)


def test_an_entry_that_is_being_removed_is_not_there(cache):
    entry = make(cache)
    handle = os.open(entry, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert cache.find("abc") is None
    os.close(handle)
    assert cache.find("abc") == entry


@pytest.mark.parametrize("torch", ["NaN", "[]", "-1", "{}", "null", "9" * 400])
def test_what_a_manifest_says_is_not_taken_for_granted(torch, small):
    manifest = make(small, "a") / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(re.sub(r'"torch": "[^"]*"', f'"torch": {torch}', text))
    assert manifest.read_text() != text
    make(small, "b")
    assert entries(small.root)[0].torch == ""
    assert {entry.path.name for entry in entries(small.root)} == {"a", "b"}


def test_what_else_lies_there_is_no_entry(small):
    """Somebody may have named his home as the cache's directory."""
    (small.root / "photos").mkdir()
    (small.root / "photos" / "one").write_bytes(b"x" * 9000)
    (small.root / "manifest.json").write_text("{}")
    (small.root / "loop").symlink_to(small.root)
    make(small, "a", "x" * 1000)
    assert kept(small.root) == {"photos", "manifest.json", "loop", "a"}
    assert shrink(small.root, -1)
    assert kept(small.root) == {"photos", "manifest.json", "loop"}


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("0", 0), ("12", 12), ("12 B", 12), ("500MB", 500_000_000), ("1.5 kib", 1536),
        ("2GiB", 2 << 30), ("", 2 << 30), ("1T", 10**12),
    ],
)  # fmt: skip
def test_a_limit(given, size, monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_CACHE_LIMIT", given)
    assert cache_limit() == size


@pytest.mark.parametrize(
    "given", ["-1", "much", "1e9", "inf", "nan", "5 i", "2 XB", "٣", "1.", ".5", "1 2", "9" * 99]
)
def test_a_limit_that_is_none(given, monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_CACHE_LIMIT", given)
    with pytest.raises(InvalidOption, match="TORCHGRAPH_CACHE_LIMIT"):
        DiskCache()


def test_a_directory_that_cannot_be_used(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("mine")
    cache = DiskCache(occupied)
    with pytest.warns(BackendWarning, match="TORCHGRAPH_CACHE_DIR"):
        entry = make(cache)
    assert cache.find("abc") == entry
    assert occupied.read_text() == "mine"
    assert entry.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a directory away")
def test_a_directory_of_another_user(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    with pytest.warns(BackendWarning, match="another user"):
        make(DiskCache(theirs))
    assert list(theirs.iterdir()) == []


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHGRAPH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "torchgraph"
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
