"""Every estimator that Open Bandit Pipeline has too gives its number on the same inputs."""

from __future__ import annotations

import json
from pathlib import Path

import components
import numpy as np
import pytest

from loadtests.learning import obp

GOLDEN = Path(__file__).parents[1] / "golden/ope/obp.json"


def test_estimates_equal_the_stored_numbers_of_the_package():
    document = json.loads(GOLDEN.read_text())
    given = {name: np.array(column) for name, column in document["inputs"].items()}
    result = obp.ours(given)
    assert result.keys() == document["estimates"].keys()
    for name, value in document["estimates"].items():
        assert result[name] == pytest.approx(value, abs=1e-9), name
    # Most settings give different results here, so the agreement is not that of a constant.
    assert len({round(value, 9) for value in document["estimates"].values()}) > 12


@pytest.mark.parametrize(("seed", "n", "actions"), [(1, 200, 3), (2, 1_000, 30)])
def test_estimates_equal_those_of_the_installed_package(seed, n, actions):
    given = obp.inputs(seed, n, actions)
    components.require("learning peers")
    theirs = obp.reference(given)
    assert theirs is not None
    result = obp.ours(given)
    for name, value in theirs.items():
        assert result[name] == pytest.approx(value, abs=1e-9), name
