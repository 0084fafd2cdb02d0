"""A policy without a bundle, for simulation and off-policy evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scorer import bridge
from scorer.bundle.models import Action, PolicySpec
from scorer.errors import BundleError


class Policy:
    """A policy that turns scores of actions into probabilities, with the same code as the server.

    Args:
        spec: The policy.
        actions: The catalogue.

    Raises:
        BundleError: The policy is not valid for this catalogue.
    """

    def __init__(self, spec: PolicySpec, actions: Sequence[Action]) -> None:
        dumped = [action.model_dump(mode="json") for action in actions]
        self._raw = bridge.RawPolicy(
            json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_none=True)), json.dumps(dumped)
        )
        self._actions = len(actions)

    @property
    def voters(self) -> int:
        """Number of ensemble members whose scores bagging needs in addition to the oracle's; otherwise 0."""
        return self._raw.voters

    def pmf(self, scores: npt.ArrayLike, eligible: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
        """Return the probabilities ``[n, actions]`` of all actions.

        Args:
            scores: Scores ``[n, actions]``; with voters ``[n, 1 + voters, actions]``, the oracle's first.
            eligible: Booleans ``[n, actions]``, or None for every action.

        Raises:
            BundleError: An array has another shape.
        """
        values = np.ascontiguousarray(scores, dtype=np.float64)
        count = len(values)
        expected = (count, 1 + self.voters, self._actions) if self.voters else (count, self._actions)
        if values.shape != expected:
            raise BundleError(f"scores have shape {values.shape}, {expected} is needed")
        masks = None
        if eligible is not None:
            chosen = np.asarray(eligible, dtype=bool)
            if chosen.shape != (count, self._actions):
                raise BundleError(f"eligible has shape {chosen.shape}, {(count, self._actions)} is needed")
            masks = np.packbits(chosen, axis=1, bitorder="little").tobytes()
        out = np.empty((count, self._actions))
        self._raw.pmf(values, masks, out)
        return out

    def choose(self, pmf: npt.ArrayLike, checkpoint: str, decision_id: str) -> int:
        """Return the position of the action that the server would draw for a decision.

        Args:
            pmf: The probabilities of one row of `pmf`'s result, ``[actions]``.
            checkpoint: The checkpoint's name.
            decision_id: The decision's id.

        Raises:
            BundleError: No probability is above 0.
        """
        index = self._raw.choose(np.ascontiguousarray(pmf, dtype=np.float64), checkpoint, decision_id)
        if index is None:
            raise BundleError("pmf: no probability is above 0; pass what `pmf` returned")
        return index
