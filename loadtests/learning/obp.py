"""Open Bandit Pipeline 0.5.7 (Apache-2.0), the reference of off-policy evaluation in Python.

The package requires Python below 3.11 and PyTorch, but the functions that are used here need neither. It is
therefore installed without its dependencies in the environment of learning's peers. If PyTorch is missing, an
empty module replaces it during the import; the package's neural networks are not used.

    python -m loadtests.learning.obp INPUTS.npz OUTPUTS.npz     `estimates`, from another environment
    python -m loadtests.learning.obp --golden tests/golden/ope  the reference numbers of the parity test
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

VERSION = "0.5.7"
ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".build/learning/venv/bin/python"
# Settings of Switch-DR and DRos, among which SLOPE chooses as well.
LAMBDAS = (2.0, 5.0, 10.0, 50.0, 100.0, 1000.0, float("inf"))

_ABSENT = (
    "torch",
    "torch.nn",
    "torch.nn.functional",
    "torch.optim",
    "torch.utils",
    "torch.utils.data",
    "pyieoe",
)


class _Absent(types.ModuleType):
    """A module in which every name is an empty class, which is enough for annotations and base classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


@cache
def load() -> Any:
    """Import the package `obp`. Return None if it is not installed."""
    if importlib.util.find_spec("obp") is None:
        return None
    stood_in = []
    for name in _ABSENT:
        parent, _, child = name.rpartition(".")
        if parent in stood_in or (not parent and importlib.util.find_spec(name) is None):
            sys.modules[name] = _Absent(name)
            stood_in.append(name)
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            obp = importlib.import_module("obp")
            importlib.import_module("obp.ope")
    finally:
        # Other code must not import the empty modules.
        for name in stood_in:
            del sys.modules[name]
    if obp.__version__ != VERSION:
        raise RuntimeError(f"obp {obp.__version__} is installed; the figures are about {VERSION}")
    return obp


def inputs(seed: int, n: int, actions: int) -> dict[str, np.ndarray]:
    """Return a log and a policy with weights from light to heavy, and a reward model with errors."""
    rng = np.random.default_rng(seed)
    logging = 0.7 * rng.dirichlet(np.full(actions, 0.5), n) + 0.3 / actions
    target = rng.dirichlet(np.full(actions, 0.4), n)
    truth = rng.uniform(0.2, 0.99, (n, actions))
    action = np.minimum((np.cumsum(logging, axis=1) < rng.random((n, 1))).sum(axis=1), actions - 1)
    rows = np.arange(n)
    return {
        "action": action,
        "reward": (rng.random(n) < truth[rows, action]).astype(np.float64),
        "logging": logging,
        "target": target,
        "model": np.clip(truth + rng.normal(0, 0.1, truth.shape), 0, 1),
        "group": np.arange(actions) % max(2, actions // 3),
    }


def estimates(given: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the package's estimates for `inputs`."""
    ope = load().ope
    rows = np.arange(len(given["action"]))
    common = {
        "reward": given["reward"],
        "action": given["action"],
        "action_dist": given["target"][:, :, None],
        "pscore": given["logging"][rows, given["action"]],
        "estimated_rewards_by_reg_model": given["model"][:, :, None],
        "position": np.zeros(len(rows), dtype=int),
    }
    made: dict[str, Any] = {
        "ipw": ope.InverseProbabilityWeighting(),
        "snipw": ope.SelfNormalizedInverseProbabilityWeighting(),
        "dm": ope.DirectMethod(),
        "dr": ope.DoublyRobust(),
        "sndr": ope.SelfNormalizedDoublyRobust(),
        "ipw-clipped": ope.InverseProbabilityWeighting(lambda_=5.0),
        "switch-dr-slope": ope.SwitchDoublyRobustTuning(lambdas=list(LAMBDAS)),
        "dr-os-slope": ope.DoublyRobustWithShrinkageTuning(lambdas=list(LAMBDAS)),
    }
    for value in LAMBDAS:
        made[f"switch-dr-{value:g}"] = ope.SwitchDoublyRobust(lambda_=value)
        made[f"dr-os-{value:g}"] = ope.DoublyRobustWithShrinkage(lambda_=value)
    found = {}
    for name, estimator in made.items():
        estimate = getattr(estimator, "estimate_policy_value_with_tuning", estimator.estimate_policy_value)
        found[name] = float(estimate(**common))
    levels = int(given["group"].max()) + 1
    mips = ope.MarginalizedInverseProbabilityWeighting(n_actions=given["target"].shape[1])
    found["mips"] = float(
        mips.estimate_policy_value(
            context=np.zeros((len(rows), 1)),
            reward=given["reward"],
            action=given["action"],
            action_embed=given["group"][given["action"]][:, None],
            pi_b=given["logging"][:, :, None],
            action_dist=common["action_dist"],
            position=common["position"],
            p_e_a=np.eye(levels)[given["group"]][:, :, None],
        )
    )
    return found


def ours(given: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the estimates of `scorer.learn.ope` for `inputs`."""
    from scorer.learn import ope

    rows = np.arange(len(given["action"]))
    logged = ope.Logged(
        action=given["action"],
        reward=given["reward"],
        propensity=given["logging"][rows, given["action"]],
        pmf=given["logging"],
    )
    target = ope.Target(logged, given["target"], given["model"])
    switches = [ope.switch_dr(target, value) for value in LAMBDAS]
    shrunk = [ope.dr_os(target, value) for value in LAMBDAS]
    found = {
        "ipw": ope.ipw(target),
        "snipw": ope.snipw(target),
        "dm": ope.dm(target),
        "dr": ope.dr(target),
        "sndr": ope.sndr(target),
        "ipw-clipped": ope.ipw(target, 5.0),
        "switch-dr-slope": ope.slope(switches).estimate,
        "dr-os-slope": ope.slope(shrunk).estimate,
        "mips": ope.ipw(ope.marginal(target, given["group"][:, None])),
    }
    found |= {f"switch-dr-{value:g}": made for value, made in zip(LAMBDAS, switches, strict=True)}
    found |= {f"dr-os-{value:g}": made for value, made in zip(LAMBDAS, shrunk, strict=True)}
    return {name: estimate.value for name, estimate in found.items()}


def elsewhere(given: Mapping[str, np.ndarray], python: Path = PEERS) -> dict[str, float] | None:
    """Return `estimates` from the peers' environment, or None if that does not have the package."""
    if not python.is_file():
        return None
    probe = subprocess.run(
        [python, "-c", "import importlib.util as u; exit(u.find_spec('obp') is None)"], check=False
    )
    if probe.returncode:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "in.npz"), Path(folder, "out.npz")
        np.savez(source, **given)
        subprocess.run(
            [python, "-W", "ignore", "-m", "loadtests.learning.obp", source, result],
            check=True,
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}/python:{ROOT}", "OMP_NUM_THREADS": "1"},
        )
        with np.load(result) as found:
            return {name: float(found[name]) for name in found.files}


def reference(given: Mapping[str, np.ndarray]) -> dict[str, float] | None:
    """Return `estimates` from this process or the peers' environment; None if neither has the package."""
    return estimates(given) if load() is not None else elsewhere(given)


def main() -> None:
    """Write the estimates of an input file, or the reference numbers of the parity test."""
    first, second = sys.argv[1:]
    if first == "--golden":
        given = inputs(seed=0, n=40, actions=5)
        document = {
            "made by": f"python -m loadtests.learning.obp --golden, obp {VERSION}, numpy {np.__version__}",
            "inputs": {name: column.tolist() for name, column in given.items()},
            "estimates": estimates(given),
        }
        Path(second).mkdir(parents=True, exist_ok=True)
        Path(second, "obp.json").write_text(json.dumps(document, indent=1) + "\n")
        return
    with np.load(first) as given:
        np.savez(second, **estimates(dict(given)))


if __name__ == "__main__":
    main()
