"""Rules for a channel's URL, and its form without secrets."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from scorer.release.errors import InvalidError
from scorer.release.notify.addresses import Destinations

if TYPE_CHECKING:
    from apprise import NotifyBase

WEBHOOK = "webhook"
APPRISE = "apprise"

# Services whose URL names the host. The services of `_CLOUD` have fixed hosts.
# fmt: off
_OWN_HOST = frozenset(
    {
        "mailto", "json", "xml", "form", "mmost", "rocket", "matrix", "nctalk", "ntfy", "gotify",
        "goalert", "apprise", "workflow",
    }
)
_CLOUD = frozenset(
    {
        "slack", "discord", "gchat", "wxteams", "tgram", "zulip", "lark", "feishu", "dingtalk", "wecombot",
        "cliq", "pagerduty", "opsgenie", "ilert", "incidentio", "squadcast", "splunk", "betterstack",
        "signl4", "pagertree", "pover", "sendgrid", "mailgun", "ses", "sns", "twilio",
    }
)
# fmt: on
_EXAMPLES = "mailtos://user:password@mail.example.com?to=team@example.com, slack://..., jsons://host/path"

# Options that an address may set in addition to its host and path. All others are rejected: `method`,
# `verify`, time limits, redirects and files would let a project's owner make the platform send requests other
# than messages. The prefixes + - : of apprise, which set headers, parameters and fields of the body, are
# rejected too.
_OPTIONS = frozenset(
    {
        "to", "from", "name", "cc", "bcc", "reply", "smtp", "mode", "user", "pass", "format", "overflow",
        "token", "key", "apikey", "secret", "access", "sid", "id", "sig", "ver", "workspace", "region",
        "route", "priority", "severity", "class", "group", "tags", "channel", "channels", "team", "botname",
        "thread", "topic", "silent", "image", "footer", "sound", "avatar", "detect", "preview", "batch",
    }
)  # fmt: skip


def check(url: str, secret: str | None, destinations: Destinations) -> str:
    """Check the address of a new channel and return its kind.

    Args:
        url: The address.
        secret: Signing secret of a webhook; None: an apprise service.
        destinations: Addresses that messages may be sent to.

    Raises:
        InvalidError: The address is rejected. The error repeats only the URL's scheme.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https") and secret is not None:
        _check_webhook(url, secret, destinations)
        return WEBHOOK
    if secret is not None:
        raise InvalidError(
            f"a secret signs webhooks and cannot be used with {scheme[:20]}://; write https://..., or omit it"
        )
    plugin = _plugin(url)
    if plugin is None:
        if scheme in ("http", "https"):
            raise InvalidError("a webhook must be signed; give a secret of 16 characters or more")
        raise InvalidError(
            f"the address {scheme[:20]}://... is not one of a supported service; write it like {_EXAMPLES}"
        )
    host = check_plugin(plugin, url)
    if host is not None:
        destinations.check_host(host, encrypted=is_encrypted(plugin))
    return APPRISE


def check_plugin(plugin: NotifyBase, url: str) -> str | None:
    """Reject services and options that are not listed.

    Returns:
        The host that the address names; None for a service with fixed hosts.
    """
    real, base = _scheme(plugin)
    if base not in _CLOUD | _OWN_HOST:
        raise InvalidError(
            f"{real}:// is not a supported service; use one of {', '.join(sorted(_CLOUD | _OWN_HOST))}, "
            "or a signed webhook"
        )
    if refused := sorted(_options(url) - _OPTIONS):
        raise InvalidError(
            f"option {refused[0][:40]} is not supported; omit it, or use one of {', '.join(sorted(_OPTIONS))}"
        )
    if base not in _OWN_HOST:
        return None
    return str(getattr(plugin, "smtp_host", None) or plugin.host)


def is_encrypted(plugin: NotifyBase) -> bool:
    """Whether a service sends its messages over TLS."""
    real, base = _scheme(plugin)
    if base == "mailto":
        return getattr(plugin, "secure_mode", "insecure") in ("ssl", "starttls")
    return base in _CLOUD or real != base or base == "workflow"


def open_plugin(url: str) -> NotifyBase:
    """Create the apprise plugin for an address that `check` has accepted.

    Raises:
        InvalidError: The address is not accepted any more.
    """
    plugin = _plugin(url)
    if plugin is None:
        raise InvalidError("the address is not supported any more; remove the channel and add it again")
    check_plugin(plugin, url)
    # The outbox retries. A redirect could lead to an address that was not checked.
    plugin.redirects = False
    plugin.verify_certificate = True
    plugin.socket_connect_timeout = 5.0
    plugin.socket_read_timeout = 10.0
    return plugin


def shown(url: str, kind: str) -> str:
    """Return the URL with its secrets masked."""
    if kind == WEBHOOK:
        parts = urlsplit(url)
        path = "/".join("****" if len(part) > 15 else part for part in parts.path.split("/"))
        return f"{parts.scheme}://{parts.netloc}{path}{'?****' if parts.query else ''}"
    plugin = _plugin(url)
    if plugin is None:
        return f"{url.partition('://')[0]}://****"
    return _url(plugin).partition("?")[0]


def _check_webhook(url: str, secret: str, destinations: Destinations) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or not re.fullmatch(r"[\x21-\x7e]{1,2000}", url) or parts.fragment:
        raise InvalidError("the webhook's URL cannot be read; write https://host/path in plain ASCII")
    if parts.username is not None or parts.password is not None:
        raise InvalidError(
            "a webhook's URL cannot contain a user and password; omit them: the signature authenticates it"
        )
    if not 16 <= len(secret) <= 200 or not secret.isprintable():
        raise InvalidError(
            "a webhook's secret must have 16 to 200 characters; create one with `openssl rand -hex 32`"
        )
    if secret.startswith("whsec_"):
        try:
            base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise InvalidError(
                'a secret that starts with "whsec_" must continue in base64; correct it, or omit the prefix'
            ) from None
    destinations.check_host(host, encrypted=parts.scheme == "https")


def _scheme(plugin: NotifyBase) -> tuple[str, str]:
    """Return a service's scheme as apprise writes it, and the same without the `s` of its encrypted form."""
    real = _url(plugin).partition("://")[0]
    return real, real if real in _CLOUD | _OWN_HOST else real.removesuffix("s")


def _options(url: str) -> set[str]:
    """Return the options of an address, as parsed by apprise and by the standard library.

    An option with one of apprise's prefixes keeps the prefix and is therefore never in the list.
    """
    from apprise.utils.parse import parse_url

    parsed = parse_url(url, verify_host=False) or {}  # type: ignore[no-untyped-call]
    found = {str(key).lower() for key in parsed.get("qsd", {})}
    for prefix in "+-:":
        found |= {f"{prefix}{key}" for key in parsed.get(f"qsd{prefix}", {})}
    query = url.partition("?")[2]
    return found | {key.lower() for key, _ in parse_qsl(query, keep_blank_values=True)}


def _url(plugin: NotifyBase) -> str:
    """Return the URL of a plugin as apprise writes it, with secrets masked."""
    return str(plugin.url(privacy=True))  # type: ignore[no-untyped-call]


def _plugin(url: str) -> NotifyBase | None:
    import apprise

    if not re.fullmatch(r"[^\s\x00-\x1f]{4,2000}", url):
        return None
    asset = apprise.AppriseAsset(
        app_id="scorer", app_desc="scorer platform", plugin_paths=[], async_mode=False
    )
    found = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    return found if isinstance(found, apprise.NotifyBase) else None
