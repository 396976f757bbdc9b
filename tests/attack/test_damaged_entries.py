"""Three hundred damaged entries from a seed: none is used, nothing runs, and others still work."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.attack.entries import CODE, plant, run
from torchgraph.lower import DiskCache

SEED, CASES = 20261126, 300


def flip(entry: Path, draw: random.Random) -> None:
    file = draw.choice([p for p in sorted(entry.rglob("*")) if p.is_file()])
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def truncate(entry: Path, draw: random.Random) -> None:
    file = draw.choice([p for p in sorted(entry.rglob("*")) if p.is_file()])
    os.truncate(file, draw.randrange(file.stat().st_size))


def lose(entry: Path, draw: random.Random) -> None:
    draw.choice([p for p in sorted(entry.rglob("*")) if p.is_file()]).unlink()


def add_file(entry: Path, draw: random.Random) -> None:
    folder = draw.choice([entry, entry / "kernel"])
    (folder / draw.choice(["more.py", "a.main.so", ".x", "ä", "x\nz", "__init__.py"])).write_text(
        (entry / CODE).read_text()
    )


def add_folder(entry: Path, draw: random.Random) -> None:
    (entry / draw.choice(["kernel/locks", "python"])).mkdir()


def rewrite(entry: Path, draw: random.Random) -> None:
    """Other code of the same length, as old as before."""
    code, then = entry / CODE, (entry / CODE).stat()
    code.write_bytes(code.read_bytes().replace(b"close", b"clos3"))
    os.utime(code, ns=(then.st_atime_ns, then.st_mtime_ns))


def change_manifest(entry: Path, draw: random.Random) -> None:
    path = entry / "manifest.json"
    said = json.loads(path.read_text())
    name = draw.choice(sorted(said))
    said[name] = draw.choice([None, 1, "", [], {}, "é", [[]], True, {"options.json": 3}])
    path.write_text(json.dumps(said))


def shorten_manifest(entry: Path, draw: random.Random) -> None:
    path = entry / "manifest.json"
    said = json.loads(path.read_text())
    del said[draw.choice(sorted(said))]
    path.write_text(json.dumps(said))


def replace_manifest(entry: Path, draw: random.Random) -> None:
    texts = ["", "[" * 100_000, "null", "3", '"a"', "{}", "[]", "\x00", "{" * 9]
    texts.append('{"checksum": NaN}')
    (entry / "manifest.json").write_text(draw.choice(texts))


def swap(entry: Path, draw: random.Random) -> None:
    """A good entry under another key."""
    shutil.rmtree(entry)
    shutil.copytree(entry.parent / "good", entry)


def link_file(entry: Path, draw: random.Random) -> None:
    """The same bytes, but somewhere else."""
    file = draw.choice([entry / CODE, entry / "options.json", entry / "manifest.json"])
    aside = entry.parent.parent / f"{draw.random()}"
    file.rename(aside)
    draw.choice([os.symlink, os.link])(aside, file)


def link_entry(entry: Path, draw: random.Random) -> None:
    aside = entry.parent.parent / f"{draw.random()}"
    entry.rename(aside)
    entry.symlink_to(aside)


def replace_entry(entry: Path, draw: random.Random) -> None:
    shutil.rmtree(entry)
    draw.choice([Path.touch, Path.mkdir, os.mkfifo])(entry)


def replace_file(entry: Path, draw: random.Random) -> None:
    file = draw.choice([entry / CODE, entry / "options.json", entry / "manifest.json"])
    file.unlink()
    draw.choice([Path.mkdir, os.mkfifo])(file)


def open_up(entry: Path, draw: random.Random) -> None:
    path = draw.choice([entry, *sorted(entry.rglob("*"))])
    path.chmod(path.stat().st_mode | draw.choice([0o020, 0o002, 0o022]))


def give_away(entry: Path, draw: random.Random) -> None:
    os.chown(draw.choice([entry, *sorted(entry.rglob("*"))]), draw.randrange(1, 60_000), -1)


HARMS = [
    *(flip, truncate, lose, add_file, add_folder, rewrite, change_manifest),
    *(shorten_manifest, replace_manifest, swap, link_file, link_entry, replace_entry),
    *(replace_file, open_up),
    *([give_away] if os.geteuid() == 0 else []),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_damaged_entry_is_not_used(harm, place):
    cache = DiskCache(place / "cache")
    if cache.find("good") is None:
        plant(cache, "good", place / "good ran")
    draw = random.Random(f"{SEED} {harm.__name__}")
    for number in range(CASES // len(HARMS) + 1):
        key, ran = f"{harm.__name__} {number}", place / "ran"
        entry = plant(cache, key, ran)
        harm(entry, draw)
        was_found, warned = run(DiskCache(place / "cache"), key)
        assert not was_found, key
        assert len(warned) == 1, key
        assert not ran.exists(), key
    assert run(cache, "good") == (True, [])
    assert (place / "good ran").exists()


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_it_is_made_anew_unless_it_is_somebody_elses(harm, place):
    cache = DiskCache(place / "again")
    plant(cache, "good", place / "good ran")
    entry = plant(cache, "abc", place / "ran again")
    harm(entry, random.Random(harm.__name__))
    run(cache, "abc")
    assert os.path.lexists(entry) == (harm is give_away)
    if harm is not give_away:
        assert run(cache, "abc") == (False, [])  # it was told of once
        plant(cache, "abc", place / "ran again")
        assert run(cache, "abc") == (True, [])
    shutil.rmtree(place / "again")
