"""A directory that is there whole or not at all, with a manifest that has the hash of each file.

::

    manifest.json   "sha256" (of this file, with zeros in place of its own 64 digits), "format",
                    what the directory holds, in words, and the SHA-256 of each other file
    ...             the other files
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..artifact.files import refused
from ..errors import CheckpointDamaged, CheckpointFileError, CheckpointNotFound

FORMAT = "1"
MANIFEST = "manifest.json"
COMPILED = "compiled"
"""The folder of compiled code in it."""
_MAKING = ".torchgraph-save-"
_START = '{\n  "sha256": "'
_ZEROS = "0" * 64
_LONGEST = 100_000_000
"""Bytes of a manifest, and of a file of JSON."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", re.ASCII)
_AT_FDCWD, _EXCHANGE = -100, 2  # of renameat2, as Linux has them

_READINGS = 50
"""Saves to the same path that a reader lets pass."""

Writer = Callable[[BinaryIO], object]
Read = TypeVar("Read")


def write(path: str, about: Mapping[str, object], files: Mapping[str, Writer]) -> None:
    """Write a directory beside ``path`` and put it there; what was there is as it was until then.

    Args:
        about: what the manifest says besides; plain JSON.

    Raises:
        CheckpointFileError: it cannot be written, or what is there is no such directory.
    """
    target = os.path.abspath(path)
    try:
        _refuse_other(target, files)
        made, lock = _made(target)
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        hashes = {name: _written(made / name, writer) for name, writer in files.items()}
        _write_manifest(made / MANIFEST, {**about, "files": hashes})
        _sync_all(made)
        _put(made, target)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def reading(path: str, use: Callable[[Directory], Read]) -> Read:
    """The result of ``use`` on the directory at ``path``, every byte of it checked.

    Where another save has taken its place meanwhile, that one is read: never parts of both.

    Raises:
        CheckpointNotFound; CheckpointFileError; CheckpointDamaged: says which file differs.
    """
    left = _READINGS
    while True:
        left -= 1
        try:
            with closing(Directory(path)) as directory:
                try:
                    directory.check()
                    return use(directory)
                except Exception:  # of files that are gone, or of two saves: whatever it is
                    if not left or not directory.is_replaced():
                        raise
        except FileNotFoundError as error:
            raise refused("read", path, error, CheckpointNotFound) from error
        except OSError as error:
            raise refused("read", path, error) from error


class Directory:
    """A directory that `write` wrote, held open: what is at its path later is another."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._hashes: dict[str, str] = {}
        self.about: dict[str, Any] = {}

    def close(self) -> None:
        """Read no more."""
        os.close(self._folder)

    def check(self) -> None:
        """Raise CheckpointDamaged where a byte is not as it was written."""
        try:
            found = _manifest(self._manifest())
        except FileNotFoundError as error:
            raise CheckpointDamaged(
                f"it has no {MANIFEST}: no Graph was saved there, or it is not whole.",
                fix="name the directory that torchgraph.save(graph, directory) has written.",
            ) from error
        self._hashes = found["files"]
        self.about = {k: v for k, v in found.items() if k not in ("sha256", "format", "files")}
        self._check_names()
        for name, expected in self._hashes.items():
            with self.opened(name) as file:
                if _digest(file) != expected:
                    raise CheckpointDamaged(f"{name} is not as it was written.")

    def is_replaced(self) -> bool:
        """True where something else is at the path by now."""
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._folder))
        except OSError:
            return True

    @property
    def names(self) -> list[str]:
        """The files besides the manifest."""
        return list(self._hashes)

    def text(self, name: str) -> str:
        """A file as text."""
        return self.content(name).decode()

    def content(self, name: str) -> bytes:
        """The bytes of a file."""
        with self.opened(name) as file:
            return file.read()

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file to read."""
        if name not in self._hashes:
            raise CheckpointDamaged(f"it has no {name}.")
        with open(name, "rb", opener=self._opener) as file:
            yield file

    def _opener(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=self._folder)

    def _manifest(self) -> bytes:
        found = self._stat(MANIFEST)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LONGEST:
            raise CheckpointDamaged(f"{MANIFEST} is no manifest.")
        with open(MANIFEST, "rb", opener=self._opener) as file:
            return file.read()

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._folder, follow_symlinks=False)

    def _check_names(self) -> None:
        there = {
            os.path.normpath(os.path.join(folder, name))
            for folder, _, names, _ in os.fwalk(".", dir_fd=self._folder)
            for name in names
        }
        wanted = {MANIFEST, *self._hashes}
        for name in sorted(there ^ wanted):
            what = "has a file more than it should" if name in there else "lacks a file"
            raise CheckpointDamaged(f"it {what}: {name}.")
        for name in there:
            if not stat.S_ISREG(self._stat(name).st_mode):
                raise CheckpointDamaged(f"{name} is no file.")


def _not_written(path: str, error: OSError) -> CheckpointFileError:
    taken = "choose another path, or a folder that is empty."
    return refused("written", path, error, fix=taken if isinstance(error, FileExistsError) else "")


def is_saved(path: str) -> bool:
    """True for a directory that says it holds a Graph."""
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            return file.read(len(_START)) == _START.encode()
    except OSError:
        return False


def _refuse_other(target: str, files: Collection[str]) -> None:
    """Raise where something is at the path that `write` has not put there."""
    if _is_around(target, os.getcwd()):
        raise FileExistsError(errno.EEXIST, "it is the current directory, or around it")
    around = next(filter(is_saved, map(str, Path(target).parents)), "")
    if around:
        raise FileExistsError(errno.EEXIST, f"a Graph was saved to {around}, around it")
    if not os.path.lexists(target):
        return
    if not os.path.isdir(target) or os.path.islink(target):
        raise FileExistsError(errno.EEXIST, "something else is there; a Graph takes a directory")
    if os.listdir(target) and not is_saved(target):
        raise FileExistsError(errno.EEXIST, "it is a directory with other files in it")
    known = {MANIFEST, *files, *_listed(target)}
    for folder, _, names in os.walk(target):
        for name in names:
            found = Path(folder, name).relative_to(target)
            if str(found) not in known:
                raise FileExistsError(errno.EEXIST, f"it has a file of others in it, {found}")


def _listed(target: str) -> list[str]:
    """The files that the manifest there names; none where that makes no sense."""
    try:
        with closing(Directory(target)) as directory:
            return list(_manifest(directory._manifest())["files"])
    except (OSError, CheckpointDamaged):
        return []


def _is_around(folder: str, other: str) -> bool:
    """True for a directory that is ``other``, or that ``other`` is in."""
    return os.path.commonpath([os.path.realpath(folder), os.path.realpath(other)]) == (
        os.path.realpath(folder)
    )


def _made(target: str) -> tuple[Path, int]:
    """A new directory beside ``target``, and the descriptor that is locked while it is written.

    What killed saves to the same path have left is removed: nobody holds its lock.
    """
    parent, name = os.path.split(target)
    start = f"{_MAKING}{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}-"
    for left in os.listdir(parent):
        if left.startswith(start):
            with suppress(OSError):
                _remove_if_left(os.path.join(parent, left))
    while True:
        made = Path(parent, f"{start}{os.getpid()}-{secrets.token_hex(4)}")
        made.mkdir()
        with suppress(
            BlockingIOError, FileNotFoundError
        ):  # another save may take it for a left one
            lock = _locked(str(made))
            if made.exists():
                return made, lock
            os.close(lock)


def _locked(path: str) -> int:
    """The descriptor of a locked directory; raises where another holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_left(path: str) -> None:
    lock = _locked(path)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _written(path: Path, writer: Writer) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w+b") as file:
        writer(file)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return _digest(file)


def _digest(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while part := file.read(1 << 20):
        found.update(part)
    return found.hexdigest()


def _write_manifest(path: Path, content: Mapping[str, object]) -> None:
    text = json.dumps({"sha256": _ZEROS, "format": FORMAT, **content}, indent=2) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{_START}{digest}{text[len(_START) + 64 :]}")
        file.flush()
        os.fsync(file.fileno())


def _manifest(text: bytes) -> dict[str, Any]:
    start = len(_START)
    if not text.startswith(_START.encode()):
        raise CheckpointDamaged(f"{MANIFEST} is not one that torchgraph.save has written.")
    rest = text[:start] + _ZEROS.encode() + text[start + 64 :]
    if hashlib.sha256(rest).hexdigest().encode() != text[start : start + 64]:
        raise CheckpointDamaged(f"{MANIFEST} is not as it was written.")
    try:
        found: dict[str, Any] = json.loads(text)
        files = found["files"]
        plain = all(map(_is_plain, files)) and all(type(one) is str for one in files.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"{MANIFEST} makes no sense.") from error
    if found["format"] != FORMAT:
        raise CheckpointDamaged(
            f"it is of format {found['format']!r:.20}, and this torchgraph reads {FORMAT}.",
            fix="load it with the torchgraph that wrote it.",
        )
    if not plain:
        raise CheckpointDamaged(f"{MANIFEST} names files elsewhere.")
    return found


def _is_plain(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and ".." not in name.split("/")


def _sync_all(made: Path) -> None:
    for folder, _, _ in os.walk(made):
        _sync(folder)


def _sync(folder: str) -> None:
    with suppress(OSError):  # some file systems sync no folders
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put(made: Path, target: str) -> None:
    """Let ``made`` be at ``target``; what was there is at ``made`` then."""
    if os.path.lexists(target):
        _exchange(str(made), target)
    else:
        made.rename(target)
    _sync(os.path.dirname(target))


def _exchange(one: str, other: str) -> None:
    """Exchange two directories, atomically where the system can."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        names = os.fsencode(one), os.fsencode(other)
        if not library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE):
            return
    aside = f"{one}-old"
    os.rename(other, aside)
    os.rename(one, other)
    os.rename(aside, one)
