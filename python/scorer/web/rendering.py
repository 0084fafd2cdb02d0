"""Template environment, and filters that format values on pages."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scorer.web import words
from scorer.web.sparklines import sparkline

_ESCAPES = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
NOTHING = "\N{EN DASH}"
_NOTHING = Markup("\N{EN DASH}")


def environment() -> Environment:
    """Create the template environment. It escapes text and rejects undefined names."""
    made = Environment(
        loader=PackageLoader("scorer.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "when": when,
        "ago": ago,
        "clock": clock,
        "iso": iso,
        "local": local,
        "percent": percent,
        "micros": micros,
        "number": number,
        "size": size,
        "brief": brief,
        "digest": digest,
        "island": island,
        "compact": compact,
        "plain": plain,
        "minutes": minutes,
        "lasting": lasting,
        "sparkline": sparkline,
    }
    made.globals |= {"words": words, "nothing": NOTHING, "query": query}
    return made


def island(value: Any) -> Markup:
    """Serialise a value for `<script type="application/json">`; NaN and infinities become null."""
    text = orjson.dumps(
        value, default=_plain_value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    ).decode()
    return Markup(text.translate(_ESCAPES))  # noqa: S704 - JSON with < > & written as escapes


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def compact(value: Any) -> str:
    """Serialise a value as JSON on one line, for details in tables."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_plain_value, ensure_ascii=False)


def plain(value: Any) -> str:
    """Format a single value of a table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return compact(value)


def when(value: datetime | None) -> Markup:
    """Format a time in UTC, to the minute."""
    if value is None:
        return _NOTHING
    moment = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        moment.isoformat(), moment.strftime("%Y-%m-%d %H:%M:%S"), moment.strftime("%d %b %H:%M")
    )


def clock(value: datetime | None) -> Markup:
    """Format a time in UTC, to the second."""
    if value is None:
        return _NOTHING
    moment = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        moment.isoformat(), moment.strftime("%Y-%m-%d %H:%M:%S"), moment.strftime("%H:%M:%S")
    )


def ago(value: datetime | None, now: datetime | None = None) -> str:
    """Format the time since or until a time, in the largest unit that fits."""
    if value is None:
        return NOTHING
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    size, past = abs(seconds), seconds >= 0
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0)):
        if size >= length:
            text = f"{size / length:.0f} {unit}"
            return f"{text} ago" if past else f"in {text}"
    return "now"


def iso(value: datetime | None) -> str:
    """Return a time as ISO 8601 text for addresses."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if value else ""


def local(value: datetime | None) -> str:
    """Format a time in UTC for `<input type="datetime-local">`."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M") if value else ""


def minutes(value: float) -> str:
    """Return a length of time as text."""
    if value >= 1440 and value % 1440 == 0:
        return f"{value / 1440:g} d"
    if value >= 120 and value % 60 == 0:
        return f"{value / 60:g} h"
    return f"{value:.3g} min" if value < 1000 else f"{value / 60:.3g} h"


def lasting(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for place, (unit, length) in enumerate(units):
        if seconds >= length:
            whole, rest = divmod(int(seconds), length)
            further, smaller = units[place + 1] if place + 1 < len(units) else ("", 1)
            more = f" {rest // smaller} {further}" if further and rest >= smaller else ""
            return f"{whole} {unit}{more}"
    return "under 1 s"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage."""
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:.{digits}%}".replace("%", "\N{NARROW NO-BREAK SPACE}%")


def micros(value: float | None) -> str:
    """Format microseconds as ns, µs, ms or s."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if 0 < value < 0.9995:
        return f"{value * 1000:.3g}\N{NARROW NO-BREAK SPACE}ns"
    if value < 10:
        return f"{value:.2g}\N{NARROW NO-BREAK SPACE}µs"
    if value < 1_000:
        return f"{value:.0f}\N{NARROW NO-BREAK SPACE}µs"
    if value < 1_000_000:
        return f"{value / 1_000:.3g}\N{NARROW NO-BREAK SPACE}ms"
    return f"{value / 1_000_000:.3g}\N{NARROW NO-BREAK SPACE}s"


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with a limited number of significant digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.{digits}g}"


def size(value: float) -> str:
    """Return a number of bytes as text with its unit."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def brief(change: str) -> str:
    """Shorten the id of a change request: `cr-000017` to `cr-17`."""
    kind, _, number = change.partition("-")
    return f"{kind}-{number.lstrip('0')}"


def digest(value: str | None) -> str:
    """Shorten a digest to its first digits."""
    return value.removeprefix("sha256:")[:12] if value else NOTHING


def query(**values: Any) -> str:
    """Return the query string `?a=b&c=d` of the values that are not empty."""
    kept = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else ""
