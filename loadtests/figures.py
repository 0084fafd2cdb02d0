"""Figures: a JSON line each, after a line about the machine. Tables and plots are made from these alone."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "loadtests/results"


class NotReleaseError(Exception):
    """A debug build was about to be measured: its figures are worth nothing."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One thing that was measured.

    With a peer, ``ratio`` says how many times better ours is (a time: theirs / ours, a rate: ours / theirs),
    and ``target`` is the least ratio. Without one, ``target`` bounds ``ours`` itself: from above, or from
    below where ``higher_is_better``.

    Attributes:
        group: The part of the benchmark that measured it.
        name: What was measured. Together with the peer it names the figure, also in the baseline.
        command: What measures it again.
        note: What a reader has to know beside it.
        plot: The plot that this is a point of; the table leaves points out.
        x: Where in the plot it is.
        at: When.
    """

    group: str
    name: str
    ours: float
    unit: str
    peer: str | None = None
    theirs: float | None = None
    ratio: float | None = None
    target: float | None = None
    met: bool | None = None
    command: str = ""
    higher_is_better: bool = False
    note: str | None = None
    plot: str | None = None
    x: float | None = None
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def key(self) -> str:
        """What names the figure among all."""
        return self.name if self.peer is None else f"{self.name} | {self.peer}"


class Figures:
    """The file of one run; every line is complete on the disk once `add` returns, whatever happens next."""

    def __init__(self, directory: Path, *, group: str = "", machine: dict[str, Any] | None = None) -> None:
        """Starts a file with the machine's line.

        Raises:
            NotReleaseError: The extension is not a release build.
        """
        about = machine or describe_machine()
        if about["build_profile"] != "release":
            raise NotReleaseError(
                f"the extension is a {about['build_profile']} build, whose figures are worth nothing;"
                " run `make build` for a release build"
            )
        directory.mkdir(parents=True, exist_ok=True)
        self.group = group
        self.path = directory / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"
        self._append(json.dumps({"machine": about, "at": datetime.now(UTC).isoformat(timespec="seconds")}))

    @classmethod
    def reopen(cls, path: Path, group: str) -> Figures:
        """Goes on with a file that another process started."""
        if not path.exists():
            raise FileNotFoundError(path)
        figures = cls.__new__(cls)
        figures.path, figures.group = path, group
        return figures

    def add(
        self,
        *,
        name: str,
        ours: float,
        unit: str,
        command: str,
        peer: str | None = None,
        theirs: float | None = None,
        target: float | None = None,
        higher_is_better: bool = False,
        note: str | None = None,
        plot: str | None = None,
        x: float | None = None,
    ) -> Figure:
        """Appends a figure; `Figure` says what its parts mean.

        Raises:
            ValueError: A value is no finite number, a peer has no value or the other way round.
        """
        if (peer is None) != (theirs is None):
            raise ValueError(f"{name}: peer and theirs belong together")
        if (plot is None) != (x is None):
            raise ValueError(f"{name}: plot and x belong together")
        values = [value for value in (ours, theirs, target, x) if value is not None]
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"{name}: {values} are not all finite")
        ratio = None
        if theirs is not None:
            better, worse = (ours, theirs) if higher_is_better else (theirs, ours)
            if worse <= 0:
                raise ValueError(f"{name}: no ratio of {better} to {worse}")
            ratio = better / worse
        met = None
        if target is not None:
            if ratio is not None:
                met = ratio >= target
            else:
                met = ours >= target if higher_is_better else ours <= target
        figure = Figure(
            group=self.group,
            name=name,
            ours=_rounded(ours),
            unit=unit,
            peer=peer,
            theirs=None if theirs is None else _rounded(theirs),
            ratio=None if ratio is None else _rounded(ratio),
            target=target,
            met=met,
            command=command,
            higher_is_better=higher_is_better,
            note=note,
            plot=plot,
            x=x,
        )
        self._append(_line(figure))
        sys.stdout.write(f"   {in_words(figure)}\n")
        sys.stdout.flush()
        return figure

    def _append(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")


@dataclass(frozen=True)
class Run:
    """What a file, or several merged, holds.

    Attributes:
        machine: That of the last file.
        figures: In the order in which they were first measured.
        commits: Of each group: what was measured, as groups may come from several runs.
    """

    machine: dict[str, Any]
    figures: list[Figure]
    commits: dict[str, str] = field(default_factory=dict)


def lines(path: Path) -> tuple[dict[str, Any], list[Figure]]:
    """The machine, and every line of one run.

    Raises:
        ValueError: The file does not begin with a machine's line.
    """
    first, *others = path.read_text().splitlines() or ["{}"]
    machine: dict[str, Any] = json.loads(first).get("machine", {})
    if not machine:
        raise ValueError(f"{path} does not begin with a machine's line")
    return machine, [Figure(**json.loads(text)) for text in others]


def read(*paths: Path) -> Run:
    """Merges runs. Of a figure measured more than once, the last line stands, in the first one's place.

    Raises:
        ValueError: A machine's line is missing, or files come from different machines.
    """
    machine: dict[str, Any] = {}
    found: dict[tuple[str, str, float | None], Figure] = {}
    commits: dict[str, str] = {}
    for path in paths:
        about, figures = lines(path)
        if machine and (machine["cpu"], machine["isa"]) != (about["cpu"], about["isa"]):
            raise ValueError(f"{path} was measured on {about['cpu']} ({about['isa']}), the others not")
        of_group = about.pop("commits", {})
        machine = about
        for figure in figures:
            found[figure.group, figure.key, figure.x] = figure
            commits[figure.group] = of_group.get(figure.group, about["commit"])
    return Run(machine, list(found.values()), commits)


def write(run: Run, path: Path) -> None:
    """Writes a merged run as the lines that `read` reads."""
    first = json.dumps({"machine": run.machine | {"commits": run.commits}})
    path.write_text("\n".join([first, *(_line(figure) for figure in run.figures)]) + "\n")


def newest(directory: Path = RESULTS) -> Path:
    """The file of the last run.

    Raises:
        FileNotFoundError: Nothing was measured yet.
    """
    paths = sorted(directory.glob("*.jsonl"))
    if not paths:
        raise FileNotFoundError(f"nothing measured in {directory}; run `make bench`")
    return paths[-1]


def describe_machine() -> dict[str, Any]:
    """What figures depend on."""
    from scorer import bridge

    facts = cpu_facts()
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "isa": isa_level(platform.machine(), set(facts.get("flags", "").split())),
        "caches": caches(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "version": bridge.__version__,
        "build_profile": bridge.build_profile,
        "commit": _git("rev-parse", "HEAD"),
        "modified": bool(_git("status", "--porcelain")),
    }


def cpu_facts() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo; empty on other systems."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return {}
    first = info.read_text().split("\n\n", maxsplit=1)[0]
    parted = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in parted}


def isa_level(machine: str, flags: set[str]) -> str:
    """The level of vector instructions, by which baselines are kept: avx512, avx2, neon or portable."""
    if machine in {"aarch64", "arm64"}:
        return "neon"
    if {"avx512f", "avx512bw", "avx512vl", "avx512vbmi"} <= flags:
        return "avx512"
    return "avx2" if "avx2" in flags else "portable"


def caches() -> dict[str, int]:
    """Bytes of the data caches that one core can reach, by name (L1, L2, L3), from sysfs."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            size = (index / "size").read_text().strip()
            units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
            found[f"L{(index / 'level').read_text().strip()}"] = int(size[:-1]) * units[size[-1]]
    return found


def _line(figure: Figure) -> str:
    return json.dumps(
        {key: value for key, value in asdict(figure).items() if value is not None}, ensure_ascii=False
    )


def in_words(figure: Figure) -> str:
    """The figure in one line."""
    text = (
        f"{figure.name}"
        + ("" if figure.x is None else f" at {figure.x:,g}")
        + f": {amount(figure.ours, figure.unit)}"
    )
    if figure.theirs is not None:
        text += f"; {figure.peer} {amount(figure.theirs, figure.unit)}: {figure.ratio:,g}x"
    if figure.met is not None:
        bound = "at least" if figure.ratio is not None or figure.higher_is_better else "at most"
        text += f" ({bound} {figure.target:,g}: {'met' if figure.met else 'MISSED'})"
    return text


def amount(value: float, unit: str) -> str:
    """A value with its unit, with no more digits than it has."""
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return f"{shown} {unit}".rstrip()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _rounded(value: float) -> float:
    """To four significant digits: more would claim what no timing holds."""
    return value if value == 0 else float(f"{value:.4g}")
