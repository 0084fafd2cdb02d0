"""A data scientist ships a model alone: from a model file to a finished shadow read-out, by three commands.

The commands are the ones that anybody would type; the demo shows each and what it says. Payments run
meanwhile, and the shadow is fed with all of them.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from examples.demo.errors import DemoError
from examples.demo.narrate import Narrator
from examples.demo.plan import DemoPlan, Places
from examples.demo.process import PlatformProcess, command_line, environment
from examples.demo.traffic import FRAUD
from examples.fraud.features import FEATURES
from examples.fraud.training import FraudModel, FraudPlan, fraud_columns, train_fraud
from examples.fraud.transactions import Transactions
from scorer.client import Client

PROJECT = "fraud"
PERSON = "demo"


@dataclass(frozen=True)
class Shipped:
    """What came of it.

    Attributes:
        change: the change request.
        verdict: what its gates said together.
        seconds: from the model file to the finished read-out.
        rows: observations that it rests on.
        payments: answered meanwhile.
        token: what one signs in to the pages with.
    """

    change: str
    verdict: str
    seconds: float
    rows: int
    payments: int
    token: str

    def as_dict(self) -> dict[str, Any]:
        """For summary.json; secrets are not."""
        return {
            "change": self.change,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "rows": self.rows,
            "payments": self.payments,
        }


class Shipping:
    """Ships one fraud model to the demo's server.

    Args:
        places: where everything is.
        plan: how large.
        narrator: who is told.
    """

    def __init__(self, places: Places, plan: DemoPlan, narrator: Narrator) -> None:
        self._places, self._plan, self._narrator = places, plan, narrator
        self._folder = places.output / "fraud-v3"

    def run(
        self,
        platform: PlatformProcess,
        token: str,
        client: Client,
        model: FraudModel,
        rows: npt.NDArray[np.float32],
        labels: npt.NDArray[np.bool_],
        stream: npt.NDArray[np.float32],
    ) -> Shipped:
        """The three commands, with payments running.

        Args:
            platform: running.
            token: of who does it.
            client: to the server.
            model: what was trained.
            rows: `[n, 15]` that calibrate it.
            labels: `[n]` which of them were frauds.
            stream: `[m, 15]` of the payments meanwhile, again and again.
        """
        self._write_model(model, rows, labels)
        began = time.perf_counter()
        who = environment(SCORER_PLATFORM_URL=platform.url, SCORER_PLATFORM_TOKEN=token)
        bundle = self._places.bundles / "fraud-v3"
        self._command(who, "bundle", "build", str(self._folder / "bundle.toml"), "-o", str(bundle))
        with _payments(client, stream, self._plan.shadow_rate) as paid:
            said = self._command(
                who,
                *("change", "test", str(bundle), "--checkpoint", FRAUD, "--project", PROJECT),
                *("--minutes", f"{self._plan.shadow_minutes:g}", "--watch"),
                codes=(0, 1, 3),
            )
            change = _change_of(said)
            page = self._places.output / "readout.html"
            self._command(who, "change", "readout", change, "-o", str(page))
        seconds = time.perf_counter() - began
        found = json.loads(self._run(who, "change", "readout", change, "--json"))
        verdict, observed = str(found["verdict"]), int(found["rows"])
        self._narrator.say(
            f"[bold]{verdict}[/] on {observed:,} observations, {paid():,} payments meanwhile:"
            f" {seconds:.0f} s from the model file to the finished read-out"
        )
        return Shipped(change, verdict, seconds, observed, paid(), token)

    def _write_model(
        self, model: FraudModel, rows: npt.NDArray[np.float32], labels: npt.NDArray[np.bool_]
    ) -> None:
        """What a data scientist has: a model file, two tables, and a page that says what is what."""
        self._folder.mkdir(parents=True)
        model.booster.save_model(self._folder / "model.ubj")
        _write_table(self._folder / "training.parquet", model.training_rows)
        _write_table(self._folder / "held-out.parquet", rows, fraud=labels)
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
        (self._folder / "bundle.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _command(self, who: dict[str, str], *words: str, codes: tuple[int, ...] = (0,)) -> list[str]:
        """Shows a command and what it says, line by line as it comes."""
        self._narrator.say(f"[bold]$ scorer {' '.join(map(_short, words))}[/]")
        process = subprocess.Popen(  # noqa: S603
            command_line(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=who
        )
        said = []
        with process:
            for line in process.stdout or ():
                said.append(line.rstrip())
                self._narrator.say(f"  [dim]{_plain(said[-1])}[/]")
        if process.returncode not in codes:
            raise DemoError(f"scorer {words[0]} {words[1]} failed: {said[-1] if said else 'no reason given'}")
        return said

    @staticmethod
    def _run(who: dict[str, str], *words: str) -> str:
        done = subprocess.run(  # noqa: S603
            command_line(*words), capture_output=True, text=True, check=False, env=who
        )
        if done.returncode not in (0, 1, 3):
            raise DemoError(f"scorer {' '.join(words)} failed: {done.stderr.strip()}")
        return done.stdout


def train(
    transactions: Transactions, rows: npt.NDArray[np.float32], before: FraudModel, plan: DemoPlan, seed: int
) -> FraudModel:
    """What the data scientist wants to ship: fewer trees, as good."""
    smaller = FraudPlan(trees=plan.trees * 3 // 5, depth=plan.depth, learning_rate=0.08, seed=seed + 1)
    return train_fraud(transactions, rows, before.split, smaller, data_digest=before.data_digest)


def free_address() -> str:
    """An address that nobody listens on now: the pages keep it over the demo's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def write_settings(places: Places, control: str, alias: str, listen: str) -> None:
    """Writes the platform's settings.

    Args:
        places: where.
        control: of the server, whose port the system chose.
        alias: that releases move.
        listen: where the pages are to be.
    """
    (places.output / "platform").mkdir(exist_ok=True)
    places.platform_settings.write_text(
        "\n".join(
            [
                "# Written by the demo; `scorer platform config` prints every key.",
                "[platform]",
                f'listen = "{listen}"',
                'database = "platform/platform.sqlite"',
                'data_dir = "platform"',
                'registry = "registry"',
                "",
                "[[fleet]]",
                'name = "checkout"',
                f'control = "{control}"',
                'log = "decisions"',
                "",
                f'[checkpoints."{FRAUD}"]',
                f'alias = "{alias}"',
                "# A demo's day is short: the shadow sees every payment.",
                "sample = 1.0",
            ]
        )
        + "\n",
        encoding="utf-8",
    )


@contextmanager
def _payments(client: Client, stream: npt.NDArray[np.float32], rate: float) -> Iterator[Callable[[], int]]:
    """Payments at a steady rate from two threads, until the end; yields how many so far."""
    stop, lock = threading.Event(), threading.Lock()
    done, failed = 0, []
    threads = 2

    def pay(first: int) -> None:
        nonlocal done
        at, due = first, time.monotonic()
        while not stop.is_set():
            try:
                client.score(FRAUD, stream[at % len(stream)])
            except Exception as error:
                failed.append(error)
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
    if failed:
        raise DemoError(f"a payment was not answered: {failed[0]}")


def _write_table(path: Path, rows: npt.NDArray[np.float32], **more: npt.NDArray[np.bool_]) -> None:
    columns: dict[str, Any] = {name: rows[:, at] for at, name in enumerate(FEATURES)}
    columns |= {name: values.astype(np.int8) for name, values in more.items()}
    pq.write_table(pa.table(columns), path)


def _change_of(said: list[str]) -> str:
    for line in said:
        if found := re.search(r"cr-\d+", line):
            return found[0]
    raise DemoError("the change request's number was not said")


def _short(word: str) -> str:
    """A path as its last parts."""
    return "/".join(Path(word).parts[-2:]) if word.startswith("/") else word


def _plain(text: str) -> str:
    """As it is: what looks like markup is none."""
    return text.replace("[", r"\[")
