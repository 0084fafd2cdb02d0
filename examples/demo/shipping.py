"""Test a model through the platform with three commands, from a model file to a finished report.

The demo prints each command and its output. Meanwhile it sends payments, which the TEST observes.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape

from examples.demo.errors import DemoError
from examples.demo.output import Output
from examples.demo.plan import DemoPlan, Paths
from examples.demo.process import (
    Addresses,
    PlatformProcess,
    command_line,
    environment,
    run_command,
    run_quietly,
)
from examples.demo.traffic import FRAUD
from examples.fraud.features import FEATURES
from examples.fraud.training import FraudModel, FraudPlan, fraud_columns, train_fraud
from examples.fraud.transactions import Transactions
from scorer.client import Client

PROJECT = "fraud"
USER = "demo"
# `change test --watch` ends with 0, 1 or 3 by the verdict of the TEST.
VERDICT_CODES = (0, 1, 3)


@dataclass(frozen=True)
class Shipped:
    """The finished TEST.

    Attributes:
        change: id of the change request.
        verdict: verdict of all gates.
        seconds: time from the model file to the finished report.
        rows: number of observations of the verdict.
        payments: number of payments answered meanwhile.
    """

    change: str
    verdict: str
    seconds: float
    rows: int
    payments: int

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        return asdict(self) | {"seconds": round(self.seconds, 1)}


def set_up(paths: Paths, addresses: Addresses, alias: str) -> str:
    """Write the platform's settings, and create its database with a first user and a project.

    Args:
        paths: files of the run.
        addresses: addresses of the demo's server and of the pages.
        alias: alias of `fraud.checkout`.

    Returns:
        The token of the user.

    Raises:
        DemoError: a command failed.
    """
    (paths.output / "platform").mkdir(exist_ok=True)
    lines = [
        "# Written by the demo; `scorer platform config` prints every key.",
        "[platform]",
        f'listen = "{addresses.pages}"',
        'database = "platform/platform.sqlite"',
        'data_dir = "platform"',
        'registry = "registry"',
        "",
        "[[fleet]]",
        'name = "checkout"',
        f'control = "{addresses.control}"',
        'log = "decisions"',
        "",
        f'[checkpoints."{FRAUD}"]',
        f'alias = "{alias}"',
        "# A demo's TEST is short: the shadow observes every payment.",
        "sample = 1.0",
    ]
    paths.platform_settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = ("--config", str(paths.platform_settings))
    token = str(run_command("platform", "init", "--user", USER, *config)["secret"])
    run_quietly("platform", "project", "create", PROJECT, "--title", "Fraud at checkout", *config)
    return token


def ship(
    paths: Paths,
    plan: DemoPlan,
    output: Output,
    token: str,
    client: Client,
    model: FraudModel,
    held_out: tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]],
    stream: npt.NDArray[np.float32],
) -> Shipped:
    """Run the platform and the three commands while payments are scored.

    Args:
        paths: files of the run.
        plan: sizes of the run.
        output: destination of the printed lines.
        token: token of the user.
        client: client of the server.
        model: new model.
        held_out: `[n, 15]` features that calibrate it, and `[n]` whether each row is a fraud.
        stream: `[m, 15]` features of the payments meanwhile, repeated as needed.

    Raises:
        DemoError: a command failed or a payment was not answered.
    """
    folder = paths.output / "fraud-v3"
    _write_model(folder, model, *held_out)
    bundle, page = paths.bundles / "fraud-v3", paths.output / "readout.html"
    with PlatformProcess(paths.platform_settings, paths.output / "platform.log") as platform:
        began = time.perf_counter()
        env = environment(SCORER_PLATFORM_URL=platform.url, SCORER_PLATFORM_TOKEN=token)
        _show(output, env, "bundle", "build", str(folder / "bundle.toml"), "-o", str(bundle))
        with _payments(client, stream, plan.shadow_rate) as paid:
            lines = _show(
                output,
                env,
                *("change", "test", str(bundle), "--checkpoint", FRAUD, "--project", PROJECT),
                *("--minutes", f"{plan.shadow_minutes:g}", "--watch"),
                codes=VERDICT_CODES,
            )
            change = _change_of(lines)
            _show(output, env, "change", "readout", change, "-o", str(page))
        seconds = time.perf_counter() - began
        report = json.loads(run_quietly("change", "readout", change, "--json", codes=VERDICT_CODES, env=env))
    shipped = Shipped(change, str(report["verdict"]), seconds, int(report["rows"]), paid())
    output.line(
        f"[bold]{shipped.verdict}[/] on {shipped.rows:,} observations, {shipped.payments:,} payments"
        f" meanwhile: {seconds:.0f} s from the model file to the finished report"
    )
    return shipped


def train(
    transactions: Transactions, rows: npt.NDArray[np.float32], before: FraudModel, plan: DemoPlan, seed: int
) -> FraudModel:
    """Train the model to test, with fewer trees on the same days."""
    smaller = FraudPlan(trees=plan.trees * 3 // 5, depth=plan.depth, learning_rate=0.08, seed=seed + 1)
    return train_fraud(transactions, rows, before.split, smaller, data_digest=before.data_digest)


def _write_model(
    folder: Path, model: FraudModel, rows: npt.NDArray[np.float32], labels: npt.NDArray[np.bool_]
) -> None:
    """Write the input of a bundle: a model file, two tables, and a bundle.toml that describes them."""
    folder.mkdir(parents=True)
    model.booster.save_model(folder / "model.ubj")
    _write_table(folder / "training.parquet", model.training_rows)
    _write_table(folder / "held-out.parquet", rows, fraud=labels)
    lines = [
        "[bundle]",
        'name = "fraud-checkout"',
        'kind = "score"',
        'model = "model.ubj"',
        "",
        "[data]",
        'training = "training.parquet"',
        'validation = "held-out.parquet"',
        "",
        "[calibration]",
        'method = "isotonic"',
        'label = "fraud"',
    ]
    for column in fraud_columns():
        lines += ["", "[[features]]", f'name = "{column.name}"', f'type = "{column.type}"']
        if column.minimum is not None:
            lines += [f"minimum = {column.minimum!r}", f"maximum = {column.maximum!r}"]
    for start, label in model.thresholds:
        lines += ["", "[[thresholds]]", f"from = {start!r}", f'label = "{label}"']
    (folder / "bundle.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _show(output: Output, env: dict[str, str], *words: str, codes: tuple[int, ...] = (0,)) -> list[str]:
    """Print a command and its output line by line, and return the lines."""
    output.command("scorer", *map(_short, words))
    process = subprocess.Popen(  # noqa: S603
        command_line(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    lines: list[str] = []
    with process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if lines[-1]:
                output.line(f"  [dim]{escape(lines[-1])}[/]")
    if process.returncode not in codes:
        reason = lines[-1] if lines else "no reason given"
        raise DemoError(f"scorer {words[0]} {words[1]} failed: {reason}")
    return lines


@contextmanager
def _payments(client: Client, stream: npt.NDArray[np.float32], rate: float) -> Iterator[Callable[[], int]]:
    """Score payments at a steady rate from two threads until the block ends; yield their number so far."""
    stop, lock = threading.Event(), threading.Lock()
    done = 0
    failures: list[Exception] = []
    threads = 2

    def pay(first: int) -> None:
        nonlocal done
        at, due = first, time.monotonic()
        while not stop.is_set():
            try:
                client.score(FRAUD, stream[at % len(stream)])
            except Exception as error:
                failures.append(error)
                return
            with lock:
                done += 1
            at += threads
            due += threads / rate
            stop.wait(max(0.0, due - time.monotonic()))

    running = [threading.Thread(target=pay, args=(first,), daemon=True) for first in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield lambda: done
    finally:
        stop.set()
        for thread in running:
            thread.join()
    if failures:
        raise DemoError(f"a payment was not answered: {failures[0]}")


def _write_table(path: Path, rows: npt.NDArray[np.float32], **more: npt.NDArray[np.bool_]) -> None:
    columns: dict[str, Any] = {name: rows[:, at] for at, name in enumerate(FEATURES)}
    columns |= {name: values.astype(np.int8) for name, values in more.items()}
    pq.write_table(pa.table(columns), path)


def _change_of(lines: list[str]) -> str:
    for line in lines:
        if number := re.search(r"cr-\d+", line):
            return number[0]
    raise DemoError("`scorer change test` printed no id of a change request")


def _short(word: str) -> str:
    """Shorten an absolute path to its last two parts."""
    return "/".join(Path(word).parts[-2:]) if word.startswith("/") else word
