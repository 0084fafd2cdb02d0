"""Generate python/scorer/v1 from protos/. With `--check`, fail if the committed files differ."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ["scoring", "control", "log", "shadow"]
SUFFIXES = ["_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi"]


def generate(out: Path) -> None:
    """Write the generated package below `out`. The proto path mirrors the package, so imports resolve."""
    # The plugins are scripts beside the interpreter, whose environment may not be activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}",
            f"--python_out={out}", f"--grpc_python_out={out}",
            f"--mypy_out=quiet:{out}", f"--mypy_grpc_out=quiet:{out}",
            *(f"scorer/v1/{name}.proto" for name in FILES),
        ],
        env={**os.environ, "PATH": path},
        check=True,
    )  # fmt: skip


def main() -> int:
    """Generate or compare the files, and return the exit code."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT / "python")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        generate(Path(temporary))
        fresh, committed = Path(temporary) / "scorer/v1", ROOT / "python/scorer/v1"
        names = [name + suffix for name in FILES for suffix in SUFFIXES if (fresh / (name + suffix)).exists()]
        stale = [
            n
            for n in names
            if not (committed / n).exists() or not filecmp.cmp(fresh / n, committed / n, shallow=False)
        ]
    if stale:
        sys.stderr.write(f"generated code is stale: {', '.join(stale)}; run `make proto`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
