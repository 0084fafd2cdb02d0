"""The image without a container engine: its build steps and its entry point, below a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockerfile import stages

ROOT = Path(__file__).resolve().parents[2]
TRAINING = [
    "xgboost",
    "lightgbm",
    "treelite",
    "sklearn",
    "numpy",
    "pandas",
    "pyarrow",
    "duckdb",
    "matplotlib",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Image:
    """What the Dockerfile would put into the image, with every absolute path moved below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheel, self.packages, self.serve = stages()
        tools = Path(sys.executable).parent
        # Nothing of the test's own environment: neither PYTHONPATH nor the packages beside its interpreter.
        self.environment = {
            "HOME": os.environ.get("HOME", str(root)),
            "LANG": "C.UTF-8",
            "PATH": f"{tools}:{os.environ['PATH']}",
            "UV_SYSTEM_CERTS": "1",
        } | {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "CARGO_"))}

    def path(self, absolute: str) -> Path:
        return self.root / absolute.removeprefix("/")

    def moved(self, command: str) -> str:
        """A command of the Dockerfile with its own paths below the folder."""
        return re.sub(r"(?<![\w./-])/(?=(?:opt|wheels|run|var|etc)\b)", f"{self.root}/", command)

    def build(self) -> None:
        """Runs the steps that build and install; those that prepare Debian are left out."""
        [compile_] = [run for run in self.wheel.all("RUN") if "maturin build" in run]
        compile_ = re.sub(r"--mount=\S+", "", compile_).replace(
            "/tools/bin/", f"{Path(sys.executable).parent}/"
        )
        self._run(self.moved(compile_), cwd=ROOT)
        sources = self.path("/src")
        sources.mkdir(parents=True)
        for copy in self.packages.all("COPY"):
            if not copy.startswith("--from"):
                source, target = copy.split()
                shutil.copy(ROOT / source, sources / target)
        for run in self.packages.all("RUN"):
            self._run(self.moved(run), cwd=sources)

    def _run(self, command: str, cwd: Path) -> None:
        done = subprocess.run(
            ["sh", "-c", command], cwd=cwd, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    @property
    def inside(self) -> dict[str, str]:
        """The environment that a process of the image has."""
        [(path, *others)] = [env.split() for env in self.serve.all("ENV")]
        assert path == "PATH=/opt/scorer/bin:$PATH"
        fixed = dict(pair.split("=", 1) for pair in others)
        return {"PATH": f"{self.path('/opt/scorer/bin')}:/usr/bin:/bin", "LANG": "C.UTF-8"} | fixed

    def python(self, code: str) -> str:
        done = subprocess.run(
            ["python", "-c", code],
            env=self.inside,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # Short: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="image-") as root:
        built = Image(Path(root))
        built.build()
        yield built


def test_no_training_library_is_installed(image: Image) -> None:
    found = image.python(
        f"import importlib.util; print([name for name in {TRAINING!r} if importlib.util.find_spec(name)])"
    )
    assert found == "[]\n"


def test_what_is_installed_is_what_is_pinned(image: Image) -> None:
    installed = json.loads(
        image.python(
            "import json; from importlib.metadata import distributions;"
            "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in distributions()}))"
        )
    )
    pinned = dict(
        re.findall(
            r"^([a-z0-9-]+)==([^ ;\\]+) \\", (ROOT / "requirements/serve.txt").read_text(), flags=re.MULTILINE
        )
    )
    # setuptools comes with a virtual environment of Python 3.11 and is gone in the image's 3.13.
    assert installed.keys() - {"setuptools"} == pinned.keys() | {"scorer"}
    assert pinned.items() <= installed.items()


def test_the_wheel_is_a_release_build_and_carries_its_types(image: Image) -> None:
    assert image.python("from scorer import bridge; print(bridge.build_profile)") == "release\n"
    home = "import scorer, pathlib; print(pathlib.Path(scorer.__file__).parent)"
    package = Path(image.python(home).strip())
    assert package.is_relative_to(image.path("/opt/scorer"))
    assert (package / "py.typed").exists()
    [wheel] = image.path("/wheels").iterdir()
    # One wheel for every Python from 3.11 on.
    assert "-cp311-abi3-" in wheel.name
