"""`RegistryBackend` over an MLflow server.

A bundle is the artifact directory ``model/bundle`` of a run, beside the files of its pyfunc flavour, and a
model version that points to ``model`` and has the digest in a tag. Versions of lists, and bundles that were
pushed before the flavour existed, point to the directory ``bundle`` itself. ``name@alias`` is MLflow's alias
of the registered model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.errors import BundleError, RegistryError, UnknownReferenceError
from scorer.registry import files, pushing
from scorer.registry.base import AliasChange, BundleDetails, BundleRecord, Resolved, Verifier
from scorer.registry.mlflow import artifacts, history, versions
from scorer.registry.mlflow.rest import MlflowRefusedError, Rest, now_ms
from scorer.registry.mlflow.versions import ModelVersion
from scorer.registry.reference import (
    AliasReference,
    DigestReference,
    check_expected,
    check_name,
    parse_alias,
    parse_reference,
    pick_digest,
    unknown_alias,
)
from scorer.registry.rows import before_current

SCHEME = "mlflow:"


class MlflowRegistry:
    """An MLflow server as a registry.

    Args:
        url: ``mlflow:http://127.0.0.1:5000``; the scheme ``mlflow:`` may be left out.
        verify: Replaces the complete check of a pushed bundle, for tests.
        clock_ms: Returns the time in milliseconds since the Unix epoch.
        seconds: Time limit for one request to the server, in seconds.

    Raises:
        InvalidReferenceError: The address is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        verify: Verifier | None = None,
        clock_ms: Callable[[], int] = now_ms,
        seconds: float = 10.0,
    ) -> None:
        self._rest = Rest(url.removeprefix(SCHEME), seconds=seconds)
        self._verify = verify or pushing.verified
        self._clock_ms = clock_ms
        self._sources: dict[str, ModelVersion] = {}
        """The last known model version of each digest, so that fetching a bundle needs no search."""

    @property
    def location(self) -> str:
        """Address of the MLflow server, with the prefix ``mlflow:``."""
        return f"{SCHEME}{self._rest.url}"

    # --- BundleSource ---

    def version(self, watched: Collection[str] = ()) -> Hashable:
        """Return the model version of every watched alias. A call sends one request for each alias.

        Without watched aliases, one request checks that the server can be reached.
        """
        if not watched:
            self._rest.get("/registered-models/search", max_results=1)
        return tuple(
            (str(alias), found and (found.version, found.source, found.tags.get(versions.DIGEST)))
            for alias in map(parse_alias, dict.fromkeys(watched))
            for found in [versions.by_alias(self._rest, alias.name, alias.alias)]
        )

    def resolve(self, reference: str) -> Resolved:
        """Return the bundle that ``name@alias``, a digest or a prefix of a digest names.

        Nothing is downloaded, so the path of the result is None.
        """
        parsed = parse_reference(reference)
        if isinstance(parsed, AliasReference):
            found = self._at(parsed)
            last = history.of_alias(self._history(parsed.name), str(parsed))
            moved = last[-1].at_ms if last and last[-1].digest == found.digest else None
        else:
            found, moved = self._by_digest(parsed), None
        self._sources[found.digest] = found
        return Resolved(found.digest, None, moved)

    def copy(self, target: Resolved, destination: Path) -> None:
        """Download a bundle's files into an empty directory and check each against the manifest."""
        artifacts.fetch(self._rest, self._folder(target.digest), target.digest, destination)

    def fingerprint(self, digest: str) -> Hashable:
        """Return the artifacts' folder, names and sizes, and the signature.

        The signature's content is included because a new signature has the same size as the old one.
        """
        folder = self._folder(digest)
        listing = self._rest.list_artifacts(folder)
        signature = artifacts.fetch_signature(self._rest, folder) if files.SIGNATURE in listing else b""
        return (folder, signature, *sorted(listing.items()))

    def close(self) -> None:
        """Abort running requests and reject new ones."""
        self._rest.close()

    # --- bundles ---

    def push(self, directory: str | os.PathLike[str], *, by: str | None = None) -> str:
        """Verify a bundle, upload it as artifacts of a new run and create a model version for it.

        If the bundle is already stored, only its signature is updated; if the stored copy is damaged, the
        push creates a new version. The version is created last: an interrupted push leaves a run, but no
        version that an alias could point to.

        Args:
            directory: The directory that `scorer bundle build` wrote.
            by: The user to record; default: the user of this process.

        Returns:
            The bundle's digest, ``sha256:<hex>``.

        Raises:
            BundleError: The directory does not hold a valid bundle.
            RegistryUnavailableError: The server cannot be reached, or the connection breaks.
        """
        source = Path(directory)
        with tempfile.TemporaryDirectory(prefix="scorer-push-") as made:
            copy = Path(made)
            files.copy_bundle(source, copy)
            digest = self._verify(copy)
            manifest = files.read_manifest(copy)
            name = check_name(str(manifest["name"]), "bundle name")
            if not self._is_sound(digest):
                self._upload(copy, name, digest, manifest, by or pushing.user())
            elif (copy / files.SIGNATURE).is_file():
                self._rest.upload(f"{self._folder(digest)}/{files.SIGNATURE}", copy / files.SIGNATURE)
        return digest

    def list(self, name: str | None = None, *, prefix: str = "") -> Sequence[BundleRecord]:
        """Return the bundles of one name, or all of them, newest push first."""
        if name is not None:
            check_name(name, "bundle name")
        found = versions.bundles(self._rest, name=name, prefix=f"sha256:{prefix.removeprefix('sha256:')}")
        pointing = self._pointing({version.name for version in found})
        return [_record(version, pointing) for version in found]

    def show(self, reference: str) -> BundleDetails:
        """Return everything that is stored about one bundle. Its manifest is downloaded and checked."""
        digest = self.resolve(reference).digest
        version, folder = self._sources[digest], self._folder(digest)
        with tempfile.TemporaryDirectory(prefix="scorer-show-") as made:
            manifest = artifacts.fetch_manifest(self._rest, folder, digest, Path(made))
        changes = self._history(version.name)
        touched = {change.alias for change in changes if change.digest == digest}
        return BundleDetails(
            _record(version, self._pointing({version.name})),
            f"{self.location} {version.name} version {version.version}, artifacts {folder}",
            manifest,
            tuple(change for change in changes if change.alias in touched),
        )

    def remove_list(self, digest: str) -> None:
        """Remove a stored version of a list; see `RegistryBackend.remove_list`.

        The model versions with this digest and their artifacts are deleted; their runs stay. MLflow deletes
        the aliases of a model version with it and cannot compare and delete in one step, so remove versions
        and move aliases of a list from one place.
        """
        found = self._by_digest(DigestReference(digest.removeprefix("sha256:")))
        pushing.check_removable(_record(found, self._pointing({found.name})))
        for version in versions.every(self._rest, found.name):
            if version.tags.get(versions.DIGEST) == found.digest:
                self._sources[found.digest] = version
                folder = self._folder(found.digest)
                self._rest.delete("/model-versions/delete", name=version.name, version=version.version)
                self._rest.delete_artifacts(folder)
        self._sources.pop(found.digest, None)

    # --- aliases ---

    def aliases(self) -> Mapping[str, str]:
        """Return the digest that every ``name@alias`` of a bundle points to."""
        names = {version.name for version in versions.bundles(self._rest)}
        return {alias: digest for digest, each in self._pointing(names).items() for alias in each}

    def history(self, alias: str | None = None) -> Sequence[AliasChange]:
        """Return the recorded changes of ``name@alias``, or of all aliases, oldest first.

        A move that was made with another tool is recorded at the next move that this class makes.
        """
        if alias is None:
            changes = [change for model in versions.models(self._rest) for change in history.read(model)]
            return sorted(changes, key=lambda change: (change.at_ms, change.alias, change.sequence))
        reference = parse_alias(alias)
        changes = history.of_alias(self._history(reference.name), str(reference))
        if not changes:
            raise unknown_alias(reference, self.aliases(), self.location)
        return changes

    def alias(
        self,
        name: str,
        alias: str,
        digest: str,
        *,
        by: str | None = None,
        reason: str = "",
        expected: str | None = None,
    ) -> AliasChange | None:
        """Point ``name@alias`` to a bundle; see `RegistryBackend.alias`.

        MLflow cannot compare and set in one step: two processes that move an alias within milliseconds are
        not noticed.
        """
        reference = AliasReference(check_name(name, "bundle name"), check_name(alias, "alias"))
        target = self._target(digest)
        if target.name != name:
            raise RegistryError(
                f'bundle {target.digest[:19]} is called "{target.name}", so "{reference}" cannot point to '
                f'it; use "{target.name}@{alias}"'
            )
        current = versions.by_alias(self._rest, name, alias)
        check_expected(reference, None if current is None else current.digest, expected)
        if current is not None and current.version == target.version:
            return None
        return self._move(reference, target, action="alias", by=by, reason=reason)

    def rollback(self, name: str, alias: str, *, by: str | None = None, reason: str = "") -> AliasChange:
        """Point ``name@alias`` to the bundle before its current one; see `RegistryBackend.rollback`."""
        reference = AliasReference(check_name(name, "bundle name"), check_name(alias, "alias"))
        current = self._at(reference)
        known = current.tags.get(versions.DIGEST)
        changes = history.explained(self._history(name), known, str(reference), self._clock_ms())
        earlier = before_current(changes)
        if earlier is None:
            raise RegistryError(
                f'"{reference}" has no earlier value to go back to; point it somewhere with `scorer registry '
                f"alias {reference} DIGEST`"
            )
        return self._move(reference, self._target(earlier), action="rollback", by=by, reason=reason)

    # --- inside ---

    def _is_sound(self, digest: str) -> bool:
        """Return whether the bundle is stored completely, undamaged and with its pyfunc flavour.

        This downloads all its files. A bundle that was stored before the flavour existed gets a new version.
        """
        if not (found := versions.bundles(self._rest, prefix=digest)):
            return False
        self._sources[digest] = found[0]
        if found[0].tags.get(versions.KIND) != pushing.LIST_KIND and not artifacts.has_flavour(
            self._rest, self._folder(digest)
        ):
            return False
        with tempfile.TemporaryDirectory(prefix="scorer-push-") as made:
            try:
                artifacts.fetch(self._rest, self._folder(digest), digest, Path(made))
            except (BundleError, UnknownReferenceError):
                return False
        return True

    def _upload(self, bundle: Path, name: str, digest: str, manifest: Mapping[str, Any], by: str) -> None:
        from scorer.registry.mlflow.runs import Run

        lineage = manifest.get("lineage") or {}
        with Run.start(self._rest, f"scorer/{name}", f"push {digest[7:19]}", clock_ms=self._clock_ms) as run:
            run.tags({versions.DIGEST: digest, versions.BY: by})
            run.params({k: v for k, v in lineage.items() if isinstance(v, str | int | float)})
            run.metrics(lineage.get("metrics") or {})
            root = artifacts.proxied_path(run.artifact_uri, self._rest)
            source = artifacts.FOLDER
            if manifest.get("kind") != pushing.LIST_KIND:
                source = artifacts.MODEL
                artifacts.store_flavour(self._rest, f"{root}/{source}", bundle)
            artifacts.store(self._rest, artifacts.bundle_folder(f"{root}/{source}"), bundle)
            try:
                self._rest.post("/registered-models/create", name=name)
            except MlflowRefusedError as error:
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
            tags = {
                versions.DIGEST: digest,
                versions.KIND: str(manifest.get("kind", "")),
                versions.CREATED: str(manifest.get("created_at", "")),
                versions.BY: by,
                versions.BYTES: str(files.size_of(bundle)),
            }
            self._rest.post(
                "/model-versions/create",
                name=name,
                source=f"{run.artifact_uri}/{source}",
                run_id=run.id,
                tags=[{"key": key, "value": value} for key, value in tags.items()],
            )

    def _move(
        self, reference: AliasReference, target: ModelVersion, *, action: str, by: str | None, reason: str
    ) -> AliasChange:
        current = versions.by_alias(self._rest, reference.name, reference.alias)
        changes = self._history(reference.name)
        known = None if current is None else current.tags.get(versions.DIGEST)
        # A move by another tool is recorded too, so that a rollback can undo it like any other move.
        told = history.explained(changes, known, str(reference), self._clock_ms())
        for foreign in told[len(history.of_alias(changes, str(reference))) :]:
            history.append(self._rest, reference.name, foreign)
        change = AliasChange(
            history.next_sequence(told, str(reference)),
            str(reference),
            target.digest,
            known,
            action,
            self._clock_ms(),
            by or pushing.user(),
            reason,
        )
        self._rest.post(
            "/registered-models/alias", name=reference.name, alias=reference.alias, version=target.version
        )
        history.append(self._rest, reference.name, change)
        return change

    def _at(self, reference: AliasReference) -> ModelVersion:
        found = versions.by_alias(self._rest, reference.name, reference.alias)
        if found is None:
            raise unknown_alias(reference, self.aliases(), self.location)
        return found

    def _target(self, reference: str) -> ModelVersion:
        parsed = parse_reference(reference)
        return self._at(parsed) if isinstance(parsed, AliasReference) else self._by_digest(parsed)

    def _by_digest(self, reference: DigestReference) -> ModelVersion:
        found = {v.digest[7:]: v for v in versions.bundles(self._rest, prefix=f"sha256:{reference.prefix}")}
        return found[pick_digest(reference, found, self.location)]

    def _folder(self, digest: str) -> str:
        version = self._sources.get(digest) or self._by_digest(
            DigestReference(digest.removeprefix("sha256:"))
        )
        try:
            answer = self._rest.get(
                "/model-versions/get-download-uri", name=version.name, version=version.version
            )
        except MlflowRefusedError as error:
            # The version was deleted after it was cached. Another version may have the same digest.
            self._sources.pop(digest, None)
            raise UnknownReferenceError(
                f"version {version.version} of {version.name} is gone: {error}"
            ) from None
        return artifacts.bundle_folder(
            artifacts.proxied_path(str(answer.get("artifact_uri", "")), self._rest)
        )

    def _history(self, name: str) -> Sequence[AliasChange]:
        return history.read(versions.model(self._rest, name) or {})

    def _pointing(self, names: set[str]) -> Mapping[str, Sequence[str]]:
        """Return, for each digest, every ``name@alias`` that points to it."""
        pointing: dict[str, list[str]] = {}
        for name in sorted(names):
            digests = {v.version: v.tags.get(versions.DIGEST, "") for v in versions.every(self._rest, name)}
            for entry in (versions.model(self._rest, name) or {}).get("aliases") or ():
                digest = digests.get(str(entry.get("version")), "")
                pointing.setdefault(digest, []).append(f"{name}@{entry.get('alias')}")
        return pointing


def _record(version: ModelVersion, pointing: Mapping[str, Sequence[str]]) -> BundleRecord:
    size = version.tags.get(versions.BYTES, "")
    return BundleRecord(
        version.digest,
        version.name,
        version.tags.get(versions.KIND, ""),
        version.tags.get(versions.CREATED, ""),
        version.created_ms,
        version.tags.get(versions.BY, ""),
        int(size) if size.isdecimal() else 0,
        tuple(sorted(pointing.get(version.digest, ()))),
    )
