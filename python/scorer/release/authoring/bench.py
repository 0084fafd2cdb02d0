"""Evaluation of the present and the edited rules of a bundle on single requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scorer.errors import BundleError
from scorer.release.errors import InvalidError
from scorer.release.rule_answers import BenchRow, RuleBench, RuledSide
from scorer.release.trying import encoded_value

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.models import Feature
    from scorer.bundle.rules import CompiledRules


@dataclass(frozen=True)
class BenchRequest:
    """A request to evaluate.

    Attributes:
        id: Id of the request, on which roll-outs depend.
        at: Time of the request.
        values: Values by feature; a feature that is absent or None is missing.
        score: The model's score; None: the bundle computes it, NaN: there is none.
        recorded: The recorded result; None: there is none.
        withheld: Number of sensitive features that the record does not have.
    """

    id: str
    at: datetime
    values: Mapping[str, Any]
    score: float | None = None
    recorded: RuledSide | None = None
    withheld: int = 0


def recorded_request(found: Mapping[str, Any]) -> BenchRequest:
    """Return the request of a recorded decision.

    Args:
        found: The decision as `scorer.release.decisions.Decisions.find` returns it.

    Raises:
        InvalidError: The platform does not know the features of the decision.
    """
    decision = found["decision"]
    if not found["features"]:
        raise InvalidError(
            f'decision "{decision["decision_id"]}": the bundle that answered it is not known, so its '
            "features have no names; choose another decision"
        )
    is_action = decision["kind"] == "action"
    score = decision.get("score")
    fell_back = bool(decision["fallback_source"])
    return BenchRequest(
        id=decision["decision_id"],
        at=decision["decided_at"],
        values={one["name"]: one["value"] for one in found["features"]},
        score=None if is_action else math.nan if fell_back or score is None else score,
        recorded=RuledSide(
            fired=tuple(one["id"] for one in decision["rules"] or ()),
            decision="" if is_action else decision["decision"],
            score=None if is_action else decision["ruled_score"] or score,
            eligible=(decision["action"],) if is_action else (),
        ),
        withheld=sum(one["withheld"] for one in found["features"]),
    )


def run_bench(
    bundle: Bundle,
    features: Sequence[Feature],
    before: CompiledRules,
    after: CompiledRules,
    requests: Sequence[BenchRequest],
) -> RuleBench:
    """Evaluate two rule sets on requests.

    Args:
        bundle: The bundle, which computes scores that are not recorded.
        features: The features of its requests.
        before: The bundle's rules.
        after: The edited rules.
        requests: The requests.

    Raises:
        InvalidError: A value does not fit the schema.
    """
    rows, scores, seconds, ids = encoded_requests(bundle, features, requests)
    sides = [_sides(bundle, rules, rows, scores, seconds, ids) for rules in (before, after)]
    return RuleBench(
        bundle.kind,
        tuple(
            BenchRow(
                decision_id=one.id if one.recorded else "",
                decided_at=one.at,
                before=first,
                after=second,
                recorded=one.recorded,
                changed=(first.decision, first.score, first.eligible)
                != (second.decision, second.score, second.eligible),
                withheld=one.withheld,
            )
            for one, first, second in zip(requests, *sides, strict=True)
        ),
    )


def encoded_requests(
    bundle: Bundle, features: Sequence[Feature], requests: Sequence[BenchRequest]
) -> tuple[Any, Any, list[int], list[str]]:
    """Return rows ``[n, features]``, scores, times in seconds since 1970 and ids of requests.

    Args:
        bundle: The bundle, which computes scores that are not recorded.
        features: The features of its requests.
        requests: The requests.

    Raises:
        InvalidError: A value does not fit the schema.
    """
    import numpy as np

    rows = np.asarray([_row(features, one) for one in requests], dtype=np.float32)
    rows = rows.reshape(len(requests), len(features))
    scores = np.full(len(requests), math.nan)
    if bundle.kind == "score" and len(requests):
        try:
            computed = bundle.score(rows).scores
        except BundleError as error:
            raise InvalidError(str(error)) from None
        scores = np.array(
            [own if one.score is None else one.score for own, one in zip(computed, requests, strict=True)]
        )
    return rows, scores, [int(one.at.timestamp()) for one in requests], [one.id for one in requests]


def _sides(
    bundle: Bundle, rules: CompiledRules, rows: Any, scores: Any, seconds: list[int], ids: list[str]
) -> list[RuledSide]:
    found = rules.evaluate(rows, scores=scores, seconds=seconds, ids=ids)
    sides = []
    for at in range(len(ids)):
        decision = ""
        score: float | None = None
        eligible: tuple[str, ...] = ()
        if bundle.kind == "score":
            if not math.isnan(scores[at]) or found.written[at]:
                decision = bundle.labels[int(found.bands[at])]
            score = None if math.isnan(found.scores[at]) else float(found.scores[at])
        else:
            eligible = tuple(
                name for name, is_left in zip(bundle.actions, found.allowed[at], strict=True) if is_left
            )
        sides.append(
            RuledSide(
                fired=tuple(rules.rules[number].id for number in found.applied[at]),
                decision=decision,
                score=score,
                eligible=eligible,
                unknown=found.unknown[at],
                errors=found.errors[at],
                conflicts=found.conflicts[at],
            )
        )
    return sides


def _row(features: Sequence[Feature], request: BenchRequest) -> list[float]:
    known = {feature.name for feature in features}
    if request.recorded is None and (extra := sorted(request.values.keys() - known)):
        raise InvalidError(f"{extra[0][:100]}: the bundle has no such feature; remove it")
    row = []
    for feature in features:
        value = request.values.get(feature.name)
        if value is None or value == "":
            row.append(math.nan)
            continue
        try:
            row.append(encoded_value(feature, value))
        except ValueError as error:
            raise InvalidError(f"{feature.name}: {error}") from None
    return row
