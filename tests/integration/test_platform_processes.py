"""Tests of two platform processes with one database and one address, when requests reach either of them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
from platform_process import initialised, running, write_settings


def field(text: str) -> str:
    result = re.search(r'name="csrf" value="([^"]*)"', text)
    assert result
    return result[1]


def test_sessions_and_forms_of_one_process_are_valid_at_another(tmp_path: Path) -> None:
    write_settings(tmp_path)
    secret = initialised(tmp_path)
    with ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:
            # Both processes start together, so that both look for the key before it exists.
            contexts = [running(tmp_path, name=name) for name in ("one", "two")]
            one, two = pool.map(stack.enter_context, contexts)
        assert one.pid != two.pid
        for here, there in ((one, two), (two, one)):
            browser = stack.enter_context(httpx.Client(timeout=60))
            form = field(browser.get(f"{here.url}/login").text)
            signed_in = browser.post(f"{there.url}/login", data={"token": secret, "csrf": form})
            assert signed_in.status_code == 303 and signed_in.headers["location"] == "/"
            page = browser.get(f"{here.url}/projects")
            assert page.status_code == 200
            response = browser.post(
                f"{there.url}/projects",
                data={"csrf": field(page.text), "name": f"p-{here.pid}", "title": "A project"},
            )
            assert response.status_code == 303, response.text
            assert f"p-{here.pid}" in browser.get(f"{here.url}/projects").text
            # A signed cookie carries the refusal to the next page.
            again = browser.post(
                f"{there.url}/notifications/999/remove?project=p-{here.pid}",
                data={"csrf": field(page.text)},
            )
            assert again.status_code in (303, 404)
            out = browser.post(f"{here.url}/logout", data={"csrf": field(page.text)})
            assert out.status_code == 303
            assert browser.get(f"{there.url}/projects").headers["location"].startswith("/login")
        leads = [httpx.get(f"{each.url}/api/v1/health", timeout=30).json()["leads"] for each in (one, two)]
        assert leads.count(True) <= 1
