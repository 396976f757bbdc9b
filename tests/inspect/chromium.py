"""A page in a headless Chromium, driven through a pipe: no driver and no library for it."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")


class Page:
    """One page. Its commands are those of the DevTools protocol."""

    def __init__(self, process: subprocess.Popen[bytes], writes: int, reads: int) -> None:
        self._process = process
        self._writes, self._reads = writes, reads
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = ""
        self.events: list[dict[str, Any]] = []
        """What the browser told by itself."""
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        attached = self.do("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def listen(self) -> None:
        """Hear of messages on the console, of exceptions, and of what is requested."""
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.do(f"{domain}.enable")

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the page so many pixels, and a scheme of colours."""
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """The whole page as PNG."""
        found = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def go(self, url: str) -> None:
        """Open an address."""
        self.do("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What JavaScript gives; a promise is awaited."""
        found = self.do(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> None:
        """Until JavaScript gives something true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"not in time: {expression}"
            time.sleep(0.1)

    def do(self, method: str, **params: object) -> Any:
        """A command and what it gives."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, found
                return found["result"]
            if "method" in found:
                self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._reads, 1 << 16)
            assert read, "Chromium has ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)


@contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A new page; ``profile`` is a folder for what the browser writes."""
    down_reads, down_writes = os.pipe()
    up_reads, up_writes = os.pipe()
    # It takes commands from descriptor 3 and answers on 4, whatever ours are called.
    script = f'exec 3<&{down_reads} 4>&{up_writes}; exec "$@"'
    command = ["bash", "-c", script, "bash", PATH, *_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command,
        pass_fds=(down_reads, up_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(down_reads)
    os.close(up_writes)
    try:
        yield Page(process, down_writes, up_reads)
    finally:
        process.kill()
        process.wait()
        os.close(down_writes)
        os.close(up_reads)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, on this machine alone."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
