"""Tests of the learning gate for a candidate that already answers a share, evaluated over all lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gates import COUNTRIES, K, bundle, greedy, log

from scorer.learn.experience import Experience, concatenate
from scorer.learn.gate.estimate import digests_of, gather, lane_share
from scorer.stats.means import effective_sample_size

TRUTH = np.full((len(COUNTRIES), K), 0.6)
TRUTH[:, 1] = 0.7


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    root = tmp_path_factory.mktemp("lanes")
    return {
        name: (root / name, bundle(root / name, prefers=at, epsilon=0.05))
        for at, name in enumerate(("live", "candidate"))
    }


def served(bundles, share: float, n: int, seed: int) -> Experience:
    """Return the decisions of both lanes on the same traffic."""
    parts = []
    for name, part, best in (("live", 1 - share, 0), ("candidate", share, 1)):
        logged = log(TRUTH, n=round(n * part), seed=seed + best, epsilon=0.05, best=best)
        parts.append(replace(logged, bundles=(bundles[name][1],)))
    both = concatenate(parts)
    return both.take(np.argsort(both.time_ms, kind="stable"))


def gathered(bundles, experience):
    return gather(experience, bundles["candidate"][0], bundles["live"][0])


def test_no_weight_is_above_one_over_the_share(bundles):
    result = gathered(bundles, served(bundles, 0.1, 4_000, 1))
    assert result.lanes == pytest.approx(0.1)
    weights = result.weights(result.candidate)
    assert weights.max() <= 1 / 0.1
    assert weights.mean() == pytest.approx(1, abs=0.1)
    alone = gathered(bundles, served(bundles, 0.1, 4_000, 1).take(slice(0, None)))
    naive = replace(alone, logging=alone.settled.pmf.astype(np.float64), lanes=None)
    assert naive.weights(naive.candidate).max() > 50
    assert effective_sample_size(weights) > 2 * effective_sample_size(naive.weights(naive.candidate))
    assert result.difference().std() < 0.6 * naive.difference().std()


def test_the_difference_is_unbiased_with_any_oracle(bundles):
    expected = float((greedy(1, 1, 0.05) - greedy(0, 1, 0.05))[0] @ TRUTH[0])
    means = [
        float(gathered(bundles, served(bundles, 0.2, 1_500, seed)).difference().mean())
        for seed in range(0, 80, 2)
    ]
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - expected) < 3 * error
    assert error < 0.005


def test_decisions_of_a_third_bundle_keep_their_own_propensities(bundles):
    both = served(bundles, 0.2, 1_000, 1)
    other = replace(log(TRUTH, n=200, seed=9, best=2), bundles=("sha256:other",))
    mixed = concatenate([both, other])
    assert lane_share(mixed, {bundles["candidate"][1]}, {bundles["live"][1]}) is None
    result = gathered(bundles, mixed)
    rows = np.arange(len(result.settled))
    assert np.allclose(result.logging[rows, result.settled.action], result.settled.propensity)
    only_live = both.take(both.bundle == both.bundles.index(bundles["live"][1]))
    assert gathered(bundles, only_live).lanes is None


def test_no_difference_exceeds_the_distance(bundles):
    result = gathered(bundles, served(bundles, 0.2, 1_000, 1))
    assert result.distance() == pytest.approx(0.95, abs=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth = rng.integers(0, 2, result.live.shape)
        assert (
            abs(float(((result.candidate - result.live) * truth).sum(axis=1).mean()))
            <= result.distance() + 1e-12
        )


def test_a_bundle_is_identified_by_its_digest_before_the_verdict(bundles, tmp_path):
    from scorer.learn.gate.judge import judge
    from scorer.learn.gate.settings import GateSettings
    from scorer.learn.guardrails.settings import GuardrailSettings
    from scorer.learn.report.write import write_verdict

    both = served(bundles, 0.2, 3_000, 1)
    (candidate, digest), (live, _) = bundles["candidate"], bundles["live"]
    gate = GateSettings(margin=0.9)
    verdict = judge(both, candidate, live, gate, GuardrailSettings(), experience_digest="sha256:x")
    verdict = write_verdict(verdict, candidate, tmp_path / "run")
    assert verdict.evidence.lanes == pytest.approx(0.2)
    assert digests_of(tmp_path / "run" / "bundle") == {digest, verdict.bundle}
    again = gather(both, tmp_path / "run" / "bundle", live)
    assert again.lanes == pytest.approx(0.2)
