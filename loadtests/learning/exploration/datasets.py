"""Six classification sets as bandits: a row is a context, a class an action, and its own class pays 1.

The set digits is part of scikit-learn. The others are part of R's package mlbench (GPL-2, data of the UCI
repository), of which the archive of Debian has a copy. It is downloaded once to .build/learning/data and is
not part of this repository.
"""

from __future__ import annotations

import shutil
import subprocess
import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from loadtests.figures import ROOT

FOLDER: Final = ROOT / ".build/learning/data"
_PACKAGE: Final = "r-cran-mlbench"
# For each name of ours: the table in mlbench, and its column of classes.
_MLBENCH: Final = {
    "letter": ("LetterRecognition", "lettr"),
    "satimage": ("Satellite", "classes"),
    "shuttle": ("Shuttle", "Class"),
    "vehicle": ("Vehicle", "Class"),
    "vowel": ("Vowel", "Class"),
}
NAMES: Final = ("digits", *_MLBENCH)


class UnavailableError(Exception):
    """A set is not available on this machine. The message states the reason and the remedy."""


@dataclass(frozen=True)
class Classes:
    """A classification set.

    Attributes:
        name: Name of the set.
        rows: `[n, d]` features.
        label: `[n]` classes, 0 to K - 1.
    """

    name: str
    rows: npt.NDArray[np.float32]
    label: npt.NDArray[np.int64]

    @property
    def k(self) -> int:
        """Number of classes."""
        return int(self.label.max()) + 1


def load(name: str) -> Classes:
    """Load a set.

    Raises:
        UnavailableError: The set is not on this machine and cannot be downloaded.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return Classes(name, digits.data.astype(np.float32), digits.target.astype(np.int64))
    return _mlbench(name, *_MLBENCH[name])


def _mlbench(name: str, table: str, column: str) -> Classes:
    import rdata

    path = FOLDER / f"mlbench/usr/lib/R/site-library/mlbench/data/{table}.rda"
    if not path.exists():
        _download()
    with warnings.catch_warnings():
        # Files of R before 3.5 do not state their encoding, of which the reader warns.
        warnings.simplefilter("ignore")
        frame = next(iter(rdata.read_rda(path).values()))
    label = frame[column].cat.codes.to_numpy().astype(np.int64)
    rows = np.column_stack(
        [frame[other].astype(str).astype(np.float32) for other in frame if other != column]
    )
    return Classes(name, rows, label)


def _download() -> None:
    """Download and unpack Debian's package. Nothing is installed."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise UnavailableError(f"needs {' and '.join(missing)} (Debian, Ubuntu) to fetch {_PACKAGE}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        _run("apt-get", "download", _PACKAGE)
        newest = max(FOLDER.glob(f"{_PACKAGE}_*.deb"), key=lambda path: path.stat().st_mtime)
        _run("dpkg-deb", "-x", str(newest), "mlbench")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise UnavailableError(
            f"{_PACKAGE} cannot be downloaded ({said[-1] if said else error}); connect to a Debian archive,"
            f" run `apt-get update`, or put the .deb's files into {FOLDER}/mlbench"
        ) from error


def _run(*command: str) -> None:
    subprocess.run(command, cwd=FOLDER, check=True, capture_output=True, timeout=120)


def available(names: tuple[str, ...] = NAMES) -> tuple[list[Classes], dict[str, str]]:
    """Load the sets. Return those that are available, and the reason for each of the others."""
    found, lost = [], {}
    for name in names:
        try:
            found.append(load(name))
        except UnavailableError as error:
            lost[name] = str(error)
    return found, lost


def sampled(classes: Classes, rows: int, seed: int) -> Classes:
    """Return at most `rows` rows of the set, in an order that the seed determines."""
    order = np.random.default_rng([seed, 7]).permutation(len(classes.rows))[:rows]
    return Classes(classes.name, classes.rows[order], classes.label[order])


__all__ = ["FOLDER", "NAMES", "Classes", "UnavailableError", "available", "load", "sampled"]
