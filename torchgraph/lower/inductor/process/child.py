"""The first lines of the compiling process: before it imports torch, which takes seconds.

Started by its path and isolated (``python -I``): until `run` says otherwise, it imports from
Python's own folders alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import threading
import time

GUARDED = "guarded"
"""A file beside the order: this process may be stopped from now on."""


def run(path: str) -> None:
    """Carry out an order: the path of a JSON file that `compiler.Compiler` wrote."""
    # No session of its own: Linux shares the processor among sessions, however idle one of them is.
    os.setpgid(0, 0)
    with open(path, encoding="utf-8") as file:
        order = json.load(file)
    if order["idle"]:
        os.nice(19)
        if hasattr(os, "SCHED_IDLE"):  # gives way at once, also to a thread that wakes for 20 us
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if order["pauses"]:
        _guard(order["parent"])
        open(os.path.join(os.path.dirname(path), GUARDED), "x").close()
    else:
        threading.Thread(target=_watch, args=(order["parent"],), daemon=True).start()
    sys.path += [entry for entry in order["path"] if entry not in sys.path]
    for name, folder in order["packages"].items():
        _import_from(name, folder)
    importlib.import_module(order["main"]).main(path)


def _import_from(name: str, folder: str) -> None:
    """Import a package from where it lies, whatever is found first on the search path."""
    source = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, source, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is no package")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _guard(parent: int) -> None:
    """A process beside this one kills it, and the compilers below it, when ``parent`` is gone.

    Another process, since this one may stand still at that moment (SIGSTOP).
    """
    compiler = os.getpid()
    watched = os.pidfd_open(parent), os.pidfd_open(compiler)
    if os.getppid() != parent:  # it ended before we looked
        sys.exit(1)
    guard = os.fork()
    if guard:
        os.setpgid(guard, guard)  # what stops the compilers does not stop the guard
        return
    gone, _, _ = select.select(watched, [], [])
    if watched[0] in gone:
        os.killpg(compiler, signal.SIGKILL)
    os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    run(sys.argv[1])
