"""An entry that Inductor made: each file of it counts, and loading it adds none."""

import shutil
import sys

import pytest

from tests.attack.entries import run
from tests.lower.test_job import linear_relu
from torchgraph.lower import DiskCache
from torchgraph.lower.inductor import job
from torchgraph.lower.inductor.cache.entries import problem
from torchgraph.lower.inductor.job import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit"),  # Inductor's own
    pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cache, a job with an entry in it, the entry, and what was opened while it was loaded."""
    cache = DiskCache(tmp_path_factory.mktemp("real") / "cache")
    region, inputs, expected = linear_relu()
    one = Job.of(region, eager_draws=True)
    making = cache.begin()
    one.compile_into(making)
    entry = cache.keep(making, one.key())
    return cache, one, entry, inputs, expected


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_loading_reads_nothing_but_the_copy(made, tmp_path, monkeypatch):
    cache, one, entry, inputs, expected = made
    opened: list[str] = []
    listening = [True]

    def hear(event, arguments):
        if listening and event == "open" and isinstance(arguments[0], str):
            opened.append(arguments[0])

    sys.addaudithook(hear)  # there is no way to take it away: it only falls silent
    before = names(entry)
    found = one.load(shutil.copytree(cache.find(one.key()), tmp_path / entry.name))(*inputs)[0]
    listening.clear()
    assert (found - expected).abs().max() < 1e-5
    assert names(entry) == before
    # Whatever it could have compiled was there: another process loads as fast.
    assert names(tmp_path / entry.name) | {"manifest.json"} == before
    strange = [path for path in opened if path.startswith("/tmp/torchinductor")]
    assert strange == []


def test_each_of_its_files_counts(made, tmp_path):
    _, one, entry, *_ = made
    assert problem(entry, one.key()) == ""
    files = sorted(path.relative_to(entry) for path in entry.rglob("*") if path.is_file())
    assert {".so", ".cpp", ".json"} <= {path.suffix for path in files}
    for file in files:
        copy = tmp_path / "copy"
        shutil.copytree(entry, copy)
        data = (copy / file).read_bytes()
        (copy / file).write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if data else b"x")
        assert problem(copy, one.key()), file
        shutil.rmtree(copy)


def test_a_tampered_entry_is_compiled_anew(made):
    cache, one, entry, *_ = made
    library = next(entry.rglob("*.so"))
    (library.parent / library.name.replace(".so", ".main.so")).write_bytes(library.read_bytes())
    was_found, warned = run(cache, one.key())
    assert (was_found, len(warned)) == (False, 1)
    assert not entry.exists()
