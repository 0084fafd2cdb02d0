"""What the generations of action and of score checkpoints share: places, the live bundle, and publishing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.learn.errors import DataError
from scorer.learn.schedule.runner import JobStep
from scorer.learn.schedule.workspace import digest
from scorer.learn.settings import LearnSettings

if TYPE_CHECKING:
    from scorer.learn.gate.publish import ChangeRequests
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.source.interface import DecisionSource

LIVE, CANDIDATE = "live", "candidate"
DRIFT = "drift.json"
"""File of a generation that an alert of drift began: the alert."""
EVALUATION, VERDICT, PUBLISHED = "evaluation.json", "verdict", "published.json"


class GenerationPaths:
    """Where the settings point, from the folder of their file.

    Args:
        settings: learn.toml.
        base: its folder.
    """

    def __init__(self, settings: LearnSettings, base: Path) -> None:
        self.schedule, self._source = settings.schedule, settings.source
        self._base = base

    @property
    def source(self) -> DecisionSource:
        """Source of decisions and outcomes: the logs and tables that `logs` names."""
        from scorer.log.source.addresses import decision_source

        return decision_source(self.schedule.logs, self._base, self._source)

    @property
    def reader_key(self) -> Path | None:
        """File of the private key of encrypted features."""
        return self._base / self.schedule.reader_key if self.schedule.reader_key else None

    @property
    def opened_reader_key(self) -> ReaderKey | None:
        """The private key of encrypted features."""
        from scorer.log import ReaderKey

        return None if self.reader_key is None else ReaderKey.from_file(self.reader_key)

    @property
    def registry(self) -> str:
        """Location of the registry, as `open_registry` takes it."""
        named = self.schedule.registry
        return named if named.startswith("mlflow:") else str(self._base / named)


def copy_live(places: GenerationPaths, out: Path) -> str:
    """Copy the live bundle to `LIVE` below a folder, and return its digest.

    Raises:
        DataError: the bundle is of another kind than `[schedule] kind`.
    """
    from scorer.bundle import read_manifest
    from scorer.registry import open_registry

    store = open_registry(places.registry)
    try:
        target = store.resolve(places.schedule.alias)
        (out / LIVE).mkdir()
        store.copy(target, out / LIVE)
    finally:
        store.close()
    kind = read_manifest(out / LIVE).kind
    if kind != places.schedule.kind:
        raise DataError(
            f'"{places.schedule.alias}" points to a bundle of kind "{kind}"; set schedule.kind = "{kind}"'
        )
    return target.digest


def bundle_shelf(places: GenerationPaths, live: Path, earlier: Sequence[Path]) -> BundleShelf:
    """The bundles that the logs may speak of; see `join_logs` for the arguments."""
    from scorer.log import BundleShelf

    return BundleShelf(_bundles(places, live, earlier), required=False)


def _bundles(places: GenerationPaths, live: Path, earlier: Sequence[Path]) -> list[Path]:
    """Directories in which the log's bundles may be: the registry's, and what earlier generations kept."""
    found = [live]
    if not places.registry.startswith("mlflow:"):
        found.append(Path(places.registry))
    for folder in earlier:
        found += [path for name in (LIVE, VERDICT) for path in (folder / name,) if path.is_dir()]
    return found


def publish_step(
    places: GenerationPaths, requests: ChangeRequests | None, folder: Path, data: str
) -> JobStep:
    """The last step: publish what the verdict allows.

    Args:
        places: logs and registry.
        requests: the platform that manages the checkpoint, if any.
        folder: of the generation.
        data: name of the file that the verdict is based on.
    """
    drift = {"drift": digest(folder / DRIFT)} if (folder / DRIFT).is_file() else {}
    return JobStep(
        "publish",
        (data, VERDICT, *((CANDIDATE,) if drift else ())),
        (PUBLISHED,),
        partial(_publish, places, requests, data),
        {"alias": places.schedule.alias} | drift,
    )


def _publish(
    places: GenerationPaths, requests: ChangeRequests | None, data: str, there: Path, out: Path
) -> Mapping[str, Any]:
    from scorer.durable import write_atomically
    from scorer.learn.gate.drifted import publish_test
    from scorer.learn.gate.publish import publish
    from scorer.registry import open_registry

    store = open_registry(places.registry)
    by = f"generation {there.name}"
    try:
        if (there / DRIFT).is_file():
            done = publish_test(
                there / VERDICT,
                there / CANDIDATE,
                store,
                places.schedule.alias,
                drift=json.loads((there / DRIFT).read_bytes()),
                by=by,
                requests=requests,
            )
        else:
            done = publish(
                there / VERDICT,
                store,
                places.schedule.alias,
                experience=there / data,
                by=by,
                requests=requests,
            )
    finally:
        store.close()
    # Whether this very call moved the alias differs when it is done again; what holds afterwards does not.
    says = {key: value for key, value in asdict(done).items() if key != "moved"}
    write_atomically(out / PUBLISHED, json.dumps(says, indent=1).encode() + b"\n")
    return says
