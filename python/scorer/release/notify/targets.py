"""What a channel's URL may be, and how it is shown."""

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

# What an address may configure beyond its host and path. Every other option is rejected: `method`, `verify`,
# time limits, redirects and files would let an owner of a project have the platform send other requests than
# messages. So are the prefixes + - : of apprise, which set headers, parameters and fields of the body.
_OPTIONS = frozenset(
    {
        "to", "from", "name", "cc", "bcc", "reply", "smtp", "mode", "user", "pass", "format", "overflow",
        "token", "key", "apikey", "secret", "access", "sid", "id", "sig", "ver", "workspace", "region",
        "route", "priority", "severity", "class", "group", "tags", "channel", "channels", "team", "botname",
        "thread", "topic", "silent", "image", "footer", "sound", "avatar", "detect", "preview", "batch",
    }
)  # fmt: skip


def check(url: str, secret: str | None, destinations: Destinations) -> str:
    """Return the kind of a channel that may be added.

    Raises:
        InvalidError: The address is rejected. The message repeats the URL's scheme alone.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https") and secret is not None:
        _check_webhook(url, secret, destinations)
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
    host = check_plugin(plugin, url)
    if host is not None:
        destinations.check_host(host, encrypted=is_encrypted(plugin))
    return APPRISE


def check_plugin(plugin: NotifyBase, url: str) -> str | None:
    """Reject services that are not listed and options that reach beyond the message.

    Returns:
        The host, where the address names it; None for a service with hosts of its own.
    """
    real, base = _scheme(plugin)
    if base not in _CLOUD | _OWN_HOST:
        raise InvalidError(
            f"{real}:// is not among the services that messages are sent to; take one of "
            f"{', '.join(sorted(_CLOUD | _OWN_HOST))}, or a signed webhook"
        )
    if refused := sorted(_options(url) - _OPTIONS):
        raise InvalidError(
            f"option {refused[0][:40]} is not taken; drop it, or take one of {', '.join(sorted(_OPTIONS))}"
        )
    if base not in _OWN_HOST:
        return None
    return str(getattr(plugin, "smtp_host", None) or plugin.host)


def is_encrypted(plugin: NotifyBase) -> bool:
    """Whether what a service sends is under TLS."""
    real, base = _scheme(plugin)
    if base == "mailto":
        return getattr(plugin, "secure_mode", "insecure") in ("ssl", "starttls")
    return base in _CLOUD or real != base or base == "workflow"


def open_plugin(url: str) -> NotifyBase:
    """What sends to an address that `check` has taken. Raises InvalidError."""
    plugin = _plugin(url)
    if plugin is None:
        raise InvalidError("the address is no longer understood; add the channel anew")
    check_plugin(plugin, url)
    # The outbox retries. A redirect would lead elsewhere than to the address.
    plugin.redirects = False
    plugin.verify_certificate = True
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
    destinations.check_host(host, encrypted=parts.scheme == "https")


def _scheme(plugin: NotifyBase) -> tuple[str, str]:
    """Return a service's scheme as apprise writes it, and without the s of its encrypted form."""
    real = _url(plugin).partition("://")[0]
    return real, real if real in _CLOUD | _OWN_HOST else real.removesuffix("s")


def _options(url: str) -> set[str]:
    """Return the options of an address, as apprise reads them and as the standard library does.

    An option with a prefix keeps it, which no option in the list has.
    """
    from apprise.utils.parse import parse_url

    parsed = parse_url(url, verify_host=False) or {}  # type: ignore[no-untyped-call]
    found = {str(key).lower() for key in parsed.get("qsd", {})}
    for prefix in "+-:":
        found |= {f"{prefix}{key}" for key in parsed.get(f"qsd{prefix}", {})}
    query = url.partition("?")[2]
    return found | {key.lower() for key, _ in parse_qsl(query, keep_blank_values=True)}


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
