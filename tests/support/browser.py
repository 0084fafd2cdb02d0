"""A real Chromium on pages that this process serves.

::

    with serving(app) as address, chromium() as browser:
        visitor = Visitor(browser, address)          # its own cookies
        visitor.sign_in(token)
        visitor.open("/calendar")                    # waits for the charts
        visitor.check()                              # no console error, no request elsewhere
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import components
import uvicorn
from waiting import PATIENCE

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, PHONE = (1280, 800), (390, 844)

# Returns a list of the accessibility and layout rules that a page breaks.
BASICS = """() => {
  const found = [];
  const visible = (one) => one.checkVisibility ? one.checkVisibility() : one.offsetParent !== null;
  const name = (one) =>
    (one.getAttribute("aria-label") || one.innerText || one.title || one.alt || "").trim();
  if (document.documentElement.lang !== "en") found.push("no language");
  if (!document.title.includes("scorer")) found.push("no title");
  if (document.querySelectorAll("main").length !== 1) found.push("not one main");
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  let level = 1;
  for (const one of document.querySelectorAll("main h1, main h2, main h3, main h4")) {
    const now = Number(one.tagName[1]);
    if (now > level + 1) found.push(`heading skips to ${one.tagName}: ${one.innerText}`);
    level = now;
  }
  const named = [...document.querySelectorAll("[id]")].filter((one) => !one.closest("svg"));
  const ids = named.map((one) => one.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`id twice: ${id}`);
  for (const one of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!one.labels?.length && !one.getAttribute("aria-label"))
      found.push(`no label: ${one.outerHTML.slice(0, 90)}`);
  for (const one of document.querySelectorAll("main button, main a[href], main summary, nav a, .side button"))
    if (visible(one) && !name(one)) found.push(`no name: ${one.outerHTML.slice(0, 90)}`);
  for (const one of document.querySelectorAll("label[for]"))
    if (!document.getElementById(one.htmlFor)) found.push(`label of nothing: ${one.htmlFor}`);
  for (const one of document.querySelectorAll("img:not([alt])")) found.push(`no alt: ${one.src}`);
  for (const one of document.querySelectorAll("main table")) {
    if (!one.caption) found.push("table without caption");
    if (!one.querySelector("th[scope]")) found.push("table without headers");
  }
  for (const one of document.querySelectorAll("form[method=post]"))
    if (!one.elements.csrf?.value) found.push(`form without csrf: ${one.action}`);
  for (const one of document.querySelectorAll(".plot")) if (!name(one)) found.push("figure without words");
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) found.push(`wider than the screen by ${over}`);
  return found;
}"""


@contextlib.contextmanager
def serving(app: Any, listener: socket.socket | None = None) -> Iterator[str]:
    """Serve an application from a thread; yield its address."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        # Open pages wait for events, and nothing ends these requests here.
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Yield the system's Chromium. The test is skipped if Chromium or Playwright is not installed."""
    components.require("Chromium")
    components.require("Playwright")
    result = components.program_path("chromium")
    from playwright import sync_api as playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=result, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A user with a separate browser context."""

    def __init__(
        self,
        browser: Any,
        address: str,
        *,
        size: tuple[int, int] = WIDE,
        dark: bool = False,
        zone: str = "UTC",
    ) -> None:
        self.address = address
        scheme = "dark" if dark else "light"
        self._context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            accept_downloads=True,
            timezone_id=zone,
        )
        self._context.set_default_timeout(PATIENCE * 1000)
        self.page = self._context.new_page()
        self.problems: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self._on_request)

    def sign_in(self, token: str) -> None:
        self.page.goto(f"{self.address}/login")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.address}/")

    def open(self, path: str) -> int:
        """Open a page and wait until its charts are drawn; return the HTTP status."""
        response = self.page.goto(self.address + path)
        if self.page.locator("script[data-plot]").count():
            self.page.wait_for_selector("html[data-drawn]", state="attached")
        return int(response.status)

    def press(self, name: str) -> None:
        """Click the button with this text."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def check(self) -> None:
        """Assert that the browser reported no problem and sent no request to another host."""
        assert self.problems == []

    def basics(self) -> list[str]:
        """Return the rules for accessibility and small screens that the page breaks."""
        return list(self.page.evaluate(BASICS))

    def violations(self) -> list[str]:
        """Return the violations that axe-core reports, one line per rule and element."""
        from axe_playwright_python.sync_playwright import Axe

        result = Axe().run(self.page).response["violations"]
        return [f"{rule['id']}: {node['html'][:120]}" for rule in result for node in rule["nodes"]]

    def close(self) -> None:
        self._context.close()

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.problems.append(f"asked {request.url}")
