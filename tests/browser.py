"""A headless Chromium, driven over a pipe by the DevTools protocol: no package, no port."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE = 60.0  # seconds; a loaded machine takes its time to start one


class Page:
    """One tab. `events` are what it has told of itself, with the method's name."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        self._rest, self._number = b"", 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.events.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait(lambda: any(e["method"] == "Page.loadEventFired" for e in self.events))

    def evaluate(self, expression: str) -> Any:
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        stroke = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **stroke, **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **stroke)

    def complaints(self) -> list[dict[str, Any]]:
        """Errors and warnings in the console, and exceptions nobody caught."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, out: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        out.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        found: list[dict[str, Any]] = []

        def answered() -> bool:
            found.extend(e for e in self.events if e.get("id") == self._number)
            return bool(found)

        self._wait(answered)
        self.events = [event for event in self.events if "id" not in event]
        assert "error" not in found[0], (method, found[0])
        result: dict[str, Any] = found[0]["result"]
        return result

    def _wait(self, done: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            left = end - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self.answers], [], [], left)[0]:
                data = os.read(self.answers, 1 << 20)
                assert data, "the browser has gone"
                *whole, self._rest = (self._rest + data).split(b"\0")
                self.events += map(json.loads, whole)


@contextlib.contextmanager
def open_browser(profile: Path) -> Iterator[Page]:
    assert CHROMIUM
    ends = [*os.pipe(), *os.pipe()]
    # Chromium reads from descriptor 3 and writes to 4: away from both before they are put there.
    read, commands, answers, write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in ends)
    for fd in ends:
        os.close(fd)
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
    shell = ["bash", "-c", f'exec "$0" "$@" 3<&{read} 4>&{write}', *command]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(shell, pass_fds=(read, write), **quiet)
    os.close(read)
    os.close(write)
    try:
        yield Page(commands, answers)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
