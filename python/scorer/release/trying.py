"""Scoring of single payments in the platform's own process, to try a bundle out.

Nothing is logged as a decision, no server is called, and no traffic is touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scorer.bundle.models import Feature
from scorer.errors import BundleError
from scorer.release.answers import Tried, TriedAction
from scorer.release.errors import InvalidError
from scorer.release.lanes import recorded
from scorer.release.loaded import BundlesInMemory

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.release.answers import BundleDetail
    from scorer.release.bundles import Bundles
    from scorer.release.calendar import Calendar
    from scorer.release.model import Actor
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store

_FLAGS = {"true": 1.0, "1": 1.0, "yes": 1.0, "false": 0.0, "0": 0.0, "no": 0.0}


class Trying:
    """Scores single payments with a live or stored bundle.

    Args:
        store: The database.
        settings: The settings.
        calendar: The calendar, which checks the names of checkpoints.
        bundles: Finds bundles, as far as the actor may see them.
        loaded: The bundles in memory; None: of its own.
    """

    def __init__(
        self,
        store: Store,
        settings: PlatformFile,
        calendar: Calendar,
        bundles: Bundles,
        loaded: BundlesInMemory | None = None,
    ) -> None:
        self._store, self._settings, self._calendar, self._bundles = store, settings, calendar, bundles
        self._loaded = loaded or BundlesInMemory(bundles)

    def bundle(self, actor: Actor, checkpoint: str, reference: str | None = None) -> BundleDetail:
        """Return the bundle that a payment at a checkpoint is scored with.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            reference: A digest, a prefix of one, or name@alias; None: the bundle that answers now.

        Raises:
            NotFoundError: There is no such checkpoint or bundle that the actor may see.
        """
        self._calendar.checkpoint(checkpoint)
        if not reference:
            with self._store.read() as connection:
                reference = recorded.live_reference(connection, self._settings, checkpoint)
        return self._bundles.detail(actor, reference)

    def score(
        self, actor: Actor, checkpoint: str, values: Mapping[str, Any], *, reference: str | None = None
    ) -> Tried:
        """Score one payment.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            values: Values by feature: numbers, booleans, texts, or text of numbers and booleans. A feature
                that is absent, None or empty is missing.
            reference: As in `bundle`.

        Raises:
            InvalidError: Values do not fit the schema. The error names each feature and its rule.
        """
        import numpy as np

        detail = self.bundle(actor, checkpoint, reference)
        features = request_features(detail)
        row = np.asarray([_row(features, values)], dtype=np.float32)
        loaded = self._loaded.get(detail.info.digest)
        found = Tried(checkpoint=checkpoint, bundle=detail.info.digest, kind=detail.info.kind)
        try:
            loaded.check(row)
            if loaded.kind == "action":
                return _of_actions(found, loaded, row)
            scores = loaded.score(row)
        except BundleError as error:
            raise InvalidError(str(error)) from None
        return Tried(
            checkpoint=checkpoint,
            bundle=detail.info.digest,
            kind=detail.info.kind,
            score=float(scores.scores[0]),
            margin=float(scores.margins[0]),
            decision=loaded.labels[int(scores.bands[0])],
        )

    def explain(
        self,
        actor: Actor,
        checkpoint: str,
        values: Mapping[str, Any],
        *,
        reference: str | None = None,
        action: str = "",
    ) -> ExplainedMargin:
        """Explain the margin of a payment by exact contributions of its features.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            values: As in `score`.
            reference: As in `bundle`.
            action: For an action bundle: the action whose expected reward is explained; empty: the one with
                the largest probability.

        Raises:
            InvalidError: Values do not fit the schema, there is no such action, or the bundle has no covers.
        """
        import numpy as np

        detail = self.bundle(actor, checkpoint, reference)
        row = np.asarray([_row(request_features(detail), values)], dtype=np.float32)
        loaded = self._loaded.get(detail.info.digest)
        try:
            loaded.check(row)
            at = None
            if loaded.kind == "action":
                pmf, _ = loaded.evaluate(row)
                action = action or loaded.actions[int(np.argmax(pmf[0]))]
                if action not in loaded.actions:
                    raise InvalidError(
                        f'action: the bundle has no action "{action[:100]}"; name one of its own'
                    )
                at = loaded.actions.index(action)
            expectation, contributions = loaded.explain(row[0], action=at)
        except BundleError as error:
            raise InvalidError(str(error)) from None
        order = np.argsort(-np.abs(contributions), kind="stable")
        return ExplainedMargin(
            expectation=float(expectation),
            margin=float(expectation + contributions.sum()),
            action=action if at is not None else "",
            contributions=tuple(
                Contribution(loaded.columns[int(one)], float(contributions[one])) for one in order
            ),
        )


@dataclass(frozen=True, slots=True)
class Contribution:
    """The amount by which one feature moves a margin from its expectation."""

    feature: str
    contribution: float


@dataclass(frozen=True, slots=True)
class ExplainedMargin:
    """The exact contributions to a margin, the largest first. They add up to the margin."""

    expectation: float
    """Expectation of the margin over the training rows."""
    margin: float
    action: str
    """The action whose expected reward is explained; empty: the score."""
    contributions: tuple[Contribution, ...]


def request_features(detail: BundleDetail) -> list[Feature]:
    """Return the features that a request brings."""
    return [
        Feature.model_validate({key: value for key, value in one.items() if value is not None})
        for one in detail.features
        if not one.get("of")
    ]


def example(feature: Feature) -> float | str | bool:
    """Return a value that the schema accepts."""
    if feature.type == "flag":
        return True
    if feature.type == "category":
        return feature.categories[0]
    low, high = feature.minimum, feature.maximum
    if low is not None and high is not None:
        return float(f"{(low + high) / 2:.6g}") if low < high else low
    if low is not None:
        return max(low, 1.0)
    return 1.0 if high is None else min(high, 1.0)


def _of_actions(found: Tried, loaded: Bundle, row: Any) -> Tried:
    pmf, rewards = loaded.evaluate(row)
    actions = sorted(
        (
            TriedAction(action, float(chance), float(reward))
            for action, chance, reward in zip(loaded.actions, pmf[0], rewards[0], strict=True)
        ),
        key=lambda one: -one.probability,
    )
    return Tried(checkpoint=found.checkpoint, bundle=found.bundle, kind=found.kind, actions=tuple(actions))


def _row(features: Sequence[Feature], values: Mapping[str, Any]) -> list[float]:
    known = {feature.name for feature in features}
    problems = [
        f"{name[:100]}: the bundle has no such feature; remove it" for name in values if name not in known
    ]
    row = []
    for feature in features:
        try:
            row.append(encoded_value(feature, values.get(feature.name)))
        except ValueError as error:
            problems.append(f"{feature.name}: {error}")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InvalidError("; ".join(problems[:5]) + more)
    return row


def encoded_value(feature: Feature, value: Any) -> float:
    """Return a value as the engine takes it. Raises ValueError with the rule that it breaks."""
    text = value.strip() if isinstance(value, str) else value
    if text is None or text == "":
        if feature.missing == "refuse":
            raise ValueError("must not be missing; write a value")
        return math.nan
    if feature.type == "category":
        return _code(feature, text)
    if feature.type == "flag":
        flag = _FLAGS.get(str(text).lower())
        if flag is None:
            raise ValueError(f'"{str(text)[:40]}" is neither true nor false; write one of them')
        return flag
    return _number(feature, text)


def _code(feature: Feature, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("takes text; write a level of the category")  # noqa: TRY004 - `_row` takes ValueError
    if str(value) in feature.categories:
        return float(feature.categories.index(str(value)))
    if feature.unknown_category == "missing":
        return math.nan
    some = ", ".join(feature.categories[:8]) + (", ..." if len(feature.categories) > 8 else "")
    raise ValueError(f'"{str(value)[:40]}" is not a level; write one of {some}')


def _number(feature: Feature, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or abs(number) > 3.4e38:
        raise ValueError(f'"{str(value)[:40]}" is not a number; write one such as 12.5')
    low, high = feature.minimum, feature.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        between = f"at least {low:g}" if high is None else f"at most {high:g}"
        if low is not None and high is not None:
            between = f"from {low:g} to {high:g}"
        raise ValueError(f"{number:g} is out of range; write a number {between}")
    return number
