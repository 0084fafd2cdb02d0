"""Where the platform is and who asks: given, from the environment, or as `scorer login` kept it."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from scorer.release.errors import InvalidError, NotAuthenticatedError

URL_VARIABLE = "SCORER_PLATFORM_URL"
TOKEN_VARIABLE = "SCORER_PLATFORM_TOKEN"  # noqa: S105 - a name


class Credentials(NamedTuple):
    """An address and a token for it."""

    url: str
    token: str


def path() -> Path:
    """Where `scorer login` keeps them."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "scorer" / "token"


def find(url: str | None, token: str | None) -> Credentials:
    """What is given, laid over the environment, laid over the file.

    A kept token goes to the address that it was kept for, never to another one.

    Raises:
        NotAuthenticatedError: Something is missing.
    """
    # An empty variable counts as unset.
    url = url or os.environ.get(URL_VARIABLE) or None
    token = token or os.environ.get(TOKEN_VARIABLE) or None
    if url and token:
        return Credentials(check_url(url), token)
    kept = _read()
    if kept is not None and url in (None, kept.url):
        return Credentials(kept.url, token or kept.token)
    missing = "an address" if not url else f"a token for {url}"
    raise NotAuthenticatedError(
        f"{missing} is missing; run `scorer login URL`, or set {URL_VARIABLE} and {TOKEN_VARIABLE}"
    )


def known() -> bool:
    """Whether a login is stored or the environment names a platform."""
    return bool(os.environ.get(URL_VARIABLE)) or path().is_file()


def check_url(url: str) -> str:
    """The address without its last slash; refuses what is none."""
    if not url.startswith(("http://", "https://")) or any(c.isspace() or c in "?#@" for c in url):
        raise InvalidError(f'"{url}" is not the address of a platform; write https://scorer.example.com')
    return url.rstrip("/")


def keep(credentials: Credentials) -> Path:
    """Writes the file, for its owner's eyes alone; in one step."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".token-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as writer:
            json.dump(credentials._asdict(), writer)
            writer.write("\n")
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return file


def forget() -> bool:
    """Removes the file; whether there was one."""
    try:
        path().unlink()
    except FileNotFoundError:
        return False
    return True


def _read() -> Credentials | None:
    file = path()
    try:
        if file.stat().st_mode & 0o077:
            raise NotAuthenticatedError(
                f"{file} can be read by others; make a new token, or `chmod 600 {file}` if nobody did"
            )
        kept = json.loads(file.read_text())
        return Credentials(check_url(kept["url"]), str(kept["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise NotAuthenticatedError(f"{file} cannot be read; run `scorer login URL` again") from None
