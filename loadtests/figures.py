"""Figures: one JSON line each, after a line that describes the machine.

Pages and plots are generated only from these lines.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from loadtests import provenance
from loadtests.rounds import interval, is_settled

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "loadtests/results"


class NotReleaseError(Exception):
    """The extension is a debug build, whose figures are not valid."""


class UnpublishableError(Exception):
    """A line must not be published: it is of a dirty tree, a smoke run or an unknown commit."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured quantity.

    With a peer, ``ratio`` is the factor by which ours is better (times: theirs / ours, rates: ours / theirs),
    and ``target`` is the smallest accepted ratio. Without a peer, ``target`` is the upper bound of ``ours``,
    or the lower bound if ``higher_is_better``.

    Attributes:
        group: Group of the benchmark that measured it.
        name: Description of the figure. With the peer it identifies the figure, also in the baseline.
        ours: Median over the rounds.
        theirs: Median of the peer over the same rounds.
        rounds: Number of rounds; None for a count, which does not vary.
        low, high: Interval of the compared value (the ratio, or ours) over the rounds.
        settled: Whether the rounds agree well enough for a verdict; None for a count.
        met: Whether the median meets the target, settled or not.
        command: Command that repeats the measurement.
        note: Additional information for readers.
        plot: Plot that contains the figure as a point; tables omit points.
        x: Position in the plot.
        at: Time of the measurement.
        commit: Measured commit.
        cpu, isa: Processor and its level of vector instructions.
        unpublishable: Reason why the line must not be published: "dirty" or "smoke".
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
    rounds: int | None = None
    low: float | None = None
    high: float | None = None
    settled: bool | None = None
    command: str = ""
    higher_is_better: bool = False
    note: str | None = None
    plot: str | None = None
    x: float | None = None
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    commit: str = ""
    cpu: str = ""
    isa: str = ""
    unpublishable: str | None = None

    @property
    def key(self) -> str:
        """Unique key of the figure."""
        return self.name if self.peer is None else f"{self.name} | {self.peer}"

    @property
    def result(self) -> str:
        """Verdict: met, missed, not settled, worse (than the peer, without a target), or empty."""
        if self.settled is False:
            return "not settled"
        if self.met is not None:
            return "met" if self.met else "missed"
        return "worse" if self.ratio is not None and self.ratio < 1 else ""


class Figures:
    """The file of one run. A line is written completely when `add` returns."""

    def __init__(
        self,
        directory: Path,
        *,
        group: str = "",
        machine: dict[str, Any] | None = None,
        unpublishable: str | None = None,
    ) -> None:
        """Start a file with the line that describes the machine.

        The commit is read now, before the measurements.

        Args:
            directory: Directory of the file.
            group: Group that measures.
            machine: Description of the machine; None: that of this machine.
            unpublishable: Reason why the lines must not be published. None requires a clean tree.

        Raises:
            NotReleaseError: The extension is not a release build.
            DirtyTreeError: The working tree has changes and the lines are to be publishable.
        """
        described = machine or describe_machine()
        if machine is None and unpublishable is None:
            described["commit"] = provenance.clean_head()
        if described["build_profile"] != "release":
            raise NotReleaseError(
                f"the extension is a {described['build_profile']} build, whose figures are not valid;"
                " run `make build` for a release build"
            )
        if unpublishable is not None:
            described["unpublishable"] = unpublishable
        directory.mkdir(parents=True, exist_ok=True)
        self.group = group
        self.machine = described
        self.path = directory / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"
        self._append(
            json.dumps({"machine": described, "at": datetime.now(UTC).isoformat(timespec="seconds")})
        )

    @classmethod
    def reopen(cls, path: Path, group: str) -> Figures:
        """Continue a file that another process started."""
        if not path.exists():
            raise FileNotFoundError(path)
        figures = cls.__new__(cls)
        figures.path, figures.group = path, group
        figures.machine = lines(path)[0]
        return figures

    def add(
        self,
        *,
        name: str,
        ours: float | Sequence[float],
        unit: str,
        command: str,
        peer: str | None = None,
        theirs: float | Sequence[float] | None = None,
        target: float | None = None,
        higher_is_better: bool = False,
        note: str | None = None,
        plot: str | None = None,
        x: float | None = None,
    ) -> Figure:
        """Append a figure. `Figure` describes the arguments.

        ``ours`` and ``theirs`` contain one value per round, for the same rounds in the same order. A count,
        which does not vary, is a single number.

        Raises:
            ValueError: A value is not a finite number, a peer has no value or a value has no peer, or
                both have different numbers of rounds.
        """
        if (peer is None) != (theirs is None):
            raise ValueError(f"{name}: peer and theirs belong together")
        if (plot is None) != (x is None):
            raise ValueError(f"{name}: plot and x belong together")
        our_rounds = [ours] if isinstance(ours, int | float) else list(ours)
        their_rounds = [theirs] if isinstance(theirs, int | float) else list(theirs or ())
        if not our_rounds or (their_rounds and len(their_rounds) != len(our_rounds)):
            raise ValueError(f"{name}: {len(our_rounds)} and {len(their_rounds)} rounds cannot be compared")
        values = [*our_rounds, *their_rounds, *(value for value in (target, x) if value is not None)]
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"{name}: {values} are not all finite")
        judged = our_rounds
        if their_rounds:
            pairs = zip(our_rounds, their_rounds, strict=True)
            judged = [_ratio(name, own, other, higher_is_better) for own, other in pairs]
        counted = isinstance(ours, int | float)
        low, high = (None, None) if counted else interval(judged)
        our_middle = median(our_rounds)
        their_middle = median(their_rounds) if their_rounds else None
        ratio = None if their_middle is None else _ratio(name, our_middle, their_middle, higher_is_better)
        met = None
        if target is not None:
            if ratio is not None:
                met = ratio >= target
            else:
                met = our_middle >= target if higher_is_better else our_middle <= target
        figure = Figure(
            group=self.group,
            name=name,
            ours=_rounded(our_middle),
            unit=unit,
            peer=peer,
            theirs=None if their_middle is None else _rounded(their_middle),
            ratio=None if ratio is None else _rounded(ratio),
            target=target,
            met=met,
            rounds=None if counted else len(our_rounds),
            low=None if low is None else _rounded(low),
            high=None if high is None else _rounded(high),
            settled=None if counted else is_settled(judged, target),
            command=command,
            higher_is_better=higher_is_better,
            note=note,
            plot=plot,
            x=x,
            commit=self.machine.get("commit", ""),
            cpu=self.machine["cpu"],
            isa=self.machine["isa"],
            unpublishable=self.machine.get("unpublishable"),
        )
        self._append(_line(figure))
        sys.stdout.write(f"   {in_words(figure)}\n")
        sys.stdout.flush()
        return figure

    def _append(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")


def _ratio(name: str, ours: float, theirs: float, higher_is_better: bool) -> float:
    better, worse = (ours, theirs) if higher_is_better else (theirs, ours)
    if worse <= 0:
        raise ValueError(f"{name}: {better} cannot be divided by {worse}")
    return better / worse


@dataclass(frozen=True)
class Run:
    """The content of one file, or of several merged files.

    Attributes:
        machine: Description in the last file.
        figures: In the order in which they were first measured.
    """

    machine: dict[str, Any]
    figures: list[Figure]


def lines(path: Path) -> tuple[dict[str, Any], list[Figure]]:
    """Return the machine and every line of one run.

    Raises:
        ValueError: The file does not begin with the line of a machine.
    """
    first, *others = path.read_text().splitlines() or ["{}"]
    machine: dict[str, Any] = json.loads(first).get("machine", {})
    if not machine:
        raise ValueError(f"{path} does not begin with the line of a machine")
    return machine, [Figure(**json.loads(text)) for text in others]


def read(*paths: Path) -> Run:
    """Merge runs. A group in a later file replaces the group of earlier files.

    Within one file the last line of a figure counts. Each line contains its commit and processor, so files of
    different machines can be merged.

    Raises:
        ValueError: The line of a machine is missing.
    """
    machine: dict[str, Any] = {}
    groups: dict[str, dict[tuple[str, float | None], Figure]] = {}
    for path in paths:
        machine, figures = lines(path)
        measured: dict[str, dict[tuple[str, float | None], Figure]] = {}
        for figure in figures:
            measured.setdefault(figure.group, {})[figure.key, figure.x] = figure
        groups |= measured
    return Run(machine, [figure for group in groups.values() for figure in group.values()])


def publishable(run: Run) -> Run:
    """Return the run if all of its lines can be published.

    Raises:
        UnpublishableError: A line is of a dirty tree or a smoke run, or its commit cannot be traced.
    """
    for figure in run.figures:
        if figure.unpublishable:
            raise UnpublishableError(
                f"{figure.key}: the line is marked {figure.unpublishable}; measure again"
            )
        if found := provenance.problem(figure.commit, figure.at):
            raise UnpublishableError(f"{figure.key}: {found}")
    return run


def write(run: Run, path: Path) -> None:
    """Write a merged run in the format of `read`."""
    kept = {name: value for name, value in run.machine.items() if name not in {"commit", "modified"}}
    first = json.dumps({"machine": kept})
    path.write_text("\n".join([first, *(_line(figure) for figure in run.figures)]) + "\n")


def newest(directory: Path = RESULTS) -> Path:
    """Return the file of the last run.

    Raises:
        FileNotFoundError: There is no run yet.
    """
    paths = sorted(directory.glob("*.jsonl"))
    if not paths:
        raise FileNotFoundError(f"there is no run in {directory}; run `make bench`")
    return paths[-1]


def describe_machine() -> dict[str, Any]:
    """Return the properties of this machine and build that figures depend on."""
    from scorer import bridge

    facts = cpu_facts()
    return {
        "cpu": processor_name(facts),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "isa": isa_level(platform.machine(), set(facts.get("flags", "").split())),
        "caches": caches(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "version": bridge.__version__,
        "build_profile": bridge.build_profile,
        "commit": provenance.head(),
    }


def cpu_facts() -> dict[str, str]:
    """Return the entry of the first processor in /proc/cpuinfo; empty on other systems."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return {}
    first = info.read_text().split("\n\n", maxsplit=1)[0]
    parted = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in parted}


def processor_name(facts: dict[str, str]) -> str:
    """Return the processor's name with vendor, family, model and stepping.

    Different generations of a processor can have the same name.
    """
    name = facts.get("model name") or platform.processor() or platform.machine()
    parts = [facts[key] for key in ("vendor_id", "cpu family", "model", "stepping") if key in facts]
    return f"{name} ({' '.join(parts)})" if parts else name


def isa_level(machine: str, flags: set[str]) -> str:
    """Return the level of vector instructions: avx512, avx2, neon or portable."""
    if machine in {"aarch64", "arm64"}:
        return "neon"
    if {"avx512f", "avx512bw", "avx512vl", "avx512vbmi"} <= flags:
        return "avx512"
    return "avx2" if "avx2" in flags else "portable"


def caches() -> dict[str, int]:
    """Return the sizes in bytes of one core's data caches by name (L1, L2, L3), from sysfs."""
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
    """Return the figure as one line of text."""
    text = (
        f"{figure.name}"
        + ("" if figure.x is None else f" at {figure.x:,g}")
        + f": {amount(figure.ours, figure.unit)}"
    )
    if figure.theirs is not None:
        text += f"; {figure.peer} {amount(figure.theirs, figure.unit)}: {figure.ratio:,g}x"
    if figure.rounds:
        text += f" [{figure.low:,g} to {figure.high:,g} over {figure.rounds} rounds]"
    if figure.met is not None:
        bound = "at least" if figure.ratio is not None or figure.higher_is_better else "at most"
        text += f" ({bound} {figure.target:,g}: {figure.result})"
    elif figure.settled is False:
        text += " (not settled)"
    return text


def amount(value: float, unit: str) -> str:
    """Return a value with its unit."""
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return f"{shown} {unit}".rstrip()


def _rounded(value: float) -> float:
    """Round to four significant digits, which is the precision of timings."""
    return value if value == 0 else float(f"{value:.4g}")
