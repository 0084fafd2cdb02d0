"""Bundles as run artifacts: each downloaded file is checked against the manifest as it arrives."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scorer.durable import sync_directory
from scorer.errors import BundleError
from scorer.registry import files
from scorer.registry.mlflow.rest import ARTIFACTS, MlflowRefusedError, Rest

FOLDER = "bundle"
"""Folder that holds the files of a bundle or a list, and nothing else but the signature."""
MODEL = "model"
"""Folder of a run's artifacts that holds the pyfunc flavour of a bundle, and the bundle in a folder below."""
MAX_MANIFEST_BYTES = 4 << 20
MAX_FILES = 128
# The data plane checks the exact set of files when it loads a bundle. This pattern only prevents a name from
# leading out of the directory.
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*\.(bin|json|onnx|toml|txt|wasm)")
_SAFE = re.compile(r"[A-Za-z0-9._-]+")


def proxied_path(uri: str, rest: Rest) -> str:
    """Return the path below MLflow's artifact proxy that an artifact URI names.

    Requests go only to the configured server, whichever host the URI names.

    Args:
        uri: An artifact URI, as MLflow's REST API returns it.
        rest: The server, for the message.

    Raises:
        BundleError: The proxy does not serve these artifacts, or the path has forbidden parts such as ``..``.
    """
    parts = urlsplit(uri)
    path = parts.path
    if parts.scheme in ("http", "https"):
        _, found, path = path.partition(f"{ARTIFACTS}/")
        path = path if found else ""
    elif parts.scheme != "mlflow-artifacts":
        raise BundleError(
            f'MLflow at {rest.url} keeps artifacts at "{uri}", which its proxy does not serve; start it with '
            "--serve-artifacts and --artifacts-destination"
        )
    names = path.strip("/").split("/")
    if parts.query or parts.fragment or not all(_SAFE.fullmatch(n) and n not in (".", "..") for n in names):
        raise BundleError(f'"{uri}" is no plain artifact path; push the bundle again')
    return "/".join(names)


def fetch(rest: Rest, folder: str, digest: str, destination: Path) -> None:
    """Download the bundle with a digest into an empty directory, synced to disk.

    Args:
        rest: The server.
        folder: Path of the artifact folder, as `proxied_path` returns it.
        digest: ``sha256:<hex>``.
        destination: An existing, empty directory.

    Raises:
        BundleError: The artifacts are not that bundle.
        RegistryUnavailableError: The server cannot be reached, or the connection breaks.
        OSError: The directory cannot be written.
    """
    listing = rest.list_artifacts(folder)
    if files.MANIFEST not in listing:
        shown = ", ".join(sorted(listing)[:5]) or "nothing"
        raise BundleError(
            f"the artifacts hold no {files.MANIFEST} ({shown}): no bundle of this project; push one with "
            "`scorer registry push`"
        )
    manifest = fetch_manifest(rest, folder, digest, destination)
    extra = sorted(listing.keys() - manifest["files"].keys() - {files.MANIFEST, files.SIGNATURE})
    if extra:
        raise BundleError(
            f'the artifacts of bundle {digest[:19]} hold "{extra[0]}", which its manifest does not list; '
            "a bundle is a closed set of files: push it again"
        )
    for name, entry in manifest["files"].items():
        _fetch_file(rest, folder, name, entry, destination / name)
    if files.SIGNATURE in listing:
        # Only the size is checked here; the data plane verifies the signature when it loads the bundle.
        limit = files.MAX_SIGNATURE_BYTES
        if _download(rest, folder, files.SIGNATURE, destination / files.SIGNATURE, limit) > limit:
            raise BundleError(
                f"the signature of bundle {digest[:19]} has more than {limit} bytes; sign it again"
            )
    sync_directory(destination)


def bundle_folder(source: str) -> str:
    """Return the folder of a bundle's files.

    Args:
        source: Path of the artifacts that a model version points to: a model, or a bundle itself.
    """
    return f"{source}/{FOLDER}" if source.rpartition("/")[2] == MODEL else source


def fetch_manifest(rest: Rest, folder: str, digest: str, destination: Path) -> Mapping[str, Any]:
    """Download a bundle's manifest, check it against the digest and return it as parsed JSON.

    Raises:
        BundleError: The manifest is not the one with this digest, or lists files that no bundle has.
        RegistryUnavailableError: The server cannot be reached, or the connection breaks.
    """
    path = destination / files.MANIFEST
    _download(rest, folder, files.MANIFEST, path, MAX_MANIFEST_BYTES)
    manifest = files.read_manifest(destination)
    # docs/bundle-format.md: the digest is over the manifest with its own 64 digits as zeros.
    own = digest.removeprefix("sha256:").encode()
    found = hashlib.sha256(path.read_bytes().replace(own, b"0" * 64, 1)).hexdigest()
    if manifest.get("digest") != digest or found != own.decode():
        raise BundleError(f"the manifest in MLflow is not that of bundle {digest[:19]}; push it again")
    if len(manifest["files"]) > MAX_FILES:
        raise BundleError(f"bundle {digest[:19]} lists more than {MAX_FILES} files; this is no bundle")
    for name, entry in manifest["files"].items():
        if not _NAME.fullmatch(name):
            raise BundleError(f'bundle {digest[:19]} lists the file "{name}"; no bundle has one of that name')
        size = entry.get("bytes") if isinstance(entry, dict) else None
        if type(size) is not int or not 0 <= size <= files.MAX_FILE_BYTES:
            raise BundleError(f'bundle {digest[:19]}: "{name}" has no size that a bundle\'s file may have')
    return manifest


def fetch_signature(rest: Rest, folder: str) -> bytes:
    """Download a bundle's signature without verifying it.

    The value has at most one byte more than a signature may have, so that the caller can detect one that is
    too large.
    """
    sink = io.BytesIO()
    rest.download(f"{folder}/{files.SIGNATURE}", sink, limit=files.MAX_SIGNATURE_BYTES)
    return sink.getvalue()


def store(rest: Rest, folder: str, bundle: Path) -> None:
    """Upload a bundle's files. The manifest is last, so its presence means that all other files are there."""
    for name in files.stored_names(bundle):
        rest.upload(f"{folder}/{name}", bundle / name)


def store_flavour(rest: Rest, folder: str, bundle: Path) -> None:
    """Write and upload the pyfunc flavour of a verified bundle.

    Args:
        rest: The server.
        folder: Path of the model's artifacts below the proxy.
        bundle: The bundle's directory.
    """
    from scorer.bundle.check import read_schema, verify
    from scorer.registry.mlflow.flavour import write_flavour

    with tempfile.TemporaryDirectory(prefix="scorer-push-") as made:
        directory = Path(made)
        for name in write_flavour(directory, verify(bundle), bundle, read_schema(bundle).features):
            rest.upload(f"{folder}/{name}", directory / name)


def has_flavour(rest: Rest, folder: str) -> bool:
    """Return whether the files of the pyfunc flavour are stored beside a bundle.

    Args:
        rest: The server.
        folder: Path of the bundle's files below the proxy.
    """
    from scorer.registry.mlflow.flavour import MODEL_FILE

    model, _, name = folder.rpartition("/")
    return name == FOLDER and model.endswith(f"/{MODEL}") and MODEL_FILE in rest.list_artifacts(model)


def _fetch_file(rest: Rest, folder: str, name: str, entry: Mapping[str, Any], path: Path) -> None:
    wanted, size = str(entry.get("sha256")).removeprefix("sha256:"), int(entry["bytes"])
    count = _download(rest, folder, name, path, size)
    if count != size:
        raise BundleError(
            f'"{name}" in MLflow has {"more than " * (count > size)}{min(count, size)} bytes, its manifest '
            f"says {size}; push the bundle again"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise BundleError(f'"{name}" in MLflow was altered (sha256 {found[:12]}); push the bundle again')


def _download(rest: Rest, folder: str, name: str, path: Path, limit: int) -> int:
    try:
        with path.open("xb") as sink:
            count = rest.download(f"{folder}/{name}", sink, limit=limit)
            sink.flush()
            os.fchmod(sink.fileno(), 0o444)
            os.fsync(sink.fileno())
    except MlflowRefusedError as error:
        raise BundleError(f'"{name}" cannot be had: {error}; push the bundle again') from None
    if count > limit and name == files.MANIFEST:
        raise BundleError(f"the manifest in MLflow is larger than {limit} bytes; this is no bundle")
    return count
