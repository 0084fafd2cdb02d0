"""Publishes what a verdict allows, and nothing else.

In order: everything is checked, the bundle is pushed (which changes nothing for anyone), and the alias is
moved in one transaction of the registry. Where a platform manages the checkpoint, a change request is drafted
there in place of the last step, with the verdict as its evidence. A crash leaves the alias where it was;
publishing again goes on from wherever the first attempt stopped, and a third time changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from scorer.bundle import verify
from scorer.bundle.lineage import digest_of
from scorer.learn.errors import DataError
from scorer.learn.experience_files import read
from scorer.learn.gate.verdict import BUNDLE, KEY, Verdict, VerdictEvidence, content_digest, read_verdict
from scorer.registry import RegistryBackend
from scorer.registry.reference import parse_alias

MIX = "candidate"
"""The alias of a bundle that takes a share of the traffic beside the live one."""


@dataclass(frozen=True, slots=True)
class Requested:
    """A change request for what the loop made.

    Attributes:
        change: its id; empty where the platform refused to draft one.
        state: of the change request.
        waits: why it was not submitted; empty where it was.
    """

    change: str
    state: str
    waits: str


class ChangeRequests(Protocol):
    """The platform that manages the checkpoint of a loop."""

    def request(
        self,
        kind: Literal["test", "release", "overlay"],
        bundle: str,
        *,
        title: str,
        description: str,
        evidence: Mapping[str, Any],
    ) -> Requested:
        """Draft a change request, once for each kind and bundle, and submit it where that is permitted.

        Args:
            kind: Of the change.
            bundle: Its digest; the registry has the bundle.
            title: One line.
            description: More of it.
            evidence: What the loop bases it on, as JSON.
        """


@dataclass(frozen=True)
class Published:
    """What publishing did.

    Attributes:
        decision: of the verdict.
        digest: of the bundle; empty where the verdict says wait.
        alias: what points to it now.
        moved: whether this call moved the alias.
        lanes: shares by alias: what a checkpoint serves now.
        requested: where a platform manages the checkpoint: the change request there.
    """

    decision: Literal["promote", "mix", "wait"]
    digest: str
    alias: str
    moved: bool
    lanes: tuple[tuple[str, float], ...]
    requested: Requested | None = None


def publish(
    directory: Path,
    registry: RegistryBackend,
    alias: str,
    *,
    experience: Path,
    by: str | None = None,
    requests: ChangeRequests | None = None,
) -> Published:
    """Does what the verdict says.

    Args:
        directory: what `write_verdict` made.
        registry: where bundles and aliases are.
        alias: ``name@live``: what serves, and what a promotion moves.
        experience: the decisions that judged: their digest must be the verdict's.
        by: who, for the alias's history.
        requests: the platform that manages the checkpoint. No alias is moved then, and a change request is
            drafted: a RELEASE for a promotion, a TEST for a share of the traffic. None: none manages it.

    Raises:
        DataError: verdict, bundle, experience or live alias are not those that belong together.
    """
    target = parse_alias(alias)
    verdict = read_verdict(directory)
    evidence = verdict.evidence
    if evidence.decision == "wait":
        return Published("wait", "", alias, moved=False, lanes=((alias, 1.0),))
    digest = _checked(directory, verdict)
    # A score checkpoint is judged on a labelled table, which its file's digest identifies.
    found = read(experience).digest() if evidence.scores is None else digest_of(experience)
    if found != evidence.window.experience:
        raise DataError(
            f'"{experience}" is not the experience that was judged ({found[:19]}, not'
            f" {evidence.window.experience[:19]}); judge the candidate again"
        )
    live = registry.aliases().get(str(target))
    if live is None:
        raise DataError(
            f'"{alias}" points nowhere; point it to the live bundle that was judged against first'
        )
    if live not in {digest, evidence.live.digest}:
        raise DataError(
            f'"{alias}" points to {live[:19]}, the candidate was judged against {evidence.live.digest[:19]};'
            " judge it against what is live now"
        )
    promoted = evidence.decision == "promote"
    name = target.alias if promoted else MIX
    _not_taken_back(registry, f"{target.name}@{name}", digest)
    pushed = registry.push(directory / BUNDLE, by=by)
    if requests is not None:
        requested = requests.request(
            "release" if promoted else "test",
            pushed,
            title=f"Learned bundle {pushed[7:19]}: {evidence.decision}",
            description=reason_of(evidence),
            evidence=evidence.model_dump(mode="json"),
        )
        return Published(
            evidence.decision, pushed, str(target), moved=False, lanes=((alias, 1.0),), requested=requested
        )
    change = registry.alias(target.name, name, pushed, by=by, reason=reason_of(evidence))
    lanes: tuple[tuple[str, float], ...] = ((alias, 1.0),)
    if not promoted:
        lanes = ((alias, 1 - evidence.share), (f"{target.name}@{MIX}", evidence.share))
    return Published(evidence.decision, pushed, f"{target.name}@{name}", change is not None, lanes)


def _not_taken_back(registry: RegistryBackend, alias: str, digest: str) -> None:
    """A verdict is good for one release: running it again must not undo a rollback."""
    aliases = registry.aliases()
    if alias not in aliases or aliases[alias] == digest:
        return
    if any(change.digest == digest for change in registry.history(alias)):
        raise DataError(
            f'"{alias}" pointed to {digest[:19]} and was taken back; judge the candidate on new decisions'
        )


def reason_of(evidence: VerdictEvidence) -> str:
    """One line for the alias's history; the whole evidence is in the bundle's lineage."""
    low = "unknown" if evidence.difference.low is None else f"{evidence.difference.low * 100:+.2f}"
    return (
        f"gate: {evidence.decision}, share {evidence.share:g}, {evidence.difference.value * 100:+.2f} points"
        f" (lower bound {low}) on {evidence.window.settled} decisions against {evidence.live.digest[:19]}"
    )


def _checked(directory: Path, verdict: Verdict) -> str:
    """The digest of the bundle beside a verdict, once everything about it is as the verdict says."""
    bundle = directory / BUNDLE
    digest = verify(bundle).digest
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    if digest != verdict.bundle or content_digest(manifest) != verdict.evidence.candidate.content:
        raise DataError(f'"{bundle}" is not the bundle of its verdict; judge the candidate again')
    if manifest["lineage"]["metrics"].get(KEY) != verdict.evidence.model_dump(mode="json"):
        raise DataError(f'"{directory}": the verdict is not the one in the bundle\'s lineage; judge again')
    return digest
