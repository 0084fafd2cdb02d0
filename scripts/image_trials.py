"""Trials of the images: each starts the entry point in the root file system of its image and uses it.

The root file system is mounted read-only. The program runs as the image's unprivileged user without
capabilities, in namespaces of its own apart from the network, and can write to `/tmp`, `/run/scorer` and the
volume at `/var/lib/scorer`. Helpers and components of the tests are imported from tests/support.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trial import ROOT, TRAINING, Trial, TrialError, sample_bundles

SECONDS = 120.0
"""Time limit of each step of a trial."""
LISTENERS = [f"SCORER_SERVER__{name}" for name in ("LISTEN", "METRICS_LISTEN", "CONTROL_LISTEN")]
CONFINED = """
import importlib.util, json, os, pathlib, shutil, sys
assert os.getuid() == 65532 and os.getgid() == 65532, (os.getuid(), os.getgid())
for place in ("/usr", "/opt/scorer", "/etc", "/etc/scorer"):
    try:
        (pathlib.Path(place) / "written").write_text("x")
    except OSError:
        continue
    raise SystemExit(f"{place} can be written")
if tools := [name for name in ("cc", "gcc", "clang", "cargo", "pip") if shutil.which(name)]:
    raise SystemExit(f"the image contains {', '.join(tools)}")
print(json.dumps([name for name in sys.argv[1].split(",") if importlib.util.find_spec(name)]))
"""
PLATFORM = """\
[platform]
listen = "127.0.0.1:0"
database = "sqlite:////var/lib/scorer/platform.sqlite"
data_dir = "/var/lib/scorer/platform"
registry = "/var/lib/scorer/registry"
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
"""
SHIP = """\
[ship]
log = "/var/lib/scorer/decisions"
server = "scorer-0"
flush_seconds = 0.05
metrics_listen = "127.0.0.1:0"
[delta]
url = "/var/lib/scorer/lake"
"""
OPERATOR = ROOT / "deploy" / "kubernetes" / "operator"
NO_CLUSTER = "error: no Kubernetes configuration: "


@dataclass(frozen=True)
class ConfinedImage:
    """The root file system of an image, and the directories that are mounted in it.

    Attributes:
        root: The root file system.
        config: `config` of the OCI image.
        volume: Directory at `/var/lib/scorer`, which the image's user can write.
        mounts: Further files and directories by their path in the image, read-only.
    """

    root: Path
    config: Mapping[str, Any]
    volume: Path
    mounts: Mapping[str, Path]

    @property
    def entry(self) -> list[str]:
        """The entry point with its default arguments."""
        return [*self.config["Entrypoint"], *(self.config.get("Cmd") or ())]

    @property
    def ids(self) -> tuple[str, str]:
        """Numbers of the image's user and group."""
        user, _, group = str(self.config["User"]).partition(":")
        return user, group or user

    def command(self, variables: Mapping[str, str] | None = None, *options: str) -> list[str]:
        """Return the command that confines a program. The program and its arguments are appended.

        Args:
            variables: Environment variables, besides those of the image.
            options: Further options of bubblewrap.
        """
        user, group = self.ids
        environment = dict(pair.split("=", 1) for pair in self.config["Env"]) | dict(variables or {})
        return [
            "bwrap", "--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/tmp", "--tmpfs", "/run/scorer", "--bind", str(self.volume), "/var/lib/scorer",  # noqa: S108 - the image's own
            *(part for place, path in self.mounts.items() for part in ("--ro-bind", str(path), place)),
            "--unshare-all", "--share-net", "--uid", user, "--gid", group, "--cap-drop", "ALL",
            "--die-with-parent", "--new-session", "--chdir", self.config["WorkingDir"], "--clearenv",
            *(part for name, value in environment.items() for part in ("--setenv", name, value)),
            *options,
        ]  # fmt: skip

    def run(self, *program: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the image to its end.

        Raises:
            TrialError: It does not end in time.
        """
        command = [*self.command(), *program]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        except subprocess.TimeoutExpired as late:
            raise TrialError(f"{' '.join(program)[:80]} did not end within {SECONDS:g} s") from late

    def training_libraries(self) -> list[str]:
        """Check the user and what can be written, and return the training libraries of the image.

        Raises:
            TrialError: The program is not confined, or the image contains a compiler or an installer.
        """
        done = self.run("/opt/scorer/bin/python", "-c", CONFINED, ",".join(TRAINING))
        if done.returncode:
            raise TrialError(f"it is not confined: {done.stderr.strip()[-500:]}")
        libraries: list[str] = json.loads(done.stdout)
        return libraries

    @contextmanager
    def running(self, *arguments: str) -> Iterator[ConfinedProcess]:
        """Run the entry point as process 1 of the image, as a container engine does.

        Args:
            arguments: Arguments instead of the default ones of the image.

        Raises:
            TrialError: It does not start, or does not end with exit code 0 at SIGTERM.
        """
        program = [*self.config["Entrypoint"], *arguments] if arguments else self.entry
        read, write = os.pipe()
        with tempfile.NamedTemporaryFile(prefix="image-", suffix=".log") as log:
            started = subprocess.Popen(
                [*self.command(None, "--as-pid-1", "--info-fd", str(write)), *program],
                pass_fds=(write,), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            os.close(write)
            with os.fdopen(read) as info:
                text = info.read()
            process = ConfinedProcess(
                started, json.loads(text)["child-pid"] if text else None, Path(log.name)
            )
            try:
                yield process
                process.stop()
            finally:
                started.kill()
                started.wait(SECONDS)


@dataclass(frozen=True)
class ConfinedProcess:
    """A confined process.

    Attributes:
        process: The program that confines it, and ends with its exit code.
        pid: Its process id outside; None if it was not started.
        log: File with its output.
    """

    process: subprocess.Popen[bytes]
    pid: int | None
    log: Path

    @property
    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text()

    def stop(self) -> None:
        """End it with SIGTERM.

        Raises:
            TrialError: It does not end in time, or with another exit code than 0.
        """
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise TrialError(f"it does not end at SIGTERM:\n{self.text[-1500:]}") from None
        if code:
            raise TrialError(f"it ended with exit code {code}:\n{self.text[-1500:]}")

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Call a condition until its result is true, and return the result.

        Raises:
            TrialError: It is not true in time, or the process has ended.
        """
        from waiting import wait_until

        def check() -> Any:
            return self.process.poll() is not None or condition()

        try:
            value = wait_until(check, what, seconds=SECONDS)
        except AssertionError as error:
            raise TrialError(f"{error}:\n{self.text[-1500:]}") from error.__cause__
        if self.process.poll() is not None:
            raise TrialError(f"it ended with exit code {self.process.returncode}:\n{self.text[-1500:]}")
        return value


def try_image(name: str, root: Path, config: Mapping[str, Any]) -> str:
    """Use an image, and return a line about the result.

    Args:
        name: The image: `serve`, `platform`, `operator` or `ship`.
        root: Its root file system.
        config: `config` of the OCI image.

    Raises:
        TrialError: The image does not do its work.
    """
    sys.path.append(str(ROOT / "tests" / "support"))
    with tempfile.TemporaryDirectory(prefix="image-") as folder, _bundles(name) as mounts:
        volume, settings = Path(folder) / "volume", Path(folder) / "etc"
        volume.mkdir()
        settings.mkdir()
        # The server's settings are in its image. A directory hides them as a ConfigMap does.
        places = {"/srv": mounts} if mounts else {"/etc/scorer": settings}
        image = ConfinedImage(root, config, volume, places)
        allowed, trial = TRIALS[name]
        if unwanted := sorted(set(image.training_libraries()) - allowed):
            raise TrialError(f"the image contains {', '.join(unwanted)}")
        said = trial(image, settings)
    return f"{said}; user {image.ids[0]}, root file system read-only"


def _bundles(name: str) -> Any:
    return sample_bundles() if name == "serve" else nullcontext()


def _serve(image: ConfinedImage, _: Path) -> str:
    """Serve a bundle of each kind, with the settings of the image and free ports, and send a request."""
    variables = dict.fromkeys(LISTENERS, "127.0.0.1:0")
    variables["SCORER_REGISTRY__PATH"] = "/var/lib/scorer/registry"
    confined = image.command(variables)
    trial = Trial(
        [*confined, "/opt/scorer/bin/python"], image.volume, dict(os.environ), serve=[*confined, *image.entry]
    )
    return trial.run(["/srv/fraud-checkout", "/srv/action-authorise"])


def _platform(image: ConfinedImage, settings: Path) -> str:
    """Create a database on the volume, serve the pages, and sign in with the first admin's token."""
    (settings / "platform.toml").write_text(PLATFORM)
    done = image.run(*image.config["Entrypoint"], "init", "--json")
    if done.returncode:
        raise TrialError(f"platform init: {done.stderr.strip()[-1500:]}")
    secret = json.loads(done.stdout)["secret"]
    with image.running() as platform:
        serving = platform.wait(lambda: _event(platform.text, "serving"), "the event `serving`")
        url = str(serving["url"])
        health = json.loads(_get(f"{url}/api/v1/health"))
        if health["status"] != "ok":
            raise TrialError(f"/api/v1/health answers {health}")
        if '<form method="post" action="/login' not in _get(f"{url}/login"):
            raise TrialError("the sign-in page has no form")
        me = json.loads(_get(f"{url}/api/v1/me", token=secret))
    if not (image.volume / "platform.sqlite").exists():
        raise TrialError("the database is not on the volume")
    return f"platform {health['version']} answered its health and sign-in pages, and {me['user']} signed in"


def _operator(image: ConfinedImage, settings: Path) -> str:
    """Without a cluster, end with one line. With an API server, create the objects of a ScorerServer."""
    done = image.run(*image.config["Entrypoint"])
    lines = done.stderr.strip().splitlines()
    if done.returncode != 1 or len(lines) != 1 or not lines[0].startswith(NO_CLUSTER):
        raise TrialError(f"exit code {done.returncode} without a cluster:\n{done.stderr.strip()[-1500:]}")
    alone = "operator ended with its error line without a cluster"
    import kube_cluster

    if not kube_cluster.API_SERVER.exists() or not kube_cluster.components.program_path("etcd"):
        return f"{alone} (NOT TESTED with one: `make kube` builds kube-apiserver; Debian: etcd-server)"
    with kube_cluster.KubeCluster() as kube:
        return f"{alone}; {_with_cluster(image, settings, kube)}"


def _with_cluster(image: ConfinedImage, settings: Path, kube: Any) -> str:
    import yaml
    from kube_cluster import free_port

    for name in ("crds.yaml", "operator.yaml"):
        for document in filter(None, yaml.safe_load_all((OPERATOR / name).read_text())):
            kube.apply(document)
    authority = settings / "ca.crt"
    authority.write_bytes((kube.directory / "certs" / "apiserver.crt").read_bytes())
    config = yaml.safe_load(kube.kubeconfig("operator-token").read_text())
    config["clusters"][0]["cluster"]["certificate-authority"] = f"/etc/scorer/{authority.name}"
    (settings / "kubeconfig").write_text(yaml.safe_dump(config))
    health = f"127.0.0.1:{free_port()}"
    with image.running(
        "--kubeconfig", "/etc/scorer/kubeconfig", "--interval", "0.5", "--health", health
    ) as operator:
        operator.wait(lambda: _get(f"http://{health}/healthz"), "/healthz of the operator")
        for document in filter(None, yaml.safe_load_all((OPERATOR / "example.yaml").read_text())):
            # The API server may still be making the resource known.
            operator.wait(lambda one=document: kube.apply(one) or True, f"the {document['kind']}")
        sets = "/apis/apps/v1/namespaces/default/statefulsets"
        [created] = operator.wait(lambda: kube.call("GET", sets)["items"], "a StatefulSet")
    return f"with an API server it answered /healthz and created StatefulSet {created['metadata']['name']}"


def _ship(image: ConfinedImage, settings: Path) -> str:
    """Ship a log to a Delta table on the volume, and compare the rows with the log."""
    from shipping import delta_keys, keys_of, write_log

    (settings / "ship.toml").write_text(SHIP)
    log = write_log(image.volume / "decisions", [60, 40])
    wanted = keys_of(log)
    lake = str(image.volume / "lake")
    with image.running() as shipper:
        shipper.wait(lambda: delta_keys(lake) == wanted, "every record in the Delta tables")
    return f"shipper delivered {wanted.total()} records to Delta tables, each once, and ended at SIGTERM"


TRIALS: dict[str, tuple[set[str], Callable[[ConfinedImage, Path], str]]] = {
    "serve": (set(), _serve),
    "platform": ({"numpy", "scipy", "pyarrow"}, _platform),
    "operator": (set(), _operator),
    "ship": ({"numpy", "pyarrow"}, _ship),
}
"""For each image: its libraries that training also has, and its trial."""


def _event(text: str, name: str) -> dict[str, Any] | None:
    """Return the first event with a name, from lines of JSON."""
    events = (json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}"))
    return next((event for event in events if event.get("event") == name), None)


def _get(url: str, token: str | None = None) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - an address on loopback
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        raise TrialError(f"{url}: HTTP {error.code}: {error.read().decode(errors='replace')[:500]}") from None
