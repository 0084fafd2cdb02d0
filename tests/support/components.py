"""Real components that tests run against, and what happens where one is not installed.

A test that needs a component calls `require`. On a user's machine it is then skipped, and one summary at the
end of the run names what to install. With REQUIRE_COMPONENTS=all, as in CI, the test fails instead, so that
nothing is left out unnoticed. Run as a program, the module prints what is missing and exits with 1 if
anything is.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / ".build"
JARS: Final = Path("/usr/share/java")
"""Directory of Debian's packages of Java libraries."""
EVERYTHING: Final = os.environ.get("REQUIRE_COMPONENTS", "") == "all"


@dataclass(frozen=True)
class Component:
    """A program or library that a test needs and that `make build` does not install.

    Attributes:
        install: The command that installs it.
        is_installed: Returns whether it is installed.
    """

    install: str
    is_installed: Callable[[], bool]


def _program(name: str) -> Callable[[], bool]:
    return lambda: program_path(name) is not None


def _file(path: str) -> Callable[[], bool]:
    return (BUILD / path).exists


def _client(package: str) -> Callable[[], bool]:
    return lambda: any(BUILD.glob(f"clients/lib/python*/site-packages/{package}"))


def _postgresql() -> bool:
    from postgres import find

    return find("initdb") is not None and find("postgres") is not None


def _oidc_provider() -> bool:
    return program_path("node") is not None and _file("oidc/node_modules/oidc-provider/package.json")()


def _kafka() -> bool:
    libraries = (BUILD / "kafka" / "libs").glob("kafka_*.jar")
    return program_path("java") is not None and _file("kafka/.packages")() and any(libraries)


def _redis() -> bool:
    return any(program_path(name) is not None for name in ("redis-server", "valkey-server"))


def _grpc_java() -> bool:
    programs = ("javac", "protoc", "grpc_java_plugin")
    return all(map(program_path, programs)) and all(
        (JARS / f"{one}.jar").exists() for one in ("grpc-stub", "grpc-protobuf", "protobuf")
    )


def _foreign_client(language: str) -> Callable[[], bool]:
    """Whether the client was built, and from the sources that are there now."""

    def is_built() -> bool:
        built, sources = BUILD / f"clients-{language}", ROOT / "examples" / "clients" / language
        generated = {"node_modules", "scorerpb", "target"}
        return (built / ".built").exists() and all(
            (copy := built / path.relative_to(sources)).is_file() and copy.read_bytes() == path.read_bytes()
            for path in sources.rglob("*")
            if path.suffix in {".go", ".java", ".js"} and not generated & set(path.parts)
        )

    return is_built


def _cel_spec() -> bool:
    """Whether the cases are there, and the program that evaluates them was built from the present sources."""
    sources = [ROOT / "rust/rules/examples/cel.rs", *(ROOT / "rust/rules/src").glob("*.rs")]
    built = BUILD / "cel-spec" / ".built"
    return built.exists() and built.stat().st_mtime >= max(path.stat().st_mtime for path in sources)


def _can_mount() -> bool:
    from small_disk import can_mount

    return can_mount()


def _can_attach() -> bool:
    from stalled_disk import can_attach

    return can_attach()


def _can_drop_rights() -> bool:
    programs = ("unshare", "setpriv", "prlimit", "mount")
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in programs):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


def _faketime() -> Path | None:
    result = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return result[0] if result else None


def _can_limit_memory() -> bool:
    return os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK)


COMPONENTS: Final[dict[str, Component]] = {
    "PostgreSQL": Component("apt-get install postgresql", _postgresql),
    "Chromium": Component("apt-get install chromium", _program("chromium")),
    "Playwright": Component("make build", lambda: importlib.util.find_spec("playwright") is not None),
    "openssl": Component("apt-get install openssl", _program("openssl")),
    "strace": Component("apt-get install strace; sysctl kernel.yama.ptrace_scope=0", _can_attach),
    "systemd-analyze": Component("apt-get install systemd", _program("systemd-analyze")),
    "promtool": Component("apt-get install prometheus", _program("promtool")),
    "Prometheus": Component("apt-get install prometheus", _program("prometheus")),
    **{
        name: Component("make conformance-tools", _program(name))
        for name in (
            "h2spec",
            "grpc-interop-client",
            "interop-server",
            "connectconformance",
            "connectrpc-server",
            "ghz",
            "grpcurl",
        )
    },
    "tritonclient": Component("make clients", _client("tritonclient")),
    "kserve": Component("make clients", _client("kserve")),
    "grpc-java": Component(
        "apt-get install default-jdk-headless libgrpc-java libprotobuf-java protobuf-compiler "
        "protobuf-compiler-grpc-java-plugin",
        _grpc_java,
    ),
    "Kafka": Component("apt-get install default-jdk-headless maven; make kafka", _kafka),
    "conformance cases of CEL": Component("install Go 1.26; make cel-spec", _cel_spec),
    "versitygw": Component("make s3", _file("s3/versitygw")),
    "Redis": Component("apt-get install redis-server", _redis),
    "nginx": Component("apt-get install nginx-light", _program("nginx")),
    "haproxy": Component("apt-get install haproxy", _program("haproxy")),
    "client for Go": Component(
        "apt-get install protobuf-compiler; install Go 1.26; make foreign-clients", _foreign_client("go")
    ),
    "client for Java": Component(
        "apt-get install default-jdk-headless maven; make foreign-clients", _foreign_client("java")
    ),
    "client for Node": Component("apt-get install nodejs npm; make foreign-clients", _foreign_client("node")),
    "MLflow": Component("make mlflow", _file("mlflow/bin/mlflow")),
    "oidc-provider": Component("apt-get install nodejs npm; make oidc", _oidc_provider),
    "rule peers": Component("make rule-peers", _file("rule-peers/.packages")),
    "Airflow": Component("make airflow", _file("airflow/bin/airflow")),
    "PySpark": Component(
        "apt-get install openjdk-17-jre-headless; make spark",
        lambda: program_path("java") is not None and _file("spark/.packages")(),
    ),
    "bench peers": Component("make bench-peers", _file("bench/venv/.packages")),
    "a mountable tmpfs": Component("unshare --user --map-root-user --mount make test-python", _can_mount),
    "unshare and setpriv as root": Component("apt-get install util-linux; run as root", _can_drop_rights),
    "faketime": Component("apt-get install faketime", lambda: _faketime() is not None),
    "a memory cgroup": Component("run as root, with the memory controller of cgroup v1", _can_limit_memory),
    "learning peers": Component("make learning-peers", _file("learning/venv/.packages")),
}

absent: Counter[str] = Counter()
"""Number of skipped tests by missing component."""


def program_path(name: str) -> str | None:
    """Return the path of a program in PATH, .build/bin or /usr/sbin; None if it is not installed."""
    # /usr/sbin is not in the PATH of every user.
    return shutil.which(name) or shutil.which(name, path=f"{BUILD / 'bin'}{os.pathsep}/usr/sbin")


def require(name: str) -> None:
    """Skip the test if a component is not installed; fail it if REQUIRE_COMPONENTS is "all".

    Raises:
        pytest.skip.Exception: The component is missing, and REQUIRE_COMPONENTS is not "all".
        pytest.fail.Exception: The component is missing and REQUIRE_COMPONENTS is "all".
    """
    component = COMPONENTS[name]
    if component.is_installed():
        return
    absent[name] += 1
    reason = f"{name} is not installed; `{component.install}` installs it"
    if EVERYTHING:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require_program(name: str) -> str:
    """Return the path of a program that is a component; see `require`."""
    require(name)
    path = program_path(name)
    assert path is not None
    return path


def faketime_library() -> Path:
    """Return the path of the library that gives a process a simulated wall clock."""
    require("faketime")
    path = _faketime()
    assert path is not None
    return path


def untested_instructions() -> list[str]:
    """Return the vector instruction sets that this processor lacks. Their kernels are not tested."""
    from loadtests.figures import cpu_facts, isa_level

    level = isa_level(platform.machine(), set(cpu_facts().get("flags", "").split()))
    reached = {"avx512": {"avx512", "avx2"}, "avx2": {"avx2"}, "neon": {"neon"}}.get(level, set())
    return [name for name in ("avx2", "avx512", "neon") if name not in reached]


def summary() -> list[str]:
    """Return the lines that end a run: the missing components, and the commands that install them."""
    lines = []
    if absent:
        commands = dict.fromkeys(COMPONENTS[name].install for name in absent)
        skipped = ", ".join(f"{name} ({count})" for name, count in sorted(absent.items()))
        lines.append(f"tests skipped for a missing component: {skipped}")
        lines.append(f"to run them: {'; '.join(commands)}")
    if missing := untested_instructions():
        lines.append(
            f"kernels that this processor cannot test: {', '.join(missing)} (`make test-neon` emulates NEON)"
        )
    return lines


def main() -> int:
    """Print every missing component; return 1 if there is one."""
    missing = {name: component for name, component in COMPONENTS.items() if not component.is_installed()}
    for name, component in missing.items():
        sys.stderr.write(f"missing component: {name} (`{component.install}`)\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
