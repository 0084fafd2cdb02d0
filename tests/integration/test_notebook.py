"""Runs the cells of the notebook of the tutorial, in order, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from servers import ROOT, environment
from waiting import PATIENCE

NOTEBOOK = ROOT / "examples/notebooks/whole_way.ipynb"


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in cells():
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_notebook_runs_from_data_to_drift(tmp_path: Path) -> None:
    code = "\n\n".join("".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code")
    # A failed cell must not leave the server behind.
    end = (
        'if "server" in globals() and server.poll() is None:\n        server.kill()\n        server.wait()\n'
    )
    script = f"try:\n    exec(compile({code!r}, {NOTEBOOK.name!r}, 'exec'), globals())\nfinally:\n    {end}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=PATIENCE * 6,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, "make check decides the cases of the project"
    assert "400 requests observed" in done.stdout
    assert '"amount" has a PSI of ' in done.stdout
