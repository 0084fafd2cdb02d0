"""The multi-class experiment of Open Bandit Pipeline's examples on the digits data, with our estimators.

The protocol is that of `examples/multiclass` with the command of its README. 70 % of scikit-learn's digits
are evaluation data. The logging policy is a logistic regression mixed with .6 uniform; the evaluated policy
is a random forest mixed with .1 uniform. The reward is 1 if the action is the digit. The reward model is a
gradient boosting classifier over pixels and one-hot action, cross-fitted on three folds. Switch-DR and DRos
choose their setting by SLOPE. There are 30 runs.
"""

from __future__ import annotations

import math

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, train_test_split

from scorer.learn import ope

RUNS = 30
LAMBDAS = (10, 50, 100, 500, 1000, 5000, 10000, math.inf)
# Mean and standard deviation of the relative error over the runs, from the README of the example.
PUBLISHED = {
    "dm": (0.436541, 0.017629),
    "ipw": (0.030288, 0.024506),
    "snipw": (0.022764, 0.017917),
    "dr": (0.016156, 0.012679),
    "sndr": (0.022082, 0.016865),
    "switch-dr": (0.034657, 0.018575),
    "dr-os": (0.015868, 0.012537),
}
_SEED = 12345


def relative_errors(run: int) -> dict[str, float]:
    """Return `|estimate - value| / value` of each estimator in one run."""
    pixels, digit = load_digits(return_X_y=True)
    x_train, x, y_train, y = train_test_split(pixels, digit, test_size=0.7, random_state=run)
    n, actions, rows = len(y), 10, np.arange(len(y))

    def policy(classifier: object, sharpness: float) -> np.ndarray:
        pmf = np.full((n, actions), (1 - sharpness) / actions)
        pmf[rows, classifier.fit(x_train, y_train).predict(x)] += sharpness
        return pmf

    logging = policy(LogisticRegression(max_iter=10_000, C=100, random_state=_SEED), 0.4)
    chance = np.random.RandomState(run).uniform(size=n)
    action = (np.cumsum(logging, axis=1) > chance[:, None]).argmax(axis=1)
    reward = (action == y).astype(np.float64)
    forest = RandomForestClassifier(n_estimators=30, max_depth=5, min_samples_leaf=10, random_state=_SEED)
    pmf = policy(forest, 0.9)
    value = float(pmf[rows, y].mean())

    model, onehot = np.empty((n, actions)), np.eye(actions)
    for train, test in KFold(3, shuffle=True, random_state=_SEED).split(x):
        boosted = GradientBoostingClassifier(
            n_estimators=30, learning_rate=0.01, max_depth=5, min_samples_leaf=10, random_state=_SEED
        )
        boosted.fit(np.c_[x[train], onehot[action[train]]], reward[train])
        for code in range(actions):
            given = np.c_[x[test], np.tile(onehot[code], (len(test), 1))]
            model[test, code] = boosted.predict_proba(given)[:, 1]

    logged = ope.Logged(action=action, reward=reward, propensity=logging[rows, action], pmf=logging)
    target = ope.Target(logged, pmf, model)
    found = {
        "dm": ope.dm(target),
        "ipw": ope.ipw(target),
        "snipw": ope.snipw(target),
        "dr": ope.dr(target),
        "sndr": ope.sndr(target),
        "switch-dr": ope.slope([ope.switch_dr(target, limit) for limit in LAMBDAS]).estimate,
        "dr-os": ope.slope([ope.dr_os(target, shrink) for shrink in LAMBDAS]).estimate,
    }
    return {name: abs(estimate.value - value) / value for name, estimate in found.items()}
