"""Another account of the machine prepares a directory that the user's cache is in later."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.attack.entries import needs_root, plant, run
from torchgraph.lower import DiskCache

pytestmark = [
    needs_root,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(shutil.which("useradd") is None, reason="there is no useradd here"),
]


def said_by(account, roots):
    """What a process that has become the user's says of caches.

    It is forked once all is imported: where Python is, other accounts may not look.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            found = {name: run(DiskCache(root), "abc") for name, root in roots.items()}
            os.write(writer, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said)


@pytest.fixture(scope="module")
def accounts():
    """Two new accounts, the user and the attacker, for the tests of this file."""
    names = [f"tg{role}{os.getpid()}" for role in ("user", "evil")]
    try:
        for name in names:
            subprocess.run(["useradd", "-M", "-U", name], check=True, capture_output=True)
        yield [pwd.getpwnam(name) for name in names]
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)


def as_account(account, *command: str):
    ids = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    subprocess.run(command, check=True, **ids)


class Place:
    """A directory to which everybody comes, and what the two accounts do in it."""

    def __init__(self, path: Path, user, evil) -> None:
        self.path, self.user, self.evil = path, user, evil
        self.roots: dict[str, Path] = {}
        self.ran = path / "ran"
        self.ran.mkdir(mode=0o777)
        self.ran.chmod(0o777)

    def folder(self, name: str, owner, mode: int) -> Path:
        made = self.path / name
        made.mkdir()
        made.chmod(mode)
        os.chown(made, owner.pw_uid, owner.pw_gid)
        return made

    def kept(self, name: str, owner) -> Path:
        """A cache with one entry that the owner's process has made."""
        root = self.folder(f"kept by {name}", owner, 0o700)
        plant(DiskCache(root.parent / f"{root.name} by root"), "abc", self.ran / name)
        made = root.parent / f"{root.name} by root"
        for part in made.iterdir():
            part.rename(root / part.name)
        for part in root.rglob("*"):
            os.chown(part, owner.pw_uid, owner.pw_gid)
        return root

    def cache(self, name: str, mode: int, *, of_user: bool = True) -> Path:
        """A directory for the user's cache, in which the attacker has put an entry of his."""
        root = self.folder(name, self.user if of_user else self.evil, mode)
        theirs = self.kept(name, self.evil)
        as_account(self.evil, "cp", "-r", f"{theirs}/.", str(root))
        as_account(self.evil, "chmod", "-R", "a+rX", str(root / "abc"))
        self.roots[name] = root
        return root


@pytest.fixture(scope="module")
def found(accounts):
    """What the user's process says of each cache, and what ran meanwhile."""
    path = Path(tempfile.mkdtemp(prefix="torchgraph-attack-"))
    path.chmod(0o755)
    try:
        place = Place(path, *accounts)
        user, evil = accounts
        place.roots["his own"] = place.kept("his own", user)
        place.cache("open", 0o777)
        place.cache("closed later", 0o777).chmod(0o700)
        place.cache("made first", 0o755, of_user=False)

        home = place.folder("home of another", evil, 0o755)
        inside = place.kept("inside", user)
        inside.rename(home / "cache")
        place.roots["inside"] = home / "cache"

        crowded = place.folder("crowded", evil, 0o777)
        os.chown(crowded, 0, 0)
        crowded.chmod(0o1777)
        precious = place.folder("precious", user, 0o755)
        as_account(evil, "ln", "-s", str(precious), str(crowded / "torchgraph"))
        place.roots["link"] = crowded / "torchgraph"

        said = said_by(user, place.roots)
        yield place, said, {one.name for one in place.ran.iterdir()}
    finally:
        shutil.rmtree(path)


def test_what_the_user_made_runs(found):
    _, said, ran = found
    assert said["his own"] == [True, []]
    assert "his own" in ran


def test_nothing_else_runs(found):
    _, _, ran = found
    assert ran == {"his own"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("open", "others may write"),
        ("closed later", "abc belongs to another user"),
        ("made first", "belongs to another user"),
        ("inside", "home of another belongs to another user"),
        ("link", "belongs to another user"),
    ],
)
def test_a_prepared_directory_is_not_used(found, name, why):
    _, said, _ = found
    was_found, warnings = said[name]
    assert not was_found
    assert len(warnings) == 1
    assert why in warnings[0]


def test_nothing_of_others_is_changed(found):
    place, _, _ = found
    assert (place.path / "precious").stat().st_mode & 0o777 == 0o755
    assert (place.roots["made first"] / "abc").stat().st_uid == place.evil.pw_uid
    assert (place.roots["closed later"] / "abc" / "manifest.json").exists()
    assert place.roots["open"].stat().st_mode & 0o777 == 0o777
