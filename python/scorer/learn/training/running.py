"""Opens an experience and selects the trainer, by the settings."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scorer.learn.decisions import DecisionRows
from scorer.learn.errors import DataError
from scorer.learn.experience_store import StoredExperience, open_stored
from scorer.learn.oracle import OracleTask
from scorer.learn.training.resuming import ResumingTrainer
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.trainers import DiskTrainer, MemoryTrainer, OnTree, Trainer

FORESTS = "forests"
_LOCK = "lock"
_PACKAGES = {"spark": ("pyspark", "train,spark"), "ray": ("ray.train.xgboost", "train,ray")}


def open_experience(path: Path, plan: TrainSettings) -> DecisionRows:
    """Open an experience: in memory, or in its files where the settings leave it there.

    Args:
        path: a Parquet file, or a directory of them.
        plan: the settings.

    Raises:
        DataError: it cannot be read, or does not fit in memory.
    """
    if plan.reads_files:
        return open_stored(path)
    from scorer.learn.experience import concatenate
    from scorer.learn.experience_files import files_of, read

    parts = [read(file) for file in files_of(path)]
    return parts[0] if len(parts) == 1 else concatenate(parts)


@contextmanager
def trainer_of(
    task: OracleTask,
    plan: TrainSettings,
    experience: DecisionRows,
    work: Path,
    data_digest: str,
    on_tree: OnTree | None = None,
) -> Iterator[Trainer]:
    """Provide the trainer of the settings.

    A trainer that leaves decisions in files keeps finished forests in `work`, from which the same training
    continues after an interruption. They are removed when the block ends without an error.

    Args:
        task: what the columns are.
        plan: the settings.
        experience: the decisions, of `open_experience`.
        work: directory for pages and forests; for Spark and Ray at the same path on every machine.
        data_digest: of the experience.
        on_tree: receives the progress within a training, where it is in this process.

    Raises:
        DataError: a package is missing, or another process uses `work`.
    """
    if not isinstance(experience, StoredExperience):
        yield MemoryTrainer(task, plan, on_tree)
        return
    require_packages(plan)
    with _locked(work):
        for left in work.glob("pages-*"):
            # Of a process that was killed.
            shutil.rmtree(left)
        (work / FORESTS).mkdir(exist_ok=True)
        with _engine(task, plan, work, on_tree) as trainer:
            yield ResumingTrainer(trainer, plan, data_digest, work / FORESTS)
        shutil.rmtree(work / FORESTS)
        (work / _LOCK).unlink()
        # A directory of the user may have other files.
        with suppress(OSError):
            work.rmdir()


@contextmanager
def _engine(task: OracleTask, plan: TrainSettings, work: Path, on_tree: OnTree | None) -> Iterator[Trainer]:
    if plan.engine == "spark":
        from scorer.learn.training.spark import spark_trainer

        with spark_trainer(task, plan, work) as spark:
            yield spark
    elif plan.engine == "ray":
        from scorer.learn.training.ray import ray_trainer

        with ray_trainer(task, plan, work) as ray:
            yield ray
    else:
        yield DiskTrainer(task, plan, work, on_tree)


def require_packages(plan: TrainSettings) -> None:
    """Check that the packages of the engine are installed.

    Raises:
        DataError: one is not; the message has the command that installs it.
    """
    if plan.engine == "local":
        return
    module, extra = _PACKAGES[plan.engine]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f'[train] engine = "{plan.engine}" needs the package "{error.name or module}"; '
            f'pip install "scorer[{extra}]", here and on the workers'
        ) from None


@contextmanager
def enough_memory(plan: TrainSettings) -> Iterator[None]:
    """Replace the errors of an allocation that failed by one that names the setting.

    Raises:
        DataError: memory was not sufficient.
    """
    import xgboost

    try:
        yield
    except (MemoryError, xgboost.core.XGBoostError) as error:
        if not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
            raise
        remedy = (
            "give the process more memory"
            if plan.reads_files
            else 'set [train] storage = "disk", which leaves the decisions in their files'
        )
        raise DataError(f"training: the memory of this process is not sufficient; {remedy}") from error


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataError(f"training directory {work}: it cannot be used ({error.strerror})") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(
                f"training directory {work}: another process uses it; wait for that process, or give another "
                "with --work"
            ) from None
        yield
    finally:
        os.close(lock)
