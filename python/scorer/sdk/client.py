"""`PlatformClient`: every operation of the platform as a method."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import quote

import httpx

from scorer.release.errors import InvalidError, UnreachableError
from scorer.release.model import (
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    GateSpec,
    Stage,
)
from scorer.sdk import credentials
from scorer.sdk.operations import Operations
from scorer.sdk.results import (
    BuildInfo,
    BundleInfo,
    ResultPage,
    RolledBack,
    Verified,
)
from scorer.sdk.transport import Transport

T = TypeVar("T")

_CHUNK = 1 << 18
_UPLOAD_SECONDS = 600.0
_WAIT_SECONDS = 20.0


class PlatformClient(Operations):
    """Client of one platform, as one user. Several threads may use it at once.

    ::

        with PlatformClient() as platform:
            change = platform.ship_test("out/fraud", "fraud.checkout", minutes=60)
            for event in platform.watch(change.id):
                print(event.message)

    Args:
        url: Address of the platform. None: $SCORER_PLATFORM_URL, or the one stored by `scorer login`.
        token: None: $SCORER_PLATFORM_TOKEN, or the one stored by `scorer login` for that address.
        timeout: Seconds for one response.
        client: Replaces the client's own connections, for tests and unusual networks.

    Raises:
        NotAuthenticatedError: No address or no token is known.
        InvalidError: The address cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        client: httpx.Client | None = None,
    ) -> None:
        found = credentials.find(url, token)
        self.url = found.url
        self._transport = Transport(found.url, found.token, timeout=timeout, client=client)

    def close(self) -> None:
        """Close the connections to the platform."""
        self._transport.close()

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def upload(
        self,
        bundle: str | os.PathLike[str],
        project: str,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> BundleInfo:
        """Pack a bundle's directory and upload it. Uploading it again changes nothing.

        Args:
            bundle: Directory that `scorer bundle build` wrote.
            project: Name of the project.
            progress: Called with the bytes sent and the bytes to send.

        Raises:
            InvalidError: The directory is no bundle, or its verification failed.
            QuotaError: The project has no room for another bundle.
        """
        from scorer.release.archive import pack

        directory = Path(bundle)
        if not (directory / "manifest.json").is_file():
            raise InvalidError(
                f'"{directory}" is no bundle; name the directory that `scorer bundle build` wrote'
            )
        with tempfile.TemporaryFile(prefix="scorer-bundle-") as file:
            pack(directory, file)
            size = file.tell()
            return self._call(
                BundleInfo,
                "POST",
                f"/projects/{quote(project, safe='')}/bundles",
                content=lambda: _chunks(file, size, progress),
                headers={"Content-Type": "application/gzip", "Content-Length": str(size)},
                repeatable=True,
                timeout=_UPLOAD_SECONDS,
            )

    def build(
        self,
        model: str | os.PathLike[str],
        table: str | os.PathLike[str],
        project: str,
        *,
        name: str,
        version: str,
        validation: str | os.PathLike[str] | None = None,
        example: str | os.PathLike[str] | None = None,
        **fields: str,
    ) -> BuildInfo:
        """Have the platform build a bundle from a model file, in the background.

        Args:
            model: XGBoost (.json, .ubj), LightGBM (.txt) or Treelite checkpoint (.tl).
            table: Rows that the model was trained on: .parquet or .csv.
            project: Name of the project.
            name: Name of the bundle.
            version: Version of the model, kept in the bundle's lineage.
            validation: Rows that the model has not seen; None: the same table.
            example: An example request as JSON, which the schema is taken from.
            fields: `checkpoint`, `schema_from`, `features`, `bands`, `calibration` and `label`, as REST has
                them.

        Raises:
            InvalidError: A field or a file is not valid.
            QuotaError: Too many builds wait, or the project has no room for another bundle.
        """
        paths = {"model": model, "table": table, "validation": validation, "example": example}
        with contextlib.ExitStack() as opened:
            files: dict[str, tuple[str, BinaryIO]] = {}
            for field, path in paths.items():
                if path is None:
                    continue
                try:
                    files[field] = (Path(path).name, opened.enter_context(Path(path).open("rb")))
                except OSError as error:
                    raise InvalidError(f'{field} "{path}" cannot be read: {error.strerror}') from None
            asked = {"name": name, "version": version, **fields}
            form = httpx.Request("POST", self.url, data=asked, files=files)
            return self._call(
                BuildInfo,
                "POST",
                f"/projects/{quote(project, safe='')}/builds",
                content=lambda: iter(cast("httpx.SyncByteStream", form.stream)),
                headers={key: form.headers[key] for key in ("Content-Type", "Content-Length")},
                timeout=_UPLOAD_SECONDS,
            )

    def draft(
        self,
        *,
        project: str,
        checkpoint: str,
        bundle: str,
        title: str,
        kind: ChangeKind | str = ChangeKind.TEST,
        description: str = "",
        minutes: float = 60.0,
        stages: Sequence[Stage] = (),
        holdout: float = 0.0,
        gates: Sequence[GateSpec] = (),
        sample: float | None = None,
        pool: bool | None = None,
        evidence: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> ChangeRequest:
        """Create a draft of a change request.

        ::

            change = platform.draft(
                project="fraud", checkpoint="fraud.checkout", bundle="sha256:5a1f", title="Deeper trees"
            )
            platform.submit(change.id)

        Args:
            project: Name of the project.
            checkpoint: Name of the checkpoint.
            bundle: A digest, at least four digits of one, or name@alias.
            title: Shown in lists.
            kind: `test` or `release`.
            description: Reason for the change.
            minutes: Length of the observation.
            stages: Canary stages of a RELEASE; empty: the checkpoint's.
            holdout: Share of requests that stays with the previous bundle, from 0 to below 1.
            gates: Empty: the checkpoint's.
            sample: Share of requests that are observed; None: the checkpoint's.
            pool: Whether the shadow pool evaluates; None: the checkpoint's.
            evidence: What a learning loop bases the change on, as JSON.
            key: Idempotency key: a request is done once per key. None: generated, so that a retry of this
                call makes no second draft.

        Raises:
            InvalidError: A field is out of range.
            NotAllowedError: The user is no modeler of the project.
            QuotaError: The project has too many open changes.
        """
        body = _draft(
            project=project,
            kind=kind,
            checkpoint=checkpoint,
            bundle=bundle,
            title=title,
            description=description,
            minutes=minutes,
            stages=stages,
            holdout=holdout,
            gates=gates,
            sample=sample,
            pool=pool,
            evidence=evidence,
        )
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return self._call(ChangeRequest, "POST", "/changes", json=body, headers=headers, repeatable=True)

    def edit(self, change: ChangeRequest, **fields: Any) -> ChangeRequest:
        """Replace fields of a draft.

        Args:
            change: The draft as it was read; its version guards against lost updates.
            fields: Fields to replace, as of `draft`.

        Raises:
            ConflictError: The draft has changed since it was read.
            InvalidError: A field does not exist or is out of range.
        """
        before = {
            name: getattr(change, name)
            for name in (
                "project", "kind", "checkpoint", "bundle", "title", "description", "minutes", "stages",
                "holdout", "gates", "sample", "pool", "evidence",
            )
        }  # fmt: skip
        unknown = sorted(set(fields) - set(before))
        if unknown:
            raise InvalidError(f"a draft has no {unknown[0]}; it has {', '.join(before)}")
        body = {**_draft(**{**before, **fields}), "version": change.version}
        return self._call(ChangeRequest, "PUT", _change(change.id), json=body, repeatable=False)

    def watch(self, change: str, *, after: int = 0, patience: float = 120.0) -> Iterator[ChangeEvent]:
        """Iterate over the events of a change request until it is final.

        ::

            for event in platform.watch(change.id):
                print(event.message)

        Args:
            change: Id of the change request, for example cr-000017.
            after: Id of the last known event; 0: from the beginning.
            patience: Seconds for which the platform may be away; then the iteration continues where it was.

        Raises:
            UnreachableError: The platform was away for longer.
        """
        away_since: float | None = None
        while True:
            try:
                found = self.events(change, after=after, wait=_WAIT_SECONDS)
            except UnreachableError:
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since > patience:
                    raise
                continue
            away_since = None
            yield from found.items
            after = found.next
            if found.is_final:
                return

    def ship_test(
        self,
        bundle: str | os.PathLike[str],
        checkpoint: str,
        *,
        project: str | None = None,
        minutes: float = 60.0,
        title: str | None = None,
        sample: float | None = None,
        narrate: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] | None = None,
        **fields: Any,
    ) -> ChangeRequest:
        """Upload a bundle, draft a TEST and submit it.

        ::

            change = platform.ship_test("out/fraud", "fraud.checkout", minutes=60)

        Args:
            bundle: Directory that `scorer bundle build` wrote.
            checkpoint: Name of the checkpoint.
            project: None: the user's only project.
            minutes: Length of the observation.
            title: None: the bundle's name and the first digits of its digest.
            sample: Share of requests that are observed; None: the checkpoint's.
            narrate: Called with a sentence for every step.
            progress: Called with the bytes sent and the bytes to send.
            fields: Other fields of `draft`.

        Returns:
            The submitted change request.

        Raises:
            InvalidError: The bundle was rejected, or the project is ambiguous.
        """
        project = project or self.only_project()
        info = self.upload(bundle, project, progress=progress)
        short = info.digest.removeprefix("sha256:")[:12]
        narrate(f"uploaded {Path(bundle)}: {info.name} {short} is verified and in the registry")
        drafted = self.draft(
            project=project,
            checkpoint=checkpoint,
            bundle=info.digest,
            title=title or f"{info.name} {short}",
            minutes=minutes,
            sample=sample,
            **fields,
        )
        narrate(f"drafted {drafted.id}: TEST of {short} at {checkpoint} for {minutes:g} minutes")
        submitted = self.submit(drafted.id)
        booking = self.change(submitted.id).booking
        if booking is not None:
            narrate(
                f"submitted {submitted.id}: shadow slot {booking.slot} is booked from "
                f"{booking.start:%Y-%m-%d %H:%M} to {booking.end:%H:%M} UTC"
            )
        return submitted

    def only_project(self) -> str:
        """Return the name of the user's only project.

        Raises:
            InvalidError: The user is a member of none or of several.
        """
        names = [project.name for project in self.projects()]
        if len(names) != 1:
            shown = ", ".join(names) or "none; ask an owner to add you to one"
            raise InvalidError(f"say which project this is for (--project); yours are: {shown}")
        return names[0]

    def figure_csv(self, change: str, name: str) -> str:
        """Return the numbers of a figure as CSV.

        Args:
            change: Id of the change request, for example cr-000017.
            name: For example execution, scores or flips.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._send("GET", f"{_change(change)}/readout/figures/{quote(name, safe='')}/csv").text

    def rolled_back_at(self, checkpoint: str) -> datetime | None:
        """Return when the checkpoint was rolled back last; None: never.

        Args:
            checkpoint: Name of the checkpoint.
        """
        return self._call(RolledBack, "GET", f"/checkpoints/{quote(checkpoint, safe='')}/rollback").at

    def verify_audit(self, *, expect: tuple[int, str] | None = None) -> Verified:
        """Verify every hash of the audit log. For admins.

        Args:
            expect: Sequence and hash of a head stored earlier; None: not compared.

        Returns:
            The number of entries, the head, and what is wrong.

        Raises:
            NotAllowedError: The token's role does not allow this.
        """
        query = {"sequence": expect[0], "hash": expect[1]} if expect else None
        return self._call(Verified, "GET", "/audit/verify", query=query, timeout=300.0)

    def _call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        return self._transport.call(kind, method, path, **options)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._transport.send(method, path, **options)

    def _pages(self, kind: type[T], path: str, query: Mapping[str, Any]) -> Iterator[T]:
        """Iterate over all pages of a list."""
        cursor: str | None = None
        while True:
            page = self._call(ResultPage[kind], "GET", path, query={**query, "cursor": cursor})  # type: ignore[valid-type]
            yield from page.items
            cursor = page.next
            if cursor is None:
                return


def _change(change: str) -> str:
    return f"/changes/{quote(change, safe='')}"


def _draft(
    *, kind: ChangeKind | str, stages: Sequence[Stage], gates: Sequence[GateSpec], **fields: Any
) -> dict[str, Any]:
    return {
        **fields,
        "kind": str(kind),
        "stages": [asdict(stage) for stage in stages],
        "gates": [asdict(gate) for gate in gates],
    }


def _chunks(file: BinaryIO, size: int, progress: Callable[[int, int], None] | None) -> Iterator[bytes]:
    file.seek(0)
    sent = 0
    while chunk := file.read(_CHUNK):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, size)
