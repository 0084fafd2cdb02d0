"""What a channel's URL may be, and how it is shown."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from scorer.release.errors import InvalidError
from scorer.release.notify import addresses

if TYPE_CHECKING:
    from apprise import NotifyBase

WEBHOOK = "webhook"
APPRISE = "apprise"

# Services whose host the URL names; the others have their own.
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

# Options that have the platform read a file of its own, or fetch and wait as somebody else says.
_REFUSED_OPTIONS = frozenset(
    {
        "template",
        "pgp",
        "pgppub",
        "pgpprv",
        "wkd",
        "attach",
        "redirect",
        "retry",
        "wait",
        "cto",
        "rto",
        "store",
    }
)


def check(url: str, secret: str | None) -> str:
    """The kind of a channel that may be added. Raises InvalidError, which repeats the URL's scheme alone."""
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https") and secret is not None:
        _check_webhook(url, secret)
        return WEBHOOK
    if secret is not None:
        raise InvalidError(
            f"a secret signs webhooks; {scheme[:20]}:// takes none (write https://..., or drop it)"
        )
    plugin = _plugin(url)
    if plugin is None:
        if scheme in ("http", "https"):
            raise InvalidError("a webhook is signed; give a secret of 16 characters or more with it")
        raise InvalidError(
            f"{scheme[:20]}:// and what follows is no address that messages go to; write it like {_EXAMPLES}"
        )
    check_plugin(plugin, url)
    return APPRISE


def check_plugin(plugin: NotifyBase, url: str) -> None:
    """Refuses services not listed, options that reach beyond the message, and hosts; before sending too."""
    real = _url(plugin).partition("://")[0]
    base = real if real in _CLOUD | _OWN_HOST else real.removesuffix("s")
    if base not in _CLOUD | _OWN_HOST:
        raise InvalidError(
            f"{real}:// is not among the services that messages are sent to; take one of "
            f"{', '.join(sorted(_CLOUD | _OWN_HOST))}, or a signed webhook"
        )
    options = {key.lower() for key, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
    if refused := sorted(options & _REFUSED_OPTIONS):
        raise InvalidError(
            f"option {refused[0]} is not taken: the platform reads no files and follows nobody; drop it"
        )
    if base in _OWN_HOST:
        host = getattr(plugin, "smtp_host", None) or plugin.host
        encrypted = real != base or base in ("mailto", "workflow")
        addresses.check_if_known(str(host), encrypted=encrypted)


def open_plugin(url: str) -> NotifyBase:
    """What sends to an address that `check` has taken. Raises InvalidError."""
    plugin = _plugin(url)
    if plugin is None:
        raise InvalidError("the address is no longer understood; add the channel anew")
    check_plugin(plugin, url)
    # Trying again is the outbox's; where to is the URL's alone.
    plugin.redirects = False
    plugin.socket_connect_timeout = 5.0
    plugin.socket_read_timeout = 10.0
    return plugin


def shown(url: str, kind: str) -> str:
    """The URL with its secrets blanked."""
    if kind == WEBHOOK:
        parts = urlsplit(url)
        path = "/".join("****" if len(part) > 15 else part for part in parts.path.split("/"))
        return f"{parts.scheme}://{parts.netloc}{path}{'?****' if parts.query else ''}"
    plugin = _plugin(url)
    if plugin is None:
        return f"{url.partition('://')[0]}://****"
    return _url(plugin).partition("?")[0]


def _check_webhook(url: str, secret: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or not re.fullmatch(r"[\x21-\x7e]{1,2000}", url) or parts.fragment:
        raise InvalidError("the webhook's URL cannot be read; write https://host/path in plain ASCII")
    if parts.username is not None or parts.password is not None:
        raise InvalidError(
            "a webhook takes no user and password; its signature says who it is from: drop them"
        )
    if not 16 <= len(secret) <= 200 or not secret.isprintable():
        raise InvalidError(
            "a webhook's secret has 16 to 200 characters; make one with `openssl rand -hex 32`"
        )
    if secret.startswith("whsec_"):
        try:
            base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise InvalidError(
                'a secret that starts with "whsec_" goes on in base64; correct it, or drop the prefix'
            ) from None
    addresses.check_if_known(host, encrypted=parts.scheme == "https")


def _url(plugin: NotifyBase) -> str:
    """As apprise writes it, secrets blanked."""
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
