"""Directories that are cut, changed, mixed or forged: each is refused, and nothing of them runs."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import shutil
import sys

import pytest
import torch

import torchgraph as tg
from tests.saved.cases import CASES, ran
from torchgraph.errors import CheckpointDamaged, CheckpointFileError, CheckpointNotFound
from torchgraph.saved import directory

FILES = ("manifest.json", "program.json", "program.py", "weights.safetensors")
WATCHED = ("exec", "import", "pickle.find_class", "marshal.loads", "subprocess.Popen", "os.system")
events: list[str] = []
watching = False


def _watch(event, args):
    # What a load does by itself is known below; what a directory could make it do is not.
    if watching and event in WATCHED:
        events.append(f"{event} {str(args)[:100]}")


sys.addaudithook(_watch)


@pytest.fixture
def broken(saved, tmp_path):
    """A copy to be damaged."""
    shutil.copytree(saved, tmp_path / "graph")
    return tmp_path / "graph"


def refused(path, match=None):
    global watching
    events.clear()
    watching = True
    try:
        with pytest.raises(CheckpointDamaged, match=match) as found:
            tg.load(path)
    finally:
        watching = False
    assert str(path) in str(found.value)
    assert not events


def damages(chance, name, size):
    """25 ways to damage a file: cuts, flipped bits, bytes in other places."""
    for length in [0, 1, size - 1, *(chance.randrange(size) for _ in range(6))]:
        yield lambda content, length=length: content[:length]
    for place in [0, size - 1, *(chance.randrange(size) for _ in range(10))]:
        bit = 1 << chance.randrange(8)
        yield (
            lambda content, place=place, bit=bit: (
                content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
            )
        )
    for _ in range(3):
        one, other = sorted(chance.sample(range(size - 1), 2))
        yield (
            lambda content, one=one, other=other: (
                content[other:] + content[one:other] + content[:one]
            )
        )
    yield lambda content: content + b"\0"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_found(name, seed, broken):
    content = (broken / name).read_bytes()
    chance = random.Random(f"{name} {seed}")
    count = 0
    for damage in damages(chance, name, len(content)):
        changed = damage(content)
        if changed != content:
            (broken / name).write_bytes(changed)
            refused(broken)
            count += 1
    assert count >= 20  # 4 files, 3 seeds: 240 and more; with those below over 300
    (broken / name).write_bytes(content)
    tg.load(broken)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "graph"
    tg.save(ran(*CASES["optimizer_adam"]()), path)
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_graph_is_found(name, broken, other):
    shutil.copy(other / name, broken / name)
    refused(broken)


@pytest.mark.parametrize("one", FILES)
@pytest.mark.parametrize("two", FILES)
def test_files_that_changed_places_are_found(one, two, broken):
    if one < two:
        first, second = (broken / one).read_bytes(), (broken / two).read_bytes()
        (broken / one).write_bytes(second)
        (broken / two).write_bytes(first)
        refused(broken)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(name, broken):
    (broken / name).unlink()
    refused(broken, name)


@pytest.mark.parametrize("name", ["more.txt", "compiled/abc/x.so", "data.pkl", "__init__.py"])
def test_a_file_more_is_named(name, broken):
    (broken / name).parent.mkdir(parents=True, exist_ok=True)
    (broken / name).write_bytes(b"")
    refused(broken, name)


def test_a_link_in_place_of_a_file_is_refused(broken, tmp_path):
    (broken / "program.py").rename(tmp_path / "program.py")
    (broken / "program.py").symlink_to(tmp_path / "program.py")
    refused(broken, "no file")


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def resigned(path, files, without=""):
    """Change files as who can write a manifest, too; ``without``: a key that it lacks then."""
    about = directory.reading(str(path), lambda found: found.about)
    about = {key: value for key, value in about.items() if key != without}
    contents = {name: (path / name).read_bytes() for name in FILES[1:]}
    contents.update(files)
    writers = {n: lambda file, content=c: file.write(content) for n, c in contents.items()}
    directory.write(str(path), about, writers)


def test_a_pickle_is_never_read(broken):
    resigned(broken, {"weights.safetensors": pickle.dumps(Evil())})
    refused(broken)
    file = io.BytesIO()
    torch.save(Evil(), file)
    resigned(broken, {"weights.safetensors": file.getvalue()})
    refused(broken, "torch.save")


def programs_with(path, old, new):
    content = (path / "program.json").read_text(encoding="utf-8")
    assert old in content
    return content.replace(old, new).encode()


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('{"op":"aten::relu"}', '{"op":"aten::from_file"}', "no op that a program may call"),
        ('{"op":"aten::relu"}', '{"op":"aten::nothing"}', "no op that a program may call"),
        ('{"op":"aten::relu"}', '{"op":"mylib::evil"}', "of the ops mylib"),
        ('{"op":"aten::relu"}', '{"op":"aten::__class__"}', "no op that a program may call"),
        ('{"op":"aten::relu"}', '{"function":"os.system"}', "not a function of numbers"),
        ('{"op":"aten::relu"}', '{"function":"builtins.eval"}', "not a function of numbers"),
        ('{"op":"aten::relu"}', '{"op":"aten::relu_"}', None),
        ('["kind","SequentialLR"]', '["kind","LambdaLR"]', "no schedule of torch"),
    ],
)
def test_a_forged_program_calls_nothing_but_ops(old, new, match, broken):
    resigned(broken, {"program.json": programs_with(broken, old, new)})
    refused(broken, match)


def test_a_forged_shape_is_refused(broken):
    content = json.loads((broken / "program.json").read_text(encoding="utf-8"))
    text = json.dumps(content).replace('"shape", {"tuple": [8, 4]}', '"shape", {"tuple": [8, 5]}')
    assert text != json.dumps(content)
    resigned(broken, {"program.json": text.encode()})
    refused(broken)


def test_what_is_no_saved_graph_is_refused(tmp_path):
    with pytest.raises(CheckpointNotFound):
        tg.load(tmp_path / "nothing")
    refused(tmp_path, "no manifest.json")
    (tmp_path / "manifest.json").write_text("{}")
    refused(tmp_path, "not one that torchgraph.save has written")


def test_another_format_is_named(broken):
    text = (broken / "manifest.json").read_text(encoding="utf-8")
    text = text.replace('"format": "1"', '"format": "9"')
    start = len('{\n  "sha256": "')
    blank = f"{text[:start]}{'0' * 64}{text[start + 64 :]}"
    digest = hashlib.sha256(blank.encode()).hexdigest()
    (broken / "manifest.json").write_text(f"{text[:start]}{digest}{text[start + 64 :]}")
    refused(broken, "format '9'")


def test_other_files_are_not_replaced(tmp_path, saved):
    graph = tg.load(saved)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("three years")
    (tmp_path / "file").write_text("important")
    for name in ("folder", "file"):
        with pytest.raises(CheckpointFileError):
            tg.save(graph, tmp_path / name)
    with pytest.raises(CheckpointFileError):
        tg.save(graph, tmp_path / "no" / "such" / "folder")
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "three years"
    assert (tmp_path / "file").read_text() == "important"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
