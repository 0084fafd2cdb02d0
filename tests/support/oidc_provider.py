"""Runs the OpenID provider of ``oidc/provider.mjs``, and signs in at it as a browser does.

::

    with provider(redirect="http://127.0.0.1:7710/login/oidc/callback") as issuer:
        answer = sign_in(browser, "http://127.0.0.1:7710/login/oidc", "alice")
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import components
import httpx

SECRET = "a secret of thirty-two characters"


@contextmanager
def provider(*, redirect: str, after_logout: str = "http://127.0.0.1/") -> Iterator[str]:
    """Run a provider with one registered client, `scorer`; yield its issuer."""
    components.require("oidc-provider")
    node = components.program_path("node") or "node"
    script = Path(__file__).with_name("oidc") / "provider.mjs"
    process = subprocess.Popen(
        [node, str(script), redirect, after_logout],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OIDC_PACKAGES": str(components.BUILD / "oidc"), "NODE_ENV": "test"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("issuer "):
                yield line.split()[1]
                return
        message = f"the provider ended with {process.wait()}"
        raise AssertionError(message)
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def sign_in(browser: httpx.Client, begin: str, user: str) -> httpx.Response:
    """Sign in, and return the platform's response to the provider's redirect.

    That response is not followed.
    """
    platform = begin.split("/login", maxsplit=1)[0]
    return browser.get(redirect_of(browser, begin, user, to=f"{platform}/"))


def redirect_of(browser: httpx.Client, begin: str, user: str, *, to: str) -> str:
    """Sign in at the provider, and return the address that it redirects to, which begins with `to`."""
    answer = browser.get(begin)
    for _ in range(20):
        if answer.is_redirect:
            where = urljoin(str(answer.url), answer.headers["location"])
            if where.startswith(to):
                return where
            answer = browser.get(where)
            continue
        form = re.search(r'<form[^>]*action="([^"]*)"', answer.text)
        prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
        assert form and prompt, answer.text[:500]
        fields = {"prompt": prompt[1]} | ({"login": user, "password": "any"} if prompt[1] == "login" else {})
        answer = browser.post(urljoin(str(answer.url), form[1]), data=fields)
    message = f"the sign-in did not end; last: {answer.url}"
    raise AssertionError(message)
