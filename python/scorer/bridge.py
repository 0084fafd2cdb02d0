"""The only module that imports the Rust extension. Nothing here is public API."""

from __future__ import annotations

from scorer._scorer import (
    FILE_DESCRIPTOR_SET,
    Forest,
    LogReader,
    Server,
    __version__,
    build_golden,
    build_profile,
    check_client_tls,
    check_server_tls,
    draft_bundle,
    draw,
    forbid_core_dumps,
    generate_key,
    mark_shipped,
    prune_log,
    public_key,
    revise_bundle,
    run_load,
    seal_manifest,
    sign_bundle,
    transform_rows,
    verify_signature,
    write_fleet,
)
from scorer._scorer import Bundle as RawBundle
from scorer._scorer import Policy as RawPolicy

__all__ = [
    "FILE_DESCRIPTOR_SET",
    "Forest",
    "LogReader",
    "RawBundle",
    "RawPolicy",
    "Server",
    "__version__",
    "build_golden",
    "build_profile",
    "check_client_tls",
    "check_server_tls",
    "draft_bundle",
    "draw",
    "forbid_core_dumps",
    "generate_key",
    "mark_shipped",
    "prune_log",
    "public_key",
    "revise_bundle",
    "run_load",
    "seal_manifest",
    "sign_bundle",
    "transform_rows",
    "verify_signature",
    "write_fleet",
]
