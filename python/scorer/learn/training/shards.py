"""The part of a training that workers do on other machines: they read row groups of the experience.

The driver writes the weights of all rows into one file of the working directory, 0 for the rows that a
training leaves out, and the forest that predicts into another. Workers map the file of weights into memory.
Row groups' places and predicted margins pass through the driver; contexts do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import xgboost

from scorer.learn.decisions import DecisionRows
from scorer.learn.errors import DataError
from scorer.learn.experience import State
from scorer.learn.experience_store import RowGroup, StoredExperience, StoredFiles, opened
from scorer.learn.oracle import OracleTask
from scorer.learn.training.boosting import exploded, margins
from scorer.learn.training.trainers import page_rows
from scorer.stats.arrays import Floats, Ints, Rows32

FOREST = "forest.ubj"
_WEIGHTS = "weights.npy"


@dataclass(frozen=True)
class Shards:
    """What every worker needs to know of a training; it is sent to all of them.

    Attributes:
        task: what the columns are.
        folder: directory of this training, at the same path on every machine.
        rows: number of all rows of the files.
    """

    task: OracleTask
    folder: Path
    rows: int

    def weights(self) -> Floats:
        """Return the weights of all rows, `[rows]`, mapped from the file."""
        mapped: Floats = np.load(self.folder / _WEIGHTS, mmap_mode="r")
        return mapped

    def forest(self) -> xgboost.Booster:
        """Return the forest that predicts."""
        return xgboost.Booster(model_file=self.folder / FOREST)


@dataclass(frozen=True)
class ShardBlock:
    """Rows that a worker has read, of those that a training uses.

    Attributes:
        row: `[n]` their numbers among all rows.
        features: `[n, context and action columns]`.
        reward: `[n]`.
        weight: `[n]`.
    """

    row: Ints
    features: Rows32
    reward: Floats
    weight: Floats


@contextmanager
def shards_of(
    task: OracleTask,
    decisions: DecisionRows,
    weights: Floats,
    work: Path,
    forest: xgboost.Booster | None = None,
) -> Iterator[tuple[Shards, tuple[RowGroup, ...]]]:
    """Write what workers read, and provide it with the row groups that have a decision.

    Args:
        task: what the columns are.
        decisions: `n` decisions of files.
        weights: `[n]`, above 0.
        work: directory that all machines share.
        forest: predicts.

    Raises:
        DataError: the decisions are not in files.
    """
    if not isinstance(decisions, StoredExperience):
        raise DataError(f"{task.name}: Spark and Ray read decisions from files; give their path")
    stored = decisions.stored
    with TemporaryDirectory(prefix="pages-", dir=work) as folder:
        place = Path(folder).absolute()
        # Workers may run as other users.
        place.chmod(0o755)
        whole = np.zeros(stored.rows)
        whole[decisions.row] = weights
        np.save(place / _WEIGHTS, whole)
        if forest is not None:
            forest.save_model(place / FOREST)
        yield Shards(task, place, stored.rows), used_groups(stored, decisions.row)


def used_groups(stored: StoredFiles, rows: Ints) -> tuple[RowGroup, ...]:
    """Return the row groups that have one of the rows, which ascend, with absolute paths."""
    bounds = [np.searchsorted(rows, (group.first, group.first + group.rows)) for group in stored.groups]
    return tuple(
        RowGroup(group.file.absolute(), group.group, group.first, group.rows)
        for group, (begin, end) in zip(stored.groups, bounds, strict=True)
        if end > begin
    )


def read_shards(shards: Shards, groups: Sequence[RowGroup]) -> Iterator[ShardBlock]:
    """Read the used rows of some row groups, in blocks."""
    weights = shards.weights()
    for group in groups:
        chosen = group.first + np.flatnonzero(weights[group.first : group.first + group.rows])
        for block in _group(shards.task, group, chosen).blocks(page_rows(shards.task)):
            row = chosen[: len(block)]
            chosen = chosen[len(block) :]
            yield ShardBlock(
                row=row,
                features=exploded(shards.task, block),
                reward=block.reward,
                weight=np.asarray(weights[row]),
            )


def predict_shards(shards: Shards, groups: Sequence[RowGroup]) -> Iterator[tuple[Ints, Floats]]:
    """Yield row numbers and the margins of the forest for the used rows of some row groups."""
    forest = shards.forest()
    for block in read_shards(shards, groups):
        yield block.row, margins(shards.task, forest, block.features)


def _group(task: OracleTask, group: RowGroup, chosen: Ints) -> StoredExperience:
    """Open the chosen rows of one row group."""
    with opened(group.file) as file:
        table = file.read_row_group(group.group, columns=["action", "reward"])
    at = chosen - group.first
    columns = {name: table[name].to_numpy()[at] for name in table.column_names}
    stored = StoredFiles(
        (group.file,),
        (group,),
        len(task.context),
        tuple(action.id for action in task.actions),
        (),
    )
    nothing = np.zeros(len(chosen), np.int64)
    return StoredExperience(
        stored=stored,
        row=chosen,
        time_ms=nothing,
        settled_ms=nothing,
        state=np.full(len(chosen), State.SETTLED, np.int8),
        eligible_count=nothing,
        took_eligible=np.ones(len(chosen), np.bool_),
        propensity=np.ones(len(chosen)),
        **columns,
    )
