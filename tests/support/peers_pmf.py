"""Asks the real peers for probabilities at given scores; runs in the environment of `make learning-peers`.

Reads `{"scores": [[..]], "learned": n}` and writes probabilities by peer. VW's model has one feature whose
value is the cost and whose weight is learned to be 1, so that what VW predicts is the cost that was given.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def vowpal_wabbit(options: str, scores: list[list[float]], learned: int) -> list[list[float]]:
    """Return the pmf of Vowpal Wabbit per row, after it was trained on `learned` examples."""
    from vowpalwabbit import Workspace

    learner = Workspace(f"--cb_explore_adf {options} --quiet --noconstant --ignore s")
    costs = [0.3, 0.1, 0.7, 0.35]
    for at in range(learned):
        chosen = at % len(costs)
        lines = [f"|a v:{cost}" for cost in costs]
        lines[chosen] = f"0:{costs[chosen]}:0.25 {lines[chosen]}"
        learner.learn(["shared |s x", *lines])
    out = [learner.predict(["shared |s x", *(f"|a v:{1 - score!r}" for score in row)]) for row in scores]
    learner.finish()
    return out


def mabwiser(policy: str, **settings: Any) -> dict[str, Any]:
    """Return MABWiser's expectations for three arms with fixed rewards, and the number of pulls of each arm.

    The values of Softmax and Popularity are those before the Dirichlet draw.
    """
    from mabwiser.mab import MAB, LearningPolicy

    arms, decisions, rewards = ["a", "b", "c"], [], []
    for arm, (good, bad) in {"a": (9, 1), "b": (6, 4), "c": (2, 18)}.items():
        decisions += [arm] * (good + bad)
        rewards += [1] * good + [0] * bad
    mab = MAB(arms, getattr(LearningPolicy, policy)(**settings), seed=1)
    mab.fit(decisions, rewards)
    sampled = policy in {"Softmax", "Popularity"}
    result = mab._imp.arm_to_expectation if sampled else mab.predict_expectations()
    return {"expectations": [result[arm] for arm in arms], "counts": [decisions.count(arm) for arm in arms]}


def main() -> None:
    """Read one JSON object from stdin and write one to stdout."""
    request = json.loads(sys.stdin.read())
    scores, learned = request["scores"], request["learned"]
    options = {
        "epsilon": "--epsilon 0.05",
        "softmax": "--softmax --lambda 50",
        "squarecb": "--squarecb",
        "squarecb100": "--squarecb --gamma_scale 100",
    }
    answer = {name: vowpal_wabbit(text, scores, learned) for name, text in options.items()}
    arms = {
        "ucb1": mabwiser("UCB1", alpha=1.0),
        "softmax": mabwiser("Softmax", tau=0.1),
        "popularity": mabwiser("Popularity"),
    }
    sys.stdout.write(json.dumps({"vw": answer, "mabwiser": arms}) + "\n")


if __name__ == "__main__":
    main()
