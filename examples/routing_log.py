"""A log of card payment attempts over several payment service providers: reading and evaluation.

The provider is the action. The log holds no propensities. The choice of the provider
is consistent with a random one given whether the attempt is a retry, so the shares
given that are used as propensities. The result is therefore an off-policy estimate
and is labelled as one.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from examples.columns import column
from examples.oracle import LoggedChoices
from scorer.bundle import Action, Feature
from scorer.learn.errors import DataError
from scorer.learn.oracle import OracleTask

COLUMNS = ("tmsp", "country", "amount", "success", "PSP", "3D_secured", "card")
# An attempt that repeats country, amount, card and 3DS within this long is a retry.
RETRY_SECONDS = 60
FEWEST_ROWS = 500

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RoutingLog:
    """Payment attempts in order of time.

    Attributes:
        context: `[n, 7]` in the order of `columns`.
        provider: `[n]` position in `providers`.
        success: `[n]` 1 where the attempt succeeded.
        is_retry: `[n]` 1 where the attempt repeats an equal one within a minute.
        purchase: `[n]` attempts with the same number belong to one purchase.
        columns: Columns of the context.
        providers: Names of the providers, sorted.
        digest: `sha256:<hex>` of the file.
    """

    context: npt.NDArray[np.float32]
    provider: Ints
    success: Ints
    is_retry: Ints
    purchase: Ints
    columns: tuple[Feature, ...]
    providers: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.provider)

    def choices(self, rows: slice) -> LoggedChoices:
        """Return the attempts at `rows` as logged choices."""
        return LoggedChoices(self.context[rows], self.provider[rows], self.success[rows])

    def task(self, name: str) -> OracleTask:
        """Return the task of choosing a provider."""
        return OracleTask(
            name=name,
            context=self.columns,
            action=(column("action_provider", "category", self.providers),),
            actions=tuple(
                Action(id=f"provider={provider}", factors={"provider": provider}, features=[float(code)])
                for code, provider in enumerate(self.providers)
            ),
        )


def read_routing(path: Path) -> RoutingLog:
    """Read a CSV file of payment attempts.

    Raises:
        DataError: the file cannot be read, lacks a column, or holds a value
            that its column does not allow.
    """
    if not path.is_file():
        raise DataError(f"routing {path}: no such file; give a CSV file, or leave --routing out")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"routing {path}: column {', '.join(missing)} is missing; needed are {', '.join(COLUMNS)}"
                )
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"routing {path}: not a readable CSV file ({error})") from error
    if len(rows) < FEWEST_ROWS:
        raise DataError(f"routing {path}: {len(rows)} rows; at least {FEWEST_ROWS} are needed to learn from")
    return _from_rows(rows, path)


def _from_rows(rows: list[dict[str, str]], path: Path) -> RoutingLog:
    def fail(line: int, column: str, rule: str) -> DataError:
        return DataError(f'routing {path}: line {line + 2}: {column} "{rows[line][column]}" is not {rule}')

    times, amounts = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
    flags = {name: np.empty(len(rows), dtype=np.int64) for name in ("success", "3D_secured")}
    hours, weekdays = np.empty(len(rows)), np.empty(len(rows))
    for line, row in enumerate(rows):
        try:
            moment = datetime.fromisoformat(row["tmsp"])
        except (ValueError, TypeError):
            raise fail(line, "tmsp", "a date and time, YYYY-MM-DD HH:MM:SS") from None
        # Seconds as if the clock were UTC: only differences and hours matter.
        times[line] = int((moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds())
        hours[line], weekdays[line] = moment.hour, moment.weekday()
        try:
            amounts[line] = float(row["amount"])
        except (ValueError, TypeError):
            raise fail(line, "amount", "a number") from None
        if not 0 <= amounts[line] < 1e7:
            raise fail(line, "amount", "between 0 and 10000000")
        for name, flag in flags.items():
            if row[name] not in {"0", "1"}:
                raise fail(line, name, "0 or 1")
            flag[line] = int(row[name])
        for name in ("country", "PSP", "card"):
            if not row[name]:
                raise fail(line, name, "a name")

    order = np.argsort(times, kind="stable")
    text = {name: np.array([rows[line][name] for line in order]) for name in ("country", "PSP", "card")}
    dictionaries, codes = {}, {}
    for name, values in text.items():
        dictionaries[name], codes[name] = np.unique(values, return_inverse=True)
    times, amounts = times[order], amounts[order]
    secured, success = flags["3D_secured"][order], flags["success"][order]
    is_retry, purchase = _retries(times, np.stack([codes["country"], amounts, codes["card"], secured]))
    countries, providers, cards = (tuple(str(v) for v in dictionaries[n]) for n in ("country", "PSP", "card"))
    if len(providers) < 2:
        raise DataError(f"routing {path}: one provider only; there is nothing to choose")
    columns = (
        column("amount", minimum=0.0, maximum=1e7),
        column("hour", minimum=0.0, maximum=23.0),
        column("weekday", minimum=0.0, maximum=6.0),
        column("country", "category", countries),
        column("card", "category", cards),
        column("three_d_secured", "flag"),
        column("is_retry", "flag"),
    )
    context = np.column_stack(
        [amounts, hours[order], weekdays[order], codes["country"], codes["card"], secured, is_retry]
    ).astype(np.float32)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return RoutingLog(
        context=context,
        provider=codes["PSP"].astype(np.int64),
        success=success,
        is_retry=is_retry,
        purchase=purchase,
        columns=columns,
        providers=providers,
        digest=f"sha256:{digest}",
    )


def _retries(times: Ints, same: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Whether each attempt follows one of the same kind within a minute, and the purchase it belongs to."""
    _, kind = np.unique(same, axis=1, return_inverse=True)
    order = np.lexsort((np.arange(len(times)), times, kind.ravel()))
    by_kind, by_time = kind.ravel()[order], times[order]
    follows = np.zeros(len(times), dtype=bool)
    follows[1:] = (by_kind[1:] == by_kind[:-1]) & (by_time[1:] - by_time[:-1] <= RETRY_SECONDS)
    is_retry, purchase = np.empty(len(times), dtype=np.int64), np.empty(len(times), dtype=np.int64)
    is_retry[order] = follows
    purchase[order] = np.cumsum(~follows) - 1
    return is_retry, purchase
