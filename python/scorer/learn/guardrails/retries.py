"""Limits that card schemes set on trying again after a decline, counted per card token.

What is public differs between acquirers and regions and changes every year, so everything here is
configuration; the defaults and where they come from:

* Visa: no attempt after a response of category 1 ("issuer will never approve"); at most 15 re-attempts
  in 30 days after the others. Visa Core Rules, Excessive Reattempts, since April 2022; as published by
  CardPointe (support.cardpointe.com/compliance/visa-decline-rules), and by Checkout.com for the codes.
* Mastercard: no attempt after Merchant Advice Code 03 or 21 for the same card and amount in 30 days;
  a fee for each attempt after 10 declines in 24 hours (20 in the United States and Canada when the rule
  began: support.forte.net, article 11000081270) and after 35 in 30 days. Transaction Processing
  Excellence; as published by Maast (help.maast.com) and PayPal.

An attempt at the limit is allowed, the next one refused. A window is half open: what happened exactly
its length ago no longer counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from scorer.learn.section import LearnSection

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class AttemptLimit(LearnSection):
    """At most so many within a window."""

    count: int = Field(ge=1)
    hours: float = Field(gt=0)
    of: Literal["declines", "reattempts"] = "declines"
    """`declines` count every one; `reattempts` do not count the first decline of a series."""

    @property
    def window_ms(self) -> int:
        """Length of the window in milliseconds."""
        return round(self.hours * HOUR_MS)


class SchemeLimits(LearnSection):
    """Retry rules of one card scheme."""

    scheme: str
    never: tuple[str, ...] = ()
    """Responses (or advice codes) after which there is no other attempt."""
    never_days: float = Field(default=0.0, ge=0)
    """For how long; 0: for ever."""
    same_amount: bool = False
    """Count, and refuse, per card and amount rather than per card."""
    limits: tuple[AttemptLimit, ...] = ()
    source: str


class RetrySettings(LearnSection):
    """How often card schemes let a declined payment be tried again."""

    schemes: tuple[SchemeLimits, ...] = Field(
        default=(
            SchemeLimits(
                scheme="visa",
                never=("04", "07", "12", "14", "15", "41", "43", "46", "57", "R0", "R1", "R3"),
                limits=(AttemptLimit(count=15, hours=30 * 24, of="reattempts"),),
                source="Visa Core Rules, Excessive Reattempts: category 1 never, 15 re-attempts in 30 days",
            ),
            SchemeLimits(
                scheme="mastercard",
                never=("MAC03", "MAC21"),
                never_days=30,
                same_amount=True,
                limits=(AttemptLimit(count=10, hours=24), AttemptLimit(count=35, hours=30 * 24)),
                source="Mastercard Transaction Processing Excellence: 10 declines in 24 hours, 35 in 30 days;"
                " advice codes 03 and 21",
            ),
        ),
        description="One per scheme; a scheme that is not listed has no limits. never_days 0 means for ever.",
    )

    def of(self, scheme: str) -> SchemeLimits | None:
        """Return the retry rules of a card scheme."""
        return next((rules for rules in self.schemes if rules.scheme == scheme), None)


@dataclass(frozen=True)
class RetryAnswer:
    """Whether there may be another attempt."""

    allowed: bool
    why: str
    """Empty where allowed; names the rule and its source otherwise."""


@dataclass
class _Card:
    declines: list[int] = field(default_factory=list)
    """Times, ascending."""
    refused_since: int | None = None
    code: str = ""


class RetryLedger:
    """Declines per card token, in memory, pruned as it goes.

    Times are Unix milliseconds. Declines may be reported late and out of order; the same one (card,
    amount, time) twice counts once, so that a replay changes nothing.
    """

    def __init__(self, settings: RetrySettings | None = None) -> None:
        self._settings = settings or RetrySettings()
        self._cards: dict[tuple[str, str, int | None], _Card] = {}

    def __len__(self) -> int:
        return len(self._cards)

    def declined(
        self, token: str, scheme: str, at_ms: int, *, amount_cents: int, codes: Sequence[str]
    ) -> None:
        """Notes a decline.

        Args:
            token: the card's.
            scheme: as in the settings; others are not counted.
            at_ms: when.
            amount_cents: what was to be paid.
            codes: the response and, where there is one, the advice code as `MAC03`.
        """
        rules = self._settings.of(scheme)
        if rules is None:
            return
        card = self._cards.setdefault(_key(rules, token, scheme, amount_cents), _Card())
        at = bisect_left(card.declines, at_ms)
        if at == len(card.declines) or card.declines[at] != at_ms:
            card.declines.insert(at, at_ms)
        longest = max((limit.window_ms for limit in rules.limits), default=0)
        # One more than the longest window: the first decline of a series stays known.
        while len(card.declines) > 1 and card.declines[1] <= card.declines[-1] - longest:
            card.declines.pop(0)
        never = [code for code in codes if code in rules.never]
        if never and (card.refused_since is None or at_ms > card.refused_since):
            card.refused_since, card.code = at_ms, never[0]

    def approved(self, token: str, scheme: str, *, amount_cents: int) -> None:
        """Notes an approval: what follows is a new payment, not a re-attempt. `never` codes stay."""
        rules = self._settings.of(scheme)
        card = rules and self._cards.get(_key(rules, token, scheme, amount_cents))
        if rules and card and any(limit.of == "reattempts" for limit in rules.limits):
            card.declines.clear()

    def may_retry(self, token: str, scheme: str, now_ms: int, *, amount_cents: int) -> RetryAnswer:
        """Whether this card may be tried (again) now."""
        rules = self._settings.of(scheme)
        card = rules and self._cards.get(_key(rules, token, scheme, amount_cents))
        if not rules or not card:
            return RetryAnswer(allowed=True, why="")
        if card.refused_since is not None and (
            rules.never_days == 0 or now_ms < card.refused_since + round(rules.never_days * DAY_MS)
        ):
            return RetryAnswer(False, f"{card.code}: never again ({rules.source})")
        for limit in rules.limits:
            used = _used(card.declines, limit, now_ms)
            if used >= limit.count:
                return RetryAnswer(False, f"{used} {limit.of} in {limit.hours:g} hours ({rules.source})")
        return RetryAnswer(allowed=True, why="")

    def forget(self, before_ms: int) -> int:
        """Drops cards whose last decline is older and which nothing refuses for ever; how many."""
        old = [
            key
            for key, card in self._cards.items()
            if (not card.declines or card.declines[-1] < before_ms)
            and not self._lasts(key[1], card, before_ms)
        ]
        for key in old:
            del self._cards[key]
        return len(old)

    def _lasts(self, scheme: str, card: _Card, before_ms: int) -> bool:
        rules = self._settings.of(scheme)
        if rules is None or card.refused_since is None:
            return False
        return rules.never_days == 0 or card.refused_since + round(rules.never_days * DAY_MS) > before_ms


def _used(declines: list[int], limit: AttemptLimit, now_ms: int) -> int:
    within = len(declines) - bisect_right(declines, now_ms - limit.window_ms)
    if limit.of == "reattempts" and within == len(declines):
        # The series began inside the window: its first decline is the attempt, not a re-attempt.
        within -= 1
    return max(within, 0)


def _key(rules: SchemeLimits, token: str, scheme: str, amount_cents: int) -> tuple[str, str, int | None]:
    return token, scheme, amount_cents if rules.same_amount else None
