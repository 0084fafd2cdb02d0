"""Fakes for components that a unit test does not start."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.config import CheckpointSettings
from scorer.control.dataplane import Addresses, LoadFor
from scorer.control.lanes import LaneTable
from scorer.errors import BundleError, ConfigError, LoadError, SwapError


def fake_manifest(*, name: str = "fraud-checkout", kind: str = "score", content: str = "1") -> bytes:
    """Return the manifest of a `fake_bundle`."""
    forest = f"forest {content}".encode()
    manifest = {
        "format": 1,
        "name": name,
        "kind": kind,
        "created_at": "2026-01-02T03:04:05Z",
        "program": [{"kind": "forest"}, {"kind": "threshold"}],
        "files": {"forest.bin": {"sha256": hashlib.sha256(forest).hexdigest(), "bytes": len(forest)}},
        "lineage": {"run_id": f"run-{content}", "metrics": {"auc": 0.9}},
    }
    return json.dumps(manifest).encode()


def fake_bundle(
    directory: Path, *, name: str = "fraud-checkout", kind: str = "score", content: str = "1"
) -> str:
    """Write a directory with the layout of a bundle; return its digest by `fake_verify`."""
    directory.mkdir(parents=True)
    (directory / "forest.bin").write_bytes(f"forest {content}".encode())
    (directory / "manifest.json").write_bytes(fake_manifest(name=name, kind=kind, content=content))
    return fake_verify(directory)


def similar_contents(digits: int) -> tuple[str, str]:
    """Return two contents whose bundles' digests start with the same digits."""
    seen: dict[str, str] = {}
    for number in range(10_000):
        content = f"alike {number}"
        prefix = hashlib.sha256(fake_manifest(content=content)).hexdigest()[:digits]
        if prefix in seen:
            return seen[prefix], content
        seen[prefix] = content
    raise AssertionError("no two digests with the same first digits")


def fake_verify(directory: Path) -> str:
    """Check the file hashes as a real verification does; return the SHA-256 of the manifest."""
    text = (directory / "manifest.json").read_bytes()
    for file, entry in json.loads(text)["files"].items():
        result = hashlib.sha256((directory / file).read_bytes()).hexdigest()
        if result != entry["sha256"]:
            raise BundleError(f'"{file}" was altered')
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


class FakeDataPlane:
    """Keeps the contract of the data plane without sockets, and records loads and swaps in their order."""

    def __init__(self) -> None:
        self.loaded: dict[str, Path] = {}
        self.tables: list[LaneTable] = []
        self.calls: list[str] = []
        self.refuse: dict[str, str] = {}
        """The bundles that `load` refuses: digest to reason."""
        self.refuse_swaps: str | None = None
        self.drained: list[float] = []
        self.wanted: dict[str, LoadFor | None] = {}
        self.previous: dict[str, str] = {}
        self.registry: tuple[bool, int] | None = None
        self.is_pool = False
        """Whether the server belongs to the shadow pool and evaluates the pool's lanes."""
        self.extra_status: dict[str, Any] = {}
        """Fields of `status` besides the bundles."""
        self.releases: dict[str, int] = {}
        """Release in the signature, by digest."""
        self.breakers: dict[str, str] = {}
        """State of each breaker that is not closed, by digest."""
        self.quarantined = 0
        self.lists: dict[str, int] = {}
        """Version of each list in use."""
        self.entered = threading.Event()
        self.may_load = threading.Event()
        self.may_load.set()

    def load(self, path: Path, digest: str, wanted: LoadFor | None = None) -> Mapping[str, Any]:
        self.wanted[digest] = wanted
        self.calls.append(f"load {digest[7:11]}")
        self.entered.set()
        assert self.may_load.wait(20)
        if digest in self.refuse:
            raise LoadError(self.refuse[digest])
        try:
            result = fake_verify(path)
        except BundleError as error:
            raise LoadError(str(error)) from error
        if result != digest:
            raise LoadError(f"digest is {result}")
        report: dict[str, Any] = {"name": "fraud-checkout", "load_ms": 1.5, "bytes": 10}
        if digest in self.releases:
            name, release = (
                str(json.loads((path / "manifest.json").read_bytes())["name"]),
                self.releases[digest],
            )
            if wanted is not None and release < wanted.floors.get(name, 0):
                raise LoadError(f"it is release {release}, and release {wanted.floors[name]} has been served")
            report["signed"] = {"name": name, "release": release, "key": "k", "signed_at": ""}
        self.loaded[digest] = path
        return report

    def load_list(
        self, path: Path, digest: str, name: str, minimum_version: int = 0, *, known: bool = False
    ) -> Mapping[str, Any]:
        """Accept every version that is new enough, except those in `refuse`."""
        self.calls.append(f"list {digest[7:11]}")
        if digest in self.refuse:
            raise LoadError(self.refuse[digest])
        version = int(json.loads((path / "manifest.json").read_bytes())["list"]["version"])
        if version < minimum_version:
            raise LoadError(f"version {version} is older than version {minimum_version}")
        before, self.lists[name] = self.lists.get(name, 0), version
        return {"name": name, "version": version, "previous": before, "already_loaded": before == version}

    def note_list_copy_failed(self, name: str) -> None:
        self.calls.append(f"list {name} not copied")

    def swap(self, table: LaneTable, previous: Mapping[str, str] | None = None) -> None:
        if self.tables and table == self.tables[-1]:
            self.previous = dict(previous or {})
            return
        self.calls.append(f"swap {table.version}")
        if self.refuse_swaps is not None:
            raise SwapError(self.refuse_swaps)
        missing = self._used(table) - set(self.loaded)
        if missing:
            raise SwapError(f"not loaded: {missing}")
        if self.tables and table.version <= self.tables[-1].version:
            raise SwapError(f"version {table.version} is not newer")
        self.tables.append(table)
        self.previous = dict(previous or {})

    def add_checkpoint(self, name: str, settings: CheckpointSettings) -> None:
        if name in self.refuse:
            raise ConfigError(self.refuse[name])
        self.calls.append(f"add {name}")

    def unload(self, digest: str) -> None:
        self.calls.append(f"unload {digest[7:11]}")
        assert not self.tables or digest not in self._used(self.tables[-1]), "a bundle in use was unloaded"
        self.loaded.pop(digest, None)

    def note_registry(self, reachable: bool, last_seen_ms: int) -> None:
        self.registry = (reachable, last_seen_ms)

    def forget_entity(self, entity: str, key: str) -> Mapping[str, Any]:
        """Accept every entity, which then has no state any more."""
        self.calls.append(f"forget {entity}")
        return {"known": True, "pending": 1}

    def note_quarantined(self, bundles: int) -> None:
        self.quarantined = bundles

    def status(self) -> Mapping[str, Any]:
        bundles = [
            {"digest": digest, "decisions": 3, "breaker": self.breakers.get(digest, "closed")}
            for digest in self.loaded
        ]
        return {"bundles": bundles, **self.extra_status}

    def _used(self, table: LaneTable) -> set[str]:
        observing = (lane for lanes in table.observe.values() for lane in lanes)
        return table.bundles() | {lane.bundle for lane in observing if self.is_pool or not lane.pool}

    def events(self) -> Sequence[str]:
        return []

    def operator(self, pem: bytes, token: str | None) -> Mapping[str, str]:
        return {"principal": "spiffe://example.org/operator"}

    def addresses(self) -> Addresses:
        return Addresses(("127.0.0.1:1",), None)

    def drain(self, seconds: float) -> None:
        self.drained.append(seconds)


class RecordedEvents:
    """An event stream whose events a test can read."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self.lines.append(data)
        return len(data)

    def flush(self) -> None:
        pass

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def named(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.all() if record["event"] == event]
