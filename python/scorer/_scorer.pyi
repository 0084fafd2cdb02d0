"""The Rust extension. Not public: `scorer.bridge` is its only importer."""

from typing import Final

__version__: Final[str]
build_profile: Final[str]
FILE_DESCRIPTOR_SET: Final[bytes]
