"""Reading samples of the Prometheus text format and of OpenMetrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_SAMPLE: Final = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{(?P<labels>(?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"\s+(?P<value>\S+)(?:\s.*)?"
)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One sample.

    Attributes:
        name: Name of the metric.
        labels: Values of the labels by name.
        value: The value.
    """

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """Yield the samples of a text. Comments, time stamps, exemplars and lines that are no sample are skipped.

    Args:
        text: The body of a reply to a scrape.
    """
    for line in text.split("\n"):
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        labels = {name: _unescaped(one) for name, one in _LABEL.findall(found["labels"] or "")}
        yield Sample(found["name"], labels, value)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], text)
