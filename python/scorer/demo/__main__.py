"""``python -m scorer.demo``: the same as ``scorer demo``."""

from __future__ import annotations

import sys

from scorer.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "demo")
    main()
