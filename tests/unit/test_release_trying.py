"""Tests of scoring one payment on the platform, and of the example programs for callers."""

from __future__ import annotations

import ast
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import FEATURES, rows
from platforms import World

from scorer.bundle import verify
from scorer.bundle.models import Feature
from scorer.release import trying
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.snippets import snippets
from scorer.v1 import scoring_pb2 as pb

VALUES = {'it\'s "odd"': 1.5, "land": 'N"L', "new": True}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("trying"), built_bundles)
    yield world
    world.close()


def test_a_payment_gets_the_decision_of_the_bundle(world: World, built_bundles: dict[str, Path]) -> None:
    row = rows(1, seed=4)[0]
    values = dict(zip(FEATURES, (str(value) for value in row.tolist()), strict=True))
    for reference, bundle in ((None, "score-1"), (world.candidate, "score-2")):
        expected = verify(built_bundles[bundle])
        tried = world.service.trying.score(
            world.actor("viewer"), "fraud.checkout", values, reference=reference
        )
        scores = expected.score(row[None])
        assert (tried.bundle, tried.score) == (expected.digest, scores.scores[0])
        assert tried.decision == expected.labels[scores.bands[0]]


def test_an_action_bundle_gives_the_whole_pmf(world: World, built_bundles: dict[str, Path]) -> None:
    row = rows(1, seed=5)[0]
    values = dict(zip(FEATURES, row.tolist(), strict=True))
    tried = world.service.trying.score(world.actor("viewer"), "action.authorise", values)
    bundle = verify(built_bundles["action-1"])
    pmf, _ = bundle.evaluate(row[None])
    assert {one.action: one.probability for one in tried.actions} == pytest.approx(
        dict(zip(bundle.actions, pmf[0].tolist(), strict=True))
    )
    chances = [one.probability for one in tried.actions]
    assert chances == sorted(chances, reverse=True)


def test_nothing_is_logged_and_no_server_is_called(world: World) -> None:
    before = len(world.fleet.calls) if hasattr(world.fleet, "calls") else None
    world.service.trying.score(world.actor("viewer"), "fraud.checkout", {"amount": 1})
    if before is not None:
        assert len(world.fleet.calls) == before


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("abc", 'amount: "abc" is not a number'),
        ("nan", "is not a number"),
        ("1e39", "is not a number"),
        (True, "is not a number"),
        ("-1", "from 0 to 10"),
        (11, "from 0 to 10"),
        ("", "amount: must not be missing"),
        (None, "amount: must not be missing"),
    ],
)
def test_a_wrong_number_is_reported_with_its_field(value: Any, why: str) -> None:
    feature = Feature(name="amount", missing="refuse", minimum=0, maximum=10)
    with pytest.raises(InvalidError, match=why):
        trying._row([feature], {"amount": value})


def test_invalid_values_and_unknown_features_are_reported_with_their_field() -> None:
    features = [
        Feature(name="land", type="category", categories=["NL", "DE"]),
        Feature(name="open", type="category", categories=["a"], unknown_category="missing"),
        Feature(name="new", type="flag"),
    ]
    assert trying._row(features, {"land": "DE", "new": "false", "open": "a"}) == [1.0, 0.0, 0.0]
    assert np.isnan(trying._row(features, {"open": "b"})).all()
    with pytest.raises(InvalidError) as result:
        trying._row(features, {"land": "XX", "new": "maybe", "more": 1})
    message = str(result.value)
    assert 'land: "XX" is not a level; write one of NL, DE' in message
    assert 'new: "maybe" is neither true nor false' in message
    assert "more: the bundle has no such feature" in message


@pytest.mark.parametrize(
    "feature",
    [
        Feature(name="a"),
        Feature(name="a", minimum=5),
        Feature(name="a", maximum=-5),
        Feature(name="a", minimum=0.1, maximum=0.2),
        Feature(name="a", type="category", categories=["x"]),
        Feature(name="a", type="flag"),
    ],
)
def test_an_example_is_valid_for_the_schema(feature: Feature) -> None:
    assert not np.isnan(trying._row([feature], {"a": trying.example(feature)})[0])


def test_bundles_of_other_projects_are_not_found(world: World) -> None:
    with pytest.raises(NotFoundError):
        world.service.trying.score(
            world.actor("outsider"), "fraud.checkout", {"amount": 1}, reference=world.candidate
        )
    with pytest.raises(NotFoundError):
        world.service.trying.score(world.actor("viewer"), "nowhere", {})


@pytest.mark.parametrize(("kind", "method"), [("score", "Score"), ("action", "SelectAction")])
def test_programs_are_valid_with_any_names(kind: str, method: str) -> None:
    python, grpcurl, java = snippets("fraud.checkout", kind, VALUES)
    tree = ast.parse(python.text)
    dicts = [ast.literal_eval(node) for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    assert dicts == [VALUES]
    words = shlex.split(grpcurl.text)
    assert words[-1] == f"scorer.v1.ScoringService/{method}"
    from google.protobuf import json_format

    request = {"score": pb.ScoreRequest, "action": pb.SelectActionRequest}[kind]()
    json_format.Parse(words[words.index("-d") + 1], request)
    assert [one.name for one in request.named.features] == list(VALUES)
    assert [one.WhichOneof("value") for one in request.named.features] == ["number", "category", "flag"]
    for name in VALUES:
        assert json.dumps(name) in java.text
    assert java.text.count("{") == java.text.count("}")


def test_the_python_program_uses_the_real_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs unchanged, except that its connection is replaced."""
    import contextlib
    from types import SimpleNamespace

    import scorer.client

    requests: list[Any] = []

    class Fake(contextlib.nullcontext[Any]):
        def __init__(self, address: str) -> None:
            super().__init__(self)

        def score(self, checkpoint: str, features: Any) -> Any:
            requests.append((checkpoint, features))
            return SimpleNamespace(score=0.5, decision="review")

    assert "checkpoint" in scorer.client.Client.score.__annotations__
    monkeypatch.setattr(scorer.client, "Client", Fake)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(snippets("fraud.checkout", "score", VALUES)[0].text, {})
    assert requests == [("fraud.checkout", VALUES)]
    assert out.getvalue() == "0.5 review\n"
