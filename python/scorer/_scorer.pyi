"""The Rust extension. Not public: `scorer.bridge` is its only importer."""

from collections.abc import Callable, Sequence
from typing import Final

__version__: Final[str]
build_profile: Final[str]
FILE_DESCRIPTOR_SET: Final[bytes]

def run_load(
    config: str, payloads: Sequence[Sequence[bytes]], progress: Callable[[str], object] | None = None
) -> str: ...
