"""Tests of deploy/Dockerfile without a container engine: its content, sources and user."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest
from dockerfile import IMAGES, Stage, stages
from typer.testing import CliRunner

from scorer import cli, config

ROOT = Path(__file__).resolve().parents[2]
# Packages for training, conversion or exploration, which are not needed to answer requests.
TRAINING = {
    "xgboost", "lightgbm", "treelite", "scikit-learn", "scipy", "numpy", "pandas", "pyarrow", "duckdb",
    "matplotlib", "mlflow", "locust", "grpcio-tools", "maturin", "pytest",
}  # fmt: skip
NEEDED = {"platform": {"numpy", "scipy", "pyarrow"}, "ship": {"numpy", "pyarrow"}}
"""Packages of TRAINING that the processes beside the server use, too."""

every_image = pytest.mark.parametrize("image", IMAGES)


def pins(path: Path) -> dict[str, str]:
    """Return the version of each package of a compiled requirement file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", path.read_text(), flags=re.MULTILINE))


@every_image
def test_an_image_is_built_from_three_stages(image: str) -> None:
    wheel, packages, last = stages(image)
    assert [wheel.name, packages.name, last.name] == ["wheel", "packages", "image"]
    title = "scorer" if image == "serve" else f"scorer-{image}"
    assert f'org.opencontainers.image.title="{title}"' in last.all("LABEL")


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.name)
def test_bases_are_pinned_by_version_and_digest(stage: Stage) -> None:
    match = re.fullmatch(r"(rust|python):(\d+\.\d+\.\d+)-slim-(\w+)@sha256:[0-9a-f]{64}", stage.base)
    assert match, stage.base
    if match[1] == "rust":
        pinned = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
        assert match[2] == pinned
        assert f"RUSTUP_TOOLCHAIN={pinned}" in stage.all("ENV")


def test_the_wheel_is_linked_against_the_c_library_of_the_image() -> None:
    releases = {release for stage in stages() for release in re.findall(r"-slim-(\w+)@", stage.base)}
    assert len(releases) == 1


def test_every_download_is_checked_against_a_hash() -> None:
    installs = [
        command
        for stage in stages()
        for run in stage.all("RUN")
        for command in run.split("&&")
        if re.search(r"\bpip install\b", command)
    ]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes" in command or "--no-index" in command, command
    [build] = [run for run in stages()[0].all("RUN") if "maturin" in run]
    assert "--locked" in build
    assert "--release" in build


@every_image
def test_only_the_packages_of_the_image_are_installed(image: str) -> None:
    _, packages, last = stages(image)
    copied = [copy.split()[0] for copy in packages.all("COPY") if not copy.startswith("--from")]
    assert copied == [f"requirements/{image}.txt"]
    installed = pins(ROOT / copied[0])
    assert installed.keys() & TRAINING == NEEDED.get(image, set())
    assert pins(ROOT / "requirements/serve.txt").items() <= installed.items()
    brought = [copy for copy in last.all("COPY") if copy.startswith("--from")]
    assert brought == ["--from=packages /opt/scorer /opt/scorer"]


def test_the_image_of_the_platform_has_the_packages_of_its_extras() -> None:
    """Enabled agents' tools are served over HTTP by default, so that the packages are needed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[\[<>=!]", one)[0] for name in ("platform", "mcp") for one in extras[name]}
    assert {"fastapi", "mcp"} <= named - {"scorer"} <= pins(ROOT / "requirements/platform.txt").keys()


def test_the_build_stage_uses_the_tools_that_the_tests_use() -> None:
    development = pins(ROOT / "requirements/dev.txt")
    build = pins(ROOT / "requirements/build.txt")
    assert set(build) == {"uv", "maturin"}
    assert build["maturin"] == development["maturin"]


def test_layers_pin_the_same_versions() -> None:
    files = [pins(ROOT / f"requirements/{name}.txt") for name in ("serve", "train", "dev")]
    for smaller, larger in itertools.pairwise(files):
        assert smaller.items() <= larger.items()


@every_image
def test_an_image_runs_as_an_unprivileged_user_and_stops_on_sigterm(image: str) -> None:
    last = stages(image)[-1]
    user, _, group = last.one("USER").partition(":")
    # A number, because Kubernetes cannot determine from a name that the user is not root.
    assert int(user) > 0
    assert int(group) > 0
    assert last.one("STOPSIGNAL") == "SIGTERM"
    order = [keyword for keyword, _ in last.steps]
    assert "RUN" not in order[order.index("USER") :]
    # The exec form, because a shell as process 1 would not forward the signal.
    assert json.loads(last.one("ENTRYPOINT"))[:2] == ["scorer", image]


def test_the_health_check_of_the_server_is_its_command() -> None:
    [health] = stages()[-1].all("HEALTHCHECK")
    assert json.loads(health.partition("CMD ")[2])[:2] == ["scorer", "health"]


def test_the_settings_of_the_image_are_valid_and_match_it() -> None:
    serve = stages()[-1]
    [copied] = [copy.split() for copy in serve.all("COPY") if not copy.startswith("--from")]
    source, target = copied
    assert json.loads(serve.one("ENTRYPOINT"))[-1] == target
    settings = config.parse((ROOT / source).read_text(), base=Path(target).parent, environment={})
    exposed = {int(port) for port in serve.one("EXPOSE").split()}
    reachable = (settings.server.listen, settings.server.metrics_listen)
    assert exposed == {int(address.rpartition(":")[2]) for address in reachable if address}
    assert not settings.server.allow_remote, (
        "plaintext outside of the container must be configured explicitly"
    )
    [prepared] = [run for run in serve.all("RUN") if "install --directory" in run]
    user, _, group = serve.one("USER").partition(":")
    assert f"--owner={user} --group={group}" in prepared
    folders = [Path(word) for word in prepared.split() if word.startswith("/")]
    for path in (settings.server.uds, settings.server.state_dir, settings.log.dir):
        assert path is not None
        assert any(path.is_relative_to(folder) for folder in folders), path


@pytest.mark.parametrize(
    ("image", "file"), [("platform", "/etc/scorer/platform.toml"), ("ship", "/etc/scorer/ship.toml")]
)
def test_the_settings_of_a_process_beside_the_server_are_mounted(image: str, file: str) -> None:
    last = stages(image)[-1]
    default = [*json.loads(last.one("ENTRYPOINT")), *json.loads(last.one("CMD"))]
    variables = dict(pair.split("=", 1) for env in last.all("ENV") for pair in env.split())
    assert file in (default[-1], variables.get("SCORER_PLATFORM_CONFIG"))
    # The directory exists, so that settings can be mounted in a read-only root file system.
    [prepared] = [run for run in last.all("RUN") if "install --directory" in run]
    assert str(Path(file).parent) in prepared.split()
    # The command and its options exist.
    done = CliRunner().invoke(cli.app, [*default[1:], "--help"])
    assert done.exit_code == 0, done.output


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    allowed = [line[1:] for line in lines if line.startswith("!")]
    # An allow list. All other files are excluded.
    assert lines.index("*") < min(lines.index(f"!{path}") for path in allowed)
    for path in allowed:
        assert (ROOT / path).exists(), path
    wanted = [
        source
        for image in IMAGES
        for stage in stages(image)
        for copy in stage.all("COPY")
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    ]
    assert "." in wanted
    # The paths that the build reads.
    wanted += ["Cargo.toml", "Cargo.lock", "README.md", "pyproject.toml", "protos", "rust", "python"]
    for source in wanted:
        assert source == "." or source in allowed, source
