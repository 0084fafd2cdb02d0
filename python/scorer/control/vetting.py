"""The rules which bundles a server may load: a quarantine by digest, and the lowest release of each name.

Both are stored in `<state_dir>/vetting.json`. The data plane checks the signature of a bundle and its release
before it reads the other files of the bundle; the lowest releases are passed to it with each load.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scorer.config.model import BundleSettings
from scorer.durable import write_atomically
from scorer.errors import BundleError, LoadError, ScorerError, SignatureError

FILE = "vetting.json"
_FORMAT = 1
_MOST = 10_000
"""Largest number of bundles in quarantine."""
_MOST_NAMES = 100
"""Largest number of bundle names of one checkpoint whose releases are stored; the newest are kept."""
_MOST_TEXT = 500
"""Largest number of characters of a name or a reason; the rest is cut."""


class VettingError(ScorerError):
    """The file `vetting.json` cannot be read, or the quarantine is full."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An entry of the quarantine: when, by whom and why the bundle was added."""

    at_ms: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Saved:
    format: int = _FORMAT
    quarantine: Mapping[str, Quarantined] = field(default_factory=dict)
    releases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


_SAVED = TypeAdapter(_Saved)


class Vetting:
    """The quarantine and the lowest releases of one server. Only `read` and `write` access the file.

    Args:
        directory: The state directory.
        settings: The settings `bundles`.
    """

    def __init__(self, directory: Path, settings: BundleSettings) -> None:
        self._path = directory / FILE
        self._settings = settings
        self._saved = _Saved()

    # --- the file ---

    def read(self) -> None:
        """Read the file that an earlier process of this server wrote.

        Raises:
            VettingError: The file is damaged or of another version. The next `write` replaces it.
        """
        try:
            saved = _SAVED.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            what = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise VettingError(
                f'"{self._path}" cannot be read ({what}): the quarantine is empty, every release is taken; '
                "add what belongs there with `scorer quarantine add`"
            ) from None
        if saved.format != _FORMAT:
            raise VettingError(f'"{self._path}" is of another version; the quarantine is empty')
        self._saved = saved

    def write(self) -> None:
        """Replace the file atomically. It is on disk when this method returns.

        Raises:
            OSError: The file cannot be written.
        """
        write_atomically(
            self._path, json.dumps(_SAVED.dump_python(self._saved, mode="json"), indent=1).encode() + b"\n"
        )

    # --- the quarantine ---

    @property
    def quarantine(self) -> Mapping[str, Quarantined]:
        """The bundles in quarantine, by digest."""
        return self._saved.quarantine

    def check(self, digest: str) -> None:
        """Check that a bundle is not in quarantine.

        Raises:
            LoadError: The bundle is in quarantine.
        """
        if found := self.quarantine.get(digest):
            raise LoadError(
                f"bundle {digest} is in quarantine ({found.reason}, by {found.by}); serve another one, or "
                f"lift it with `scorer quarantine remove {digest[7:19]}`"
            )

    def check_copy(self, directory: Path) -> None:
        """Verify the signature of a bundle that this server copies without loading it.

        Args:
            directory: Directory of the copy.

        Raises:
            LoadError: This server would reject the bundle.
        """
        from scorer.bundle.check import SIGNATURE
        from scorer.bundle.signing import verify_signature

        trusted = self._settings.trusted_keys
        if not trusted or (self._settings.unsigned == "allow" and not (directory / SIGNATURE).exists()):
            return
        try:
            verify_signature(directory, trusted)
        except (SignatureError, BundleError) as error:
            raise LoadError(str(error)) from None

    def add(self, digest: str, *, by: str, reason: str) -> bool:
        """Put a bundle into quarantine.

        Args:
            digest: Digest of the bundle.
            by: Name of the user, or of the component that found the failure.
            reason: The reason.

        Returns:
            Whether the bundle was not in quarantine before.

        Raises:
            VettingError: The quarantine is full.
        """
        if digest in self.quarantine:
            return False
        if len(self.quarantine) >= _MOST:
            raise VettingError(
                f"the quarantine holds {_MOST} bundles; remove those that no registry has any longer"
            )
        entry = Quarantined(time.time_ns() // 1_000_000, by[:_MOST_TEXT], reason[:_MOST_TEXT])
        self._saved = _Saved(_FORMAT, {**self.quarantine, digest: entry}, self._saved.releases)
        return True

    def remove(self, digest: str) -> bool:
        """Lift the quarantine of a bundle. Return whether the bundle was in quarantine."""
        kept = {key: value for key, value in self.quarantine.items() if key != digest}
        changed = len(kept) < len(self.quarantine)
        self._saved = _Saved(_FORMAT, kept, self._saved.releases)
        return changed

    # --- releases ---

    def floors(self, checkpoint: str) -> Mapping[str, int]:
        """Return the lowest release that this server accepts at a checkpoint, by name of the bundle."""
        served = {} if self._settings.allow_rollback else self._saved.releases.get(checkpoint, {})
        least = self._settings.minimum_release
        return {name: max(served.get(name, 0), least.get(name, 0)) for name in {*served, *least}}

    def served(self, checkpoint: str, reports: Iterable[Mapping[str, Any]]) -> bool:
        """Record the releases of the bundles that answer at a checkpoint.

        If several releases of one name share the traffic, the lowest of them is recorded, because the others
        may still be withdrawn.

        Args:
            checkpoint: Name of the checkpoint.
            reports: The data plane's reports on loading the bundles.

        Returns:
            Whether a lowest release has changed.
        """
        lowest: dict[str, int] = {}
        for report in reports:
            signed = report.get("signed") or {}
            if (name := signed.get("name")) is not None:
                lowest[name] = min(lowest.get(name, signed["release"]), signed["release"])
        before = self._saved.releases.get(checkpoint, {})
        risen = {name: release for name, release in lowest.items() if release > before.get(name, 0)}
        if not risen:
            return False
        kept = {name: release for name, release in before.items() if name not in risen}
        newest = dict([*kept.items(), *risen.items()][-_MOST_NAMES:])
        self._saved = _Saved(_FORMAT, self.quarantine, {**self._saved.releases, checkpoint: newest})
        return True
