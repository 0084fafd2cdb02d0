"""The only module that imports the Rust extension. Nothing here is public API."""

from __future__ import annotations

from scorer._scorer import FILE_DESCRIPTOR_SET, Forest, __version__, build_profile

__all__ = ["FILE_DESCRIPTOR_SET", "Forest", "__version__", "build_profile"]
