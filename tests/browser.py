"""Chromium without a window, driven by its DevTools protocol: what pages say and ask for.

A browser is a process of its own with a folder of its own; both are gone when it is closed.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

START_SECONDS = 60.0
"""A first start on a machine that is busy."""
ANSWER_SECONDS = 30.0
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--no-default-browser-check", "--disable-extensions", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-port=0", "about:blank"),
)
HOMES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
"""Variables of folders that it would else write into, beside its own."""
SAYS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


@dataclass(kw_only=True)
class Seen:
    """What a page did while it was open."""

    said: list[str] = field(default_factory=list)
    """Console messages, log entries and exceptions."""
    requests: list[str] = field(default_factory=list)
    """Addresses that were asked for, the page's own first."""
    blocked: list[str] = field(default_factory=list)
    """Why requests were not made that are among those."""


class Browser:
    """One chromium with one page. Not for threads."""

    def __init__(self, program: str) -> None:
        self._held = ExitStack()
        self._folder = Path(tempfile.mkdtemp(prefix="chromium-"))
        self._process = subprocess.Popen(
            [program, f"--user-data-dir={self._folder}", *OPTIONS],
            env={**os.environ, **dict.fromkeys(HOMES, str(self._folder))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            connection = connect(self._address(), max_size=None, proxy=None)
            self._socket = self._held.enter_context(connection)
            self._last = 0
            self._session = ""
            self._events: list[dict[str, Any]] = []
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._ask(f"{domain}.enable")
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all its processes, and remove its folder."""
        try:
            self._session = ""
            self._ask("Browser.close")
            self._process.wait(timeout=ANSWER_SECONDS)
        finally:
            self._end()

    def _end(self) -> None:
        """Whatever is left: the browser leads a group of its own."""
        self._held.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for _ in range(50):  # those of its children may write for a moment more
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists():
                return
            time.sleep(0.1)
        raise AssertionError(f"{self._folder} cannot be removed")

    def _address(self) -> str:
        """Where it listens: it writes the port and a path once it does."""
        file, until = self._folder / "DevToolsActivePort", time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            lines = file.read_text().split() if file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.02)
        raise AssertionError(f"chromium did not start: {self._process.poll()}")

    def _ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """A command's result; events that come before it are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        self._socket.send(
            json.dumps(message | ({"sessionId": self._session} if self._session else {}))
        )
        while True:
            answer = json.loads(self._socket.recv(timeout=ANSWER_SECONDS))
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.append(answer)

    def open(
        self, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> Seen:
        """Show a page in a window of a size, and wait until all of it is loaded and drawn."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._ask("Emulation.setEmulatedMedia", features=features)
        self._events.clear()
        error = self._ask("Page.navigate", url=url).get("errorText")
        assert not error, f"{url}: {error}"
        self._wait_for("Page.loadEventFired")
        self.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        seen = Seen()
        for event in self._events:
            if event["method"] in SAYS:
                seen.said.append(json.dumps(event["params"]))
            elif event["method"] == "Network.requestWillBeSent":
                seen.requests.append(event["params"]["request"]["url"])
            elif event["params"].get("blockedReason"):
                seen.blocked.append(event["params"]["blockedReason"])
        return seen

    def _wait_for(self, method: str) -> None:
        until = time.monotonic() + ANSWER_SECONDS
        while not any(event["method"] == method for event in self._events):
            left = until - time.monotonic()
            self._events.append(json.loads(self._socket.recv(timeout=max(left, 0))))

    def evaluate(self, expression: str) -> Any:
        """An expression's value in the page, once it is settled."""
        result = self._ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, *, whole: bool = True) -> bytes:
        """A PNG of the whole page, or of what the window shows."""
        shot = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])
