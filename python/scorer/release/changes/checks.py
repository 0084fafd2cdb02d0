"""The checks before a deployment. Each can be repeated; it only creates a verified copy of the bundle."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.ids import file_digest, hex_of
from scorer.registry.files import MANIFEST, SIGNATURE
from scorer.release.changes import fit
from scorer.release.errors import InvalidError
from scorer.release.model import PLATFORM, ChangeRequest

if TYPE_CHECKING:
    from scorer.release.bundles import Bundles

_ROWS = 2000
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check."""

    passed: bool
    words: str


@dataclass(frozen=True, slots=True)
class CheckedChange:
    """The input of a check."""

    change: ChangeRequest
    live: str | None
    """Digest of the bundle with the largest share of the answers now."""
    alias: str
    p99_ms: float
    bundles: Bundles
    max_shift: float | None = None
    """For an overlay revision, the largest offset that its permission allows, in log-odds."""
    cases: str = ""
    """The author's cases that were saved with the rules, as TOML."""


def package(about: CheckedChange) -> Checked:
    """Fetch the bundle from the registry and report its size."""
    path = about.bundles.local(about.change.bundle)
    size = sum(file.stat().st_size for file in path.iterdir())
    return Checked(True, f"{about.change.bundle_name} {about.change.bundle[7:19]}, {size:,} bytes")


def verify(about: CheckedChange) -> Checked:
    """Compare every file with the manifest and the manifest with the digest, and check the signature."""
    path = about.bundles.local(about.change.bundle)
    manifest = (path / MANIFEST).read_bytes()
    digits = hex_of(about.change.bundle)
    if hashlib.sha256(manifest.replace(digits.encode(), b"0" * 64)).hexdigest() != digits:
        return Checked(False, "manifest.json is not the one that the digest names; upload the bundle again")
    listed = json.loads(manifest)["files"]
    there = {file.name for file in path.iterdir()} - {MANIFEST, SIGNATURE}
    if there != set(listed):
        other = sorted(there ^ set(listed))
        return Checked(
            False, f"{', '.join(other)}: listed and not there, or there and not listed; build it again"
        )
    for name, entry in sorted(listed.items()):
        if file_digest(path / name) != entry["sha256"]:
            return Checked(False, f"{name} is not what the manifest lists; upload the bundle again")
    try:
        signed = about.bundles.signature(about.change.bundle)
    except InvalidError as error:
        return Checked(False, str(error))
    words = f"{len(listed)} files as listed"
    if signed is None:
        return Checked(True, f"{words}; the platform has no trusted_keys to check a signature with")
    return Checked(True, f"{words}, release {signed.release} signed by key {signed.key}")


def golden(about: CheckedChange) -> Checked:
    """Load the bundle with all checks of a server, and run the author's cases."""
    from scorer.bundle import verify as load
    from scorer.bundle.check import read_schema
    from scorer.bundle.rule_cases import parse_cases, run_cases
    from scorer.errors import BundleError

    path = about.bundles.local(about.change.bundle)
    try:
        bundle = load(path, about.change.bundle)
        cases = parse_cases(about.cases)
        ran = run_cases(cases, bundle.rules, bundle, read_schema(path).features) if bundle.rules else []
    except BundleError as error:
        return Checked(False, str(error))
    failed = [f"{one.name}: {one.differences[0]}" for one in ran if not one.passed]
    if failed:
        return Checked(
            False,
            f"{len(failed)} of {len(ran)} of the author's cases failed ({failed[0]}); correct rules or cases",
        )
    forests = ", ".join(f"{forest['trees']} trees" for forest in bundle.forests)
    words = f"every golden case gives the same bits ({forests})"
    return Checked(True, f"{words}; all {len(ran)} of the author's cases pass" if ran else words)


def fits(about: CheckedChange) -> Checked:
    """Compare the bundle's kind, name and features with those of the live bundle."""
    change = about.change
    if about.live is None:
        return Checked(False, f'nothing answers at checkpoint "{change.checkpoint}"; start a server')
    candidate = about.bundles.detail(PLATFORM, change.bundle)
    live = about.bundles.detail(PLATFORM, about.live)
    found = fit.problems(candidate, live, checkpoint=change.checkpoint, alias=about.alias)
    lacking = fit.actions_lacking(about.bundles.local(change.bundle), about.bundles.local(about.live))
    if lacking:
        found.append(
            f"it does not know {len(lacking)} actions that callers may name or fall back to "
            f"({', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}); add them to its catalogue"
        )
    if found:
        return Checked(False, "; ".join(found))
    new = fit.new_features(candidate, live)
    features = sum(1 for feature in candidate.features if not feature.get("of")) - len(new)
    words = f"kind {candidate.info.kind}, {features} features that the checkpoint feeds"
    return Checked(
        True, f"{words}; new, and missing until callers send them: {', '.join(new)}" if new else words
    )


def overlay(about: CheckedChange) -> Checked:
    """Compare the largest offset of the overlay with the limit of its permission."""
    from scorer.release.revisions import shift

    largest, most = shift(about.bundles.local(about.change.bundle)), about.max_shift or 0.0
    words = f"largest offset {largest:.3g} log-odds, permitted are {most:.3g}"
    return Checked(largest <= most, words)


def warm_up(about: CheckedChange) -> Checked:
    """Measure the execution time of single rows on this machine, without a server."""
    import numpy as np

    times = measure(about.bundles.local(about.change.bundle))
    median, p99 = (float(np.percentile(times, part)) for part in (50, 99))
    words = (
        f"{len(times)} rows one by one: median {median:.1f} µs, p99 {p99:.1f} µs; the SLA is "
        f"{about.p99_ms:g} ms"
    )
    if p99 > about.p99_ms * 1000:
        return Checked(False, f"{words}; use a smaller model, or raise p99_ms of the checkpoint")
    return Checked(True, words)


def measure(path: Path) -> Any:
    """Return the execution times in microseconds of rows that the schema accepts, after a warm-up.

    Args:
        path: Directory of the bundle.
    """
    import numpy as np

    from scorer.bundle import Bundle

    bundle = Bundle.load(path)
    schema = json.loads((path / "schema.json").read_bytes())
    random = np.random.default_rng(0)
    rows = np.stack([_column(feature, random) for feature in schema["features"]], axis=1).astype(np.float32)
    times = np.empty(len(rows))
    call = bundle.score if bundle.kind == "score" else bundle.evaluate
    for place, row in enumerate(np.concatenate([rows, rows])):
        began = time.perf_counter_ns()
        call(row[None, :])
        times[place % len(rows)] = (time.perf_counter_ns() - began) / 1000
    return times


def _column(feature: dict[str, Any], random: Any) -> Any:
    import numpy as np

    if feature.get("type") == "category":
        return random.integers(0, len(feature["categories"]), _ROWS)
    if feature.get("type") == "flag":
        return random.integers(0, 2, _ROWS)
    low, high = feature.get("minimum"), feature.get("maximum")
    if low is not None and high is not None:
        # Rounded towards the inside of the range, so that the schema accepts a row at its end.
        return np.clip(random.uniform(low, high, _ROWS).astype(np.float32), np.float32(low), np.float32(high))
    values = random.lognormal(2.0, 2.0, _ROWS)
    if low is not None:
        return low + values
    return values if high is None else high - values


RUN: dict[str, Callable[[CheckedChange], Checked]] = {
    "package": package,
    "verify": verify,
    "golden": golden,
    "fit": fits,
    "warm-up": warm_up,
    "overlay": overlay,
}
"""The checks by the name of their step, in order."""
