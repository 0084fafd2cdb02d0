"""Upload and display of bundles: the registry, by project."""

from __future__ import annotations

import builtins
import json
import re
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sqlalchemy import Connection, func, insert, select, tuple_

from scorer.errors import (
    BundleError,
    RegistryError,
    RegistryUnavailableError,
    SignatureError,
    UnknownReferenceError,
)
from scorer.ids import hex_of
from scorer.release.answers import BundleDetail, BundleInfo
from scorer.release.archive import unpack
from scorer.release.errors import (
    InvalidError,
    NotFoundError,
    PlatformError,
    QuotaError,
    UnreachableError,
)
from scorer.release.model import Actor, Role
from scorer.release.shown_rules import shown_rules
from scorer.release.store.rows import read, row_of
from scorer.release.store.searching import contains
from scorer.release.store.tables import bundles, changes, projects, recorded_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scorer.bundle.rules import BundleRules
    from scorer.bundle.signing import Signature
    from scorer.events import EventLog
    from scorer.registry import BundleDetails, BundleRecord, RegistryBackend
    from scorer.release.access import Access
    from scorer.release.audit import Audit
    from scorer.release.store import Store

_UPLOADS_AT_ONCE = 2
_PORTION = 500
"""Digests that one query names."""
_ONE_BY_ONE = 20
"""Largest number of digests that are looked up in the registry one by one, and not in the list of all."""
_COMPARED = 1000
"""Limit on the cached comparisons of two bundles. They stay valid, because bundles are immutable."""


class Bundles:
    """Uploads bundles to the registry and lists them by project.

    A bundle that a project has uploaded is visible to that project only. A bundle that was pushed to the
    registry directly (`scorer registry push`) is visible to all users.

    Args:
        store: The database, which records the projects of bundles.
        access: Checks roles.
        audit: The audit log, which receives an entry per upload.
        registry: The registry.
        data_dir: Directory for unfinished uploads, and for copies of bundles of a remote registry.
        upload_bytes: Limit on the unpacked size of a bundle in bytes.
        now: Returns the current time, aware and in UTC.
        events: The platform's event log; None: no events are written.
        trusted_keys: Public keys, or directories of them, one of which must have signed a bundle; empty:
            signatures are not checked.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        audit: Audit,
        registry: RegistryBackend,
        *,
        data_dir: Path,
        upload_bytes: int,
        now: Callable[[], datetime],
        events: EventLog | None = None,
        trusted_keys: Sequence[Path] = (),
    ) -> None:
        self._events = events
        self._trusted = tuple(trusted_keys)
        self._store = store
        self._access = access
        self._audit = audit
        self._registry = registry
        self._uploads = data_dir / "uploads"
        self._copies = data_dir / "bundles"
        self.upload_bytes = upload_bytes
        self._now = now
        # Golden cases occupy a core while they run, and the ticker needs one too.
        self._room = threading.BoundedSemaphore(_UPLOADS_AT_ONCE)
        self._sound: dict[str, Hashable] = {}
        self._compared: dict[tuple[str, str], tuple[str, ...]] = {}

    # --- uploads ---

    def upload(self, actor: Actor, project: str, archive: BinaryIO) -> BundleInfo:
        """Verify a tar or tar.gz of a bundle's directory and push the bundle to the registry.

        Uploading the same bundle again changes nothing.

        Raises:
            InvalidError: The bundle is not valid and could not be served.
            QuotaError: The project has reached its limit on bundles.
        """
        try:
            return self._upload(actor, project, archive)
        except PlatformError as error:
            if self._events is not None:
                self._events.warning("upload_rejected", project=project, user=actor.user, error=str(error))
            raise

    def _upload(self, actor: Actor, project: str, archive: BinaryIO) -> BundleInfo:
        from scorer.registry import files

        self._access.require(actor, Role.MODELER, project)
        with self._store.read() as connection:
            # Check the quota before any work. A bundle that the project has already does not count.
            full = self._is_full(connection, project)
        with self._room, _translated(), files.staged(self._uploads) as directory:
            names = unpack(archive, directory, limit=self.upload_bytes)
            return self._keep(actor, project, directory, names, "bundle.upload", full=full)

    def keep(self, actor: Actor, project: str, directory: Path, *, build: str) -> BundleInfo:
        """Verify a directory that a build has written, and push the bundle to the registry.

        Args:
            actor: The user who asked for the build.
            project: Name of the project.
            directory: The bundle's directory.
            build: Id of the build, for the audit log.

        Raises:
            InvalidError: The bundle is not valid and could not be served.
            QuotaError: The project has reached its limit on bundles.
        """
        self._access.require(actor, Role.MODELER, project)
        names = sorted(path.name for path in directory.iterdir())
        with self._store.read() as connection:
            full = self._is_full(connection, project)
        with self._room, _translated():
            return self._keep(actor, project, directory, names, "bundle.build", full=full, build=build)

    def revise(
        self, actor: Actor, project: str, base: str, rules: BundleRules, *, notes: Mapping[str, Any]
    ) -> BundleInfo:
        """Make the next revision of a bundle with other rules, and push it to the registry.

        Args:
            actor: The calling user.
            project: Name of the project.
            base: Digest of a bundle that the actor may see.
            rules: The new rules with their lists.
            notes: Stored as ``revision_notes`` in the lineage.

        Raises:
            InvalidError: The revision is not valid and could not be served.
            QuotaError: The project has reached its limit on bundles.
        """
        from scorer.bundle import revise
        from scorer.registry import files

        self._access.require(actor, Role.MODELER, project)
        self.room(project)
        local = self.local(base)
        with self._room, _translated(), files.staged(self._uploads) as directory:
            made = directory / "revision"
            revise(local, made, rules=rules, notes=notes, created_at=self._now())
            names = sorted(path.name for path in made.iterdir())
            return self._keep(actor, project, made, names, "bundle.revise", full=False, base=base)

    def room(self, project: str) -> None:
        """Raise QuotaError if the project has reached its limit on bundles."""
        with self._store.read() as connection:
            if self._is_full(connection, project):
                raise self._quota(project)

    def adopt(self, actor: Actor, project: str, reference: str) -> BundleInfo:
        """Add a bundle of the registry to a project.

        Args:
            actor: The calling user.
            project: Name of the project.
            reference: A digest, a prefix of one, or name@alias.
        """
        self._access.require(actor, Role.MODELER, project)
        with _translated():
            record = self._registry.show(reference).record
        owners = self._owners(record.digest)
        if owners and project not in owners and not owners & self._visible(actor):
            raise _unknown(reference)
        return self._enter(actor, project, record, "bundle.adopt")

    def uploads(self) -> Path:
        """Return the directory of unfinished uploads."""
        with _translated():
            self._uploads.mkdir(parents=True, exist_ok=True)
        return self._uploads

    # --- queries ---

    def list(
        self,
        actor: Actor,
        *,
        project: str | None = None,
        kind: str | None = None,
        text: str | None = None,
        limit: int = 200,
        before: str | None = None,
    ) -> Sequence[BundleInfo]:
        """Return the bundles that the actor may see, newest first.

        Args:
            actor: The calling user.
            project: Only bundles of this project.
            kind: Only bundles of this kind, `score` or `action`.
            text: Only bundles whose name, digest or uploader contains this text, regardless of case.
            limit: Limit on the number of bundles.
            before: Last bundle of the previous page, as `digest:project`.
        """
        if project is not None:
            self._access.require(actor, Role.VIEWER, project)
        wanted = {project} if project is not None else self._visible(actor)
        query = (
            select(bundles)
            # The index of the order is read until the page is full. With the index of the projects, all of
            # their bundles would be read and sorted; the empty text keeps the database from using it.
            .where(bundles.c.project.concat("").in_(sorted(wanted)))
            .order_by(bundles.c.uploaded_at.desc(), bundles.c.digest.desc(), bundles.c.project.desc())
            .limit(limit)
        )
        if kind is not None:
            query = query.where(bundles.c.kind == kind)
        if text:
            query = query.where(contains(text, bundles.c.name, bundles.c.digest, bundles.c.uploaded_by))
        with self._store.read() as connection:
            if before is not None:
                digest, _, owner = before.rpartition(":")
                last = self._row(connection, owner, digest) if owner in wanted else None
                if last is None:
                    raise InvalidError(f'"{before}" is not a position in this list; omit the cursor')
                key = tuple_(bundles.c.uploaded_at, bundles.c.digest, bundles.c.project)
                query = query.where(key < (last.uploaded_at, last.digest, last.project))
            return self._infos(connection, connection.execute(query).all())

    def detail(self, actor: Actor, digest: str) -> BundleDetail:
        """Return a bundle in detail, by its digest, a prefix of it, or name@alias."""
        info = self.info(actor, digest)
        with _translated():
            manifest = self._registry.show(info.digest).manifest
        directory = self.local(info.digest)
        schema = json.loads((directory / "schema.json").read_bytes())
        reference = json.loads((directory / "reference.json").read_bytes())
        features = [
            *schema.get("features", ()),
            *({**feature, "of": "action"} for feature in schema.get("action_features", ())),
        ]
        return BundleDetail(
            info=info,
            manifest=manifest,
            lineage=manifest.get("lineage") or {},
            reference=reference,
            features=features,
            lanes=self._lanes(info.digest),
            rules=shown_rules(directory),
        )

    def info(self, actor: Actor, reference: str) -> BundleInfo:
        """Resolve a digest, a prefix of one, or name@alias among the bundles that the actor may see."""
        with _translated():
            try:
                record = self._record(actor, reference)
            except UnknownReferenceError:
                # The answer must not differ from that for a bundle of another project.
                raise _unknown(reference) from None
        owners = self._owners(record.digest)
        visible = self._visible(actor)
        if owners and not owners & visible:
            raise _unknown(reference)
        query = select(bundles).where(
            bundles.c.digest == record.digest, bundles.c.project.in_(sorted(owners & visible))
        )
        with self._store.read() as connection:
            found = self._infos(connection, connection.execute(query.order_by(bundles.c.project)).all())
        return found[0] if found else _of_registry(record)

    def several(self, actor: Actor, digests: Collection[str]) -> Mapping[str, BundleInfo]:
        """Return those of the named bundles that the actor may see, by digest.

        A bundle that belongs to no project and is not in the registry any more has an empty name.
        """
        wanted, visible = sorted(digests), self._visible(actor)
        rows: dict[str, builtins.list[Any]] = {}
        with self._store.read() as connection:
            for start in range(0, len(wanted), _PORTION):
                query = select(bundles).where(bundles.c.digest.in_(wanted[start : start + _PORTION]))
                for row in connection.execute(query.order_by(bundles.c.project)):
                    rows.setdefault(row.digest, []).append(row)
        own = {
            digest: next((row for row in found if row.project in visible), None)
            for digest, found in rows.items()
        }
        seen = {digest: read(BundleInfo, row) for digest, row in own.items() if row is not None}
        unowned = [digest for digest in wanted if digest not in rows]
        if unowned:
            try:
                # The registry's own list has every bundle, of which there can be 100,000.
                prefixes = unowned if len(unowned) <= _ONE_BY_ONE else [""]
                known = {
                    record.digest: record
                    for prefix in prefixes
                    for record in self._registry.list(prefix=prefix)
                }
            except (RegistryError, OSError):
                # The lanes name the bundles, so a list without their details is better than none.
                known = {}
            for digest in unowned:
                record = known.get(digest)
                seen[digest] = _of_registry(record) if record else BundleInfo(digest, "", "", "", 0, "", None)
        return seen

    def manifest(self, digest: str) -> Mapping[str, Any]:
        """Return the manifest of a bundle that the caller has resolved, without a check of permissions."""
        with _translated():
            return self._registry.show(digest).manifest

    def local(self, digest: str) -> Path:
        """Return the directory of a verified local copy. It must not be written to."""
        from scorer.bundle import verify
        from scorer.registry import files

        with _translated():
            target = self._registry.resolve(digest)
            path = target.path
            if path is None:
                path = self._copies / hex_of(target.digest)
                if not path.is_dir():
                    with files.staged(self._uploads) as temporary:
                        self._registry.copy(target, temporary)
                        verify(temporary, target.digest)
                        files.commit(temporary, path)
            seen = files.stat_fingerprint(path)
            if self._sound.get(target.digest) != seen:
                verify(path, target.digest)
                self._sound[target.digest] = seen
        return path

    def signature(self, digest: str) -> Signature | None:
        """Verify the signature of a bundle, as a server with the platform's trusted keys does.

        Returns:
            The verified signature; None if the platform has no trusted keys.

        Raises:
            InvalidError: No trusted key has signed the bundle.
        """
        from scorer.bundle.signing import verify_signature

        if not self._trusted:
            return None
        path = self.local(digest)
        try:
            return verify_signature(path, self._trusted)
        except SignatureError as error:
            # The error must not disclose the directory's path on the server.
            reason = str(error).replace(f'bundle "{path}": ', "")
            raise InvalidError(f"bundle {digest[7:19]}: {reason}") from None

    def differences(self, first: str, second: str) -> tuple[str, ...]:
        """Return the differences of two action bundles other than their overlays.

        Args:
            first: Digest of one bundle.
            second: Digest of the other bundle.

        Returns:
            The names of the differing parts; empty if forests, features and policy are equal.
        """
        if first == second:
            return ()
        key = (first, second)
        if key not in self._compared:
            from scorer.release.revisions import differences

            while len(self._compared) >= _COMPARED:
                self._compared.pop(next(iter(self._compared)))
            self._compared[key] = tuple(differences(self.local(first), self.local(second)))
        return self._compared[key]

    # --- helpers ---

    def _keep(
        self,
        actor: Actor,
        project: str,
        directory: Path,
        names: Sequence[str],
        action: str,
        *,
        full: bool,
        **details: str,
    ) -> BundleInfo:
        digest = self._verify(directory, names)
        if full and not self._has(project, digest):
            raise self._quota(project)
        record = self._registry.show(self._registry.push(directory, by=actor.user)).record
        return self._enter(actor, project, record, action, **details)

    def _verify(self, directory: Path, names: Sequence[str]) -> str:
        from scorer.bundle import verify
        from scorer.registry import files

        try:
            listed = {*files.read_manifest(directory)["files"], files.MANIFEST, files.SIGNATURE}
            if extra := sorted(set(names) - listed):
                raise InvalidError(
                    f'the archive contains "{extra[0][:80]}", which is not in its manifest; pack only the '
                    "directory that `scorer bundle build` wrote"
                )
            return str(verify(directory).digest)
        except BundleError as error:
            # The error must not disclose the directory's path on the server.
            raise InvalidError(
                str(error).replace(f"{directory}/", "").replace(str(directory), "it")
            ) from None

    def _enter(
        self, actor: Actor, project: str, record: BundleRecord, action: str, **details: str
    ) -> BundleInfo:
        with self._store.write() as connection:
            row = self._row(connection, project, record.digest)
            if row is None:
                if self._is_full(connection, project):
                    raise self._quota(project)
                connection.execute(
                    insert(bundles).values(
                        project=project,
                        digest=record.digest,
                        name=record.name,
                        kind=record.kind,
                        bytes=record.bytes,
                        uploaded_by=actor.user,
                        uploaded_at=self._now(),
                    )
                )
                self._audit.append(
                    connection,
                    actor,
                    action,
                    record.digest,
                    project=project,
                    details={"name": record.name, "kind": record.kind, "bytes": record.bytes, **details},
                )
                row = self._row(connection, project, record.digest)
            return self._infos(connection, [row])[0]

    def _record(self, actor: Actor, reference: str) -> BundleRecord:
        """Return the registry's record. A prefix is completed among the bundles that the actor may see."""
        if not re.fullmatch(r"(sha256:)?[0-9a-f]{4,63}", reference):
            return self._registry.show(reference).record
        matches = [record.digest for record in self._registry.list(prefix=hex_of(reference))]
        visible = self._visible(actor)
        fitting = [digest for digest in matches if not (owners := self._owners(digest)) or owners & visible]
        if not fitting:
            raise _unknown(reference)
        if len(fitting) > 1:
            raise InvalidError(
                f'"{reference}" matches {len(fitting)} bundles; give more digits of the digest'
            )
        return self._registry.show(fitting[0]).record

    def _row(self, connection: Connection, project: str, digest: str) -> Any:
        return row_of(connection, bundles, project=project, digest=digest)

    def _infos(self, connection: Connection, rows: Sequence[Any]) -> builtins.list[BundleInfo]:
        of: dict[tuple[str, str], builtins.list[str]] = {}
        query = (
            select(changes.c.id, changes.c.project, changes.c.bundle)
            .where(changes.c.bundle.in_(sorted({row.digest for row in rows})))
            .order_by(changes.c.number.desc())
        )
        for change in connection.execute(query):
            of.setdefault((change.project, change.bundle), []).append(change.id)
        return [read(BundleInfo, row, changes=tuple(of.get((row.project, row.digest), ()))) for row in rows]

    def _owners(self, digest: str) -> set[str]:
        with self._store.read() as connection:
            return set(connection.scalars(select(bundles.c.project).where(bundles.c.digest == digest)))

    def _visible(self, actor: Actor) -> set[str]:
        return {project.name for project in self._access.projects(actor)}

    def _has(self, project: str, digest: str) -> bool:
        with self._store.read() as connection:
            return self._row(connection, project, digest) is not None

    def _is_full(self, connection: Connection, project: str) -> bool:
        count = connection.scalar(
            select(func.count()).select_from(bundles).where(bundles.c.project == project)
        )
        most = connection.scalar(select(projects.c.bundles).where(projects.c.name == project))
        return most is not None and (count or 0) >= most

    def _quota(self, project: str) -> QuotaError:
        return QuotaError(
            f'project "{project}" has reached its limit on bundles (quota bundles); an admin can raise it '
            "with `scorer platform project`"
        )

    def _lanes(self, digest: str) -> builtins.list[str]:
        newest = (
            select(recorded_tables.c.checkpoint, func.max(recorded_tables.c.revision).label("revision"))
            .group_by(recorded_tables.c.checkpoint)
            .subquery()
        )
        query = select(recorded_tables).join(
            newest,
            (recorded_tables.c.checkpoint == newest.c.checkpoint)
            & (recorded_tables.c.revision == newest.c.revision),
        )
        with self._store.read() as connection:
            rows = connection.execute(query.order_by(recorded_tables.c.checkpoint)).all()
        return [
            f"{row.checkpoint}/{lane.name}"
            for row in rows
            for lane in (*row.answer, *row.observe)
            if lane.bundle == digest
        ]


def _of_registry(record: BundleRecord | BundleDetails) -> BundleInfo:
    from datetime import UTC

    found: Any = getattr(record, "record", record)
    return BundleInfo(
        digest=found.digest,
        name=found.name,
        kind=found.kind,
        project="",
        bytes=found.bytes,
        uploaded_by=found.pushed_by,
        uploaded_at=datetime.fromtimestamp(found.pushed_at_ms / 1000, UTC),
    )


def _unknown(reference: str) -> NotFoundError:
    return NotFoundError(
        f'there is no bundle "{reference[:80]}" that you may see; upload it, or list those of your projects '
        "(`scorer change test DIR` uploads)"
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Convert errors of the registry to errors of the platform."""
    try:
        yield
    except RegistryUnavailableError as error:
        raise UnreachableError(f"{error}; try again") from error
    except RegistryError as error:
        wrong = NotFoundError if isinstance(error, UnknownReferenceError) else InvalidError
        raise wrong(str(error)) from None
    except BundleError as error:
        raise InvalidError(str(error)) from None
    except OSError as error:
        raise UnreachableError(
            f"the platform's data directory cannot be written: {error.strerror}; ask its operator"
        ) from error
