"""A real Chromium for tests of pages and for pictures of them, spoken to over two pipes (the DevTools protocol).

    with Browser() as browser:
        page = browser.open("http://127.0.0.1:7301/", width=390)
        page.wait("document.querySelector('.job') !== null", "a job is shown")
        page.screenshot(Path("page.png"))
        assert page.problems == []

One thread. Needs Debian's `chromium` or a Chrome; `Browser.missing()` says so where none is there. Each browser has a fresh
profile and is told to make no requests of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.core.errors import PeerGone, WaitTimeout

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 30.0
_POLL_S = 0.05
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--no-default-browser-check", "--mute-audio",
    "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe", "--ignore-certificate-errors",
)  # fmt: skip


class Browser:
    """One process. Raises PeerGone if it ends, WaitTimeout where it does not answer."""

    def __init__(self) -> None:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            raise PeerGone(self.missing())
        self._profile = tempfile.mkdtemp(prefix="headrace-browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        arguments = [found, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        log = os.open(f"{self._profile}/log", os.O_WRONLY | os.O_CREAT, 0o600)
        actions = [
            # Not straight to 3 and 4: one of ours may be the other's place.
            (os.POSIX_SPAWN_DUP2, theirs_in, 103), (os.POSIX_SPAWN_DUP2, theirs_out, 104),
            (os.POSIX_SPAWN_DUP2, 103, 3), (os.POSIX_SPAWN_DUP2, 104, 4),
            (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2),
        ]  # fmt: skip
        environment = {**os.environ, "HOME": self._profile}
        self._pid = os.posix_spawn(found, arguments, environment, file_actions=actions, setpgroup=0)
        for fd in (theirs_in, theirs_out, log):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.pages: dict[str, Page] = {}

    @staticmethod
    def missing() -> str:
        """Why there is none; empty where there is."""
        return "" if any(map(shutil.which, NAMES)) else "no Chromium is installed here; tools/chromium.sh installs one with apt"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it; idempotent."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._in)
            os.close(self._out)
            self._pid = 0
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Page:
        """A new page, loaded. width, height: in CSS pixels."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        page.call("Page.navigate", {"url": address})
        page.wait("document.readyState === 'complete' && location.href !== 'about:blank'", f"{address} is loaded")
        return page

    def call(self, method: str, parameters: dict[str, Any] | None = None, session: str = "") -> Any:
        """One command; its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        end = time.monotonic() + DEADLINE_S
        while number not in self._answers:
            self.pump(max(0.0, end - time.monotonic()))
            if time.monotonic() > end:
                raise WaitTimeout(f"the browser has not answered {method} within {DEADLINE_S:g} s")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise PeerGone(f"the browser refuses {method}: {answer['error'].get('message')}")
        return answer["result"]

    def pump(self, wait_s: float) -> None:
        """Take in what the browser says, for at most so long."""
        if not select.select([self._in], [], [], wait_s)[0]:
            return
        data = os.read(self._in, 1 << 20)
        if not data:
            raise PeerGone(f"the browser ended: {Path(self._profile, 'log').read_text(errors='replace')[-2000:]}")
        *whole, self._buffer = (self._buffer + data).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif (page := self.pages.get(message.get("sessionId", ""))) is not None:
                page.heard(message["method"], message["params"])


class Page:
    """One page. requests: addresses that it asked for, in order. problems: errors that it wrote to its console or raised."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._ids: list[str] = []
        self.requests: list[str] = []
        self.problems: list[str] = []

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        """One command of the protocol."""
        return self._browser.call(method, parameters, self._session)

    def heard(self, method: str, said: dict[str, Any]) -> None:
        """Something happened in the page."""
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
            self._ids.append(said["requestId"])
        elif method == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(argument.get("value")) for argument in said["args"]))

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is, as plain data; a promise is awaited. Raises PeerGone if it throws."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            raise PeerGone(f"{expression} throws: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, condition: str, what: str, deadline_s: float = DEADLINE_S) -> None:
        """Until a JavaScript expression is true. Raises WaitTimeout saying `what`."""
        end = time.monotonic() + deadline_s
        while not self.value(condition):
            if time.monotonic() > end:
                raise WaitTimeout(f"not within {deadline_s:g} s: {what}; problems: {self.problems}; text: {self.text()[:2000]}")
            self._browser.pump(_POLL_S)

    def text(self) -> str:
        """What a person reads on it."""
        return str(self.value("document.body.innerText"))

    def body(self, number: int) -> str:
        """What request `number` of `requests` was answered with."""
        answer = self.call("Network.getResponseBody", {"requestId": self._ids[number]})
        return base64.b64decode(answer["body"]).decode() if answer["base64Encoded"] else str(answer["body"])

    def screenshot(self, path: Path) -> None:
        """A PNG of the whole page."""
        answer = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """Close it."""
        self._browser.pages.pop(self._session, None)
        with contextlib.suppress(PeerGone):
            self.call("Page.close")
