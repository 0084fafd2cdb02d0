"""The core of batch scoring: a record batch of rows in, a record batch of results out."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.batch.encoding import ColumnEncoder, Columns32, Problems, find_column, is_text, text_buffers
from scorer.bundle.check import read_schema, verify
from scorer.bundle.loaded import MAX_REASONS, Bundle, RowReasons, RowRules, RuleTime
from scorer.errors import BatchError

PROBLEM: Final = "problem"
"""Column with the reason why a row was refused."""
_IDS: Final = r"^[ -~]{1,80}$"
"""The server's rule for the id of a decision."""
_SCORES: Final = ("margin", "score", "decision")
_NONE: Final = np.iinfo(np.uint32).max
_RULED: Final = ("ruled_score", "queue", "rules")
_FAULTED: Final = "faulted_functions"
_SELECTIONS: Final = ("action", "propensity", "expected_reward")


@dataclass(frozen=True)
class BatchColumns:
    """The columns of a batch's input that have a role, and what is returned.

    Attributes:
        keep: Columns that are copied to the output, in this order.
        id: Column with the decision's id. An action bundle needs it for the draw, and a rule for a roll-out
            to a share of the requests.
        checkpoint: Name of the checkpoint. An action bundle needs it for the draw.
        eligible: Column with the eligible actions of a row: a list with their ids, or a list of booleans in
            the order of the catalogue. Null, or no such column: every action.
        pmf: Whether the probabilities of all actions, and the actions that rules allow, are returned.
        reasons: Number of reasons of each row, at most 32: the features with the largest path attributions.
        at: Time in seconds since 1970 that the rules of the bundle see; None for the time when the run or
            the scorer starts.
        bad_rows: ``fail``: a row that a server would refuse is an error. ``null``: its results are null, and
            the column `problem` has the reason.
    """

    keep: tuple[str, ...] = ()
    id: str | None = None
    checkpoint: str | None = None
    eligible: str | None = None
    pmf: bool = False
    reasons: int = 0
    at: int | None = None
    bad_rows: Literal["fail", "null"] = "fail"


class BatchScorer:
    """A bundle with everything that scoring a record batch needs. It is safe to use from several threads.

    Args:
        bundle: The bundle.
        directory: The bundle's directory.
        columns: The columns that are read and returned.

    Raises:
        BatchError: The columns do not suit the kind of the bundle, or its rules read external lists.
    """

    def __init__(self, bundle: Bundle, directory: str | PathLike[str], columns: BatchColumns) -> None:
        self.bundle = bundle
        self.columns = columns
        self.at: int = int(time.time()) if columns.at is None else columns.at
        """Time in seconds since 1970 that the rules see."""
        self.joins_lists = False
        """Whether ids of rules and names of functions are one text per row, joined with semicolons, and not a
        list."""
        self._rules = () if bundle.rules is None else bundle.rules.rules
        _check_lists(bundle)
        self.encoder = ColumnEncoder(read_schema(directory).features)
        _check_options(bundle, columns)
        results: tuple[str, ...] = _SCORES
        if bundle.kind == "action":
            results = (*_SELECTIONS, "pmf") if columns.pmf else _SELECTIONS
        if bundle.rules is not None:
            results += (
                _RULED if bundle.kind == "score" else ("allowed", "rules") if columns.pmf else ("rules",)
            )
        if bundle.functions:
            results += (_FAULTED,)
        results += tuple(name for number in range(columns.reasons) for name in _reason_names(number))
        self._results = (*results, PROBLEM) if columns.bad_rows == "null" else results
        for name in columns.keep:
            if name in self._results or columns.keep.count(name) > 1:
                raise BatchError(
                    f'column "{name}": the output has a column of this name already; rename the one to keep, '
                    "for example with --sql and SELECT .. AS"
                )
        self._labels = pa.array(bundle.labels, pa.string())
        self._actions = pa.array(bundle.actions, pa.string())
        self._codes = pa.array(bundle.reason_codes, pa.string())
        self._columns = pa.array(bundle.columns, pa.string())
        self._functions = pa.array(bundle.functions, pa.string())
        self._rule_ids = pa.array([rule.id for rule in self._rules], pa.string())
        self._queues = pa.array([rule.queue for rule in self._rules], pa.string())

    @classmethod
    def load(cls, path: str | PathLike[str], columns: BatchColumns | None = None) -> BatchScorer:
        """Read and verify a bundle.

        Args:
            path: The bundle's directory.
            columns: The columns that are read and returned; None for the scores alone.

        Raises:
            BundleError: The bundle is not valid.
            BatchError: The columns do not suit the kind of the bundle.
        """
        return cls(verify(path), path, columns or BatchColumns())

    def for_run(self, at: int, *, joins_lists: bool) -> BatchScorer:
        """Return this scorer with the time of a run and the form of lists that its output can hold.

        Args:
            at: Time in seconds since 1970 that the rules see.
            joins_lists: Whether ids of rules and names of functions are one text per row.
        """
        scorer = copy.copy(self)
        scorer.at, scorer.joins_lists = at, joins_lists
        return scorer

    def columns_at(self, at: int) -> BatchColumns:
        """Return the columns for workers that score rows at the same time.

        Args:
            at: Time in seconds since 1970 that the rules see.
        """
        return replace(self.columns, at=at) if self._rules else self.columns

    @property
    def inputs(self) -> list[str]:
        """Names of the columns that are read, without repetitions."""
        roles = [name for name in (self.columns.id, self.columns.eligible) if name is not None]
        return list(dict.fromkeys([*self.encoder.names, *roles, *self.columns.keep]))

    @property
    def row_bytes(self) -> int:
        """Approximate size in bytes of one row in all of its forms, from the input to the output."""
        features, actions = len(self.encoder.features), len(self.bundle.actions)
        kept = 64 * (len(self.columns.keep) + 2 + self.columns.reasons)
        return 24 * features + kept + 64 + (24 if self.columns.pmf else 2) * actions

    def check(self, schema: pa.Schema, where: str) -> None:
        """Check that a table has every column that is read, of a usable type.

        Args:
            schema: The table's schema.
            where: Name of the table in messages.

        Raises:
            BatchError: A column is missing, occurs twice or has a type that cannot be used.
        """
        self.encoder.check(schema, where)
        for name in self.columns.keep:
            find_column(schema, name, where, "column")
        if (decision := self.columns.id) is not None:
            kind = schema.field(find_column(schema, decision, where, "id")).type
            if not (is_text(_value_type(kind)) or pa.types.is_integer(_value_type(kind))):
                raise BatchError(
                    f'id "{decision}": the column of {where} has type {kind}, and an id is text or '
                    f'an integer; convert it, for example with --sql and CAST("{decision}" AS VARCHAR)'
                )
        if (lists := self.columns.eligible) is not None:
            kind = schema.field(find_column(schema, lists, where, "eligible")).type
            if not _is_list(kind) or not (is_text(kind.value_type) or pa.types.is_boolean(kind.value_type)):
                raise BatchError(
                    f'eligible "{lists}": the column of {where} has type {kind}, and it must be a list of '
                    "action ids or a list of booleans, one per action of the catalogue; convert it"
                )

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the results of a table.

        Args:
            schema: The table's schema.
        """
        kinds = {
            **dict.fromkeys(("decision", "action", "queue", PROBLEM), pa.string()),
            "pmf": pa.list_(pa.float64()),
            "allowed": pa.list_(pa.bool_()),
            **dict.fromkeys(("rules", _FAULTED), pa.string() if self.joins_lists else pa.list_(pa.string())),
        }
        for number in range(self.columns.reasons):
            code, feature, _ = _reason_names(number)
            kinds[code] = kinds[feature] = pa.string()
        kept = [schema.field(name) for name in self.columns.keep]
        return pa.schema([*kept, *((name, kinds.get(name, pa.float64())) for name in self._results)])

    def score(self, batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """Score a batch, with the bits of a server's answers.

        Args:
            batch: The rows. The schema must have been checked (`check`).
            first_row: Position of the first row in the input, for messages.

        Returns:
            The kept columns and the results, in the order of the rows.

        Raises:
            BatchError: A row is refused, and `bad_rows` is ``fail``.
        """
        encoded, problems = self.encoder.encode(batch)
        if self.bundle.kind == "action":
            values, problems = self._select(batch, encoded, problems)
        else:
            values, problems = self._score(batch, encoded, problems)
        if problems and self.columns.bad_rows == "fail":
            row = min(problems)
            raise BatchError(f"row {first_row + row:,}: {problems[row]}; --bad-rows null skips such rows")
        if self.columns.bad_rows == "null":
            values[PROBLEM] = _texts(problems, batch.num_rows)
        kept = [batch.column(name) for name in self.columns.keep]
        arrays = [*kept, *(values[name] for name in self._results)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema(batch.schema))

    def eligible(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.bool_] | None, Problems]:
        """Return the eligible actions of each row, ``[n, actions]``, and the rows with a wrong list.

        Args:
            batch: The rows.
        """
        if self.columns.eligible is None:
            return None, {}
        column = batch.column(self.columns.eligible)
        if pa.types.is_boolean(column.type.value_type):
            return _from_flags(column, self.columns.eligible, len(self._actions))
        return _from_ids(column, self.columns.eligible, self._actions)

    def _score(
        self, batch: pa.RecordBatch, encoded: Columns32, problems: Problems
    ) -> tuple[dict[str, pa.Array], Problems]:
        rule_time: RuleTime | None = None
        wrong: Problems = {}
        if self._rules:
            ids = None
            if self.columns.id is not None:
                ids, wrong = _ids(batch.column(self.columns.id), self.columns.id)
            rule_time = RuleTime(self.at, ids)
        out, refused = self.bundle.score_columns(encoded, reasons=self.columns.reasons, rules=rule_time)
        problems = {**dict(refused), **wrong, **problems}
        gone = _mask(problems, encoded.shape[1])
        return {
            "margin": pa.array(out.margins, mask=gone),
            "score": pa.array(out.scores, mask=gone),
            "decision": _named(self._labels, out.bands, gone),
            **self._ruled(out.rules, gone),
            **self._faulted(out.faulted, gone),
            **self._reasons(out.reasons, gone),
        }, problems

    def _ruled(self, rules: RowRules | None, gone: npt.NDArray[np.bool_] | None) -> dict[str, pa.Array]:
        """Return the columns of the rules, null where a row is gone."""
        if rules is None:
            return {}
        mask = None if gone is None else pa.array(gone)
        none = rules.queues == _NONE if gone is None else (rules.queues == _NONE) | gone
        fired = pa.ListArray.from_arrays(
            pa.array(rules.offsets), self._rule_ids.take(pa.array(rules.fired)), mask=mask
        )
        values = {
            "ruled_score": pa.array(rules.scores, mask=gone),
            "queue": self._queues.take(pa.array(rules.queues, mask=none)),
            "rules": pc.binary_join(fired, ";") if self.joins_lists else fired,
        }
        if rules.allowed is not None:
            values["allowed"] = _lists(rules.allowed, gone)
        return values

    def _faulted(
        self, faulted: npt.NDArray[np.uint64], gone: npt.NDArray[np.bool_] | None
    ) -> dict[str, pa.Array]:
        """Return the column of the functions without a result, null where a row is gone."""
        if not self.bundle.functions:
            return {}
        bits = np.arange(len(self._functions), dtype=np.uint64)
        rows, places = np.nonzero(faulted[:, None] >> bits & np.uint64(1))
        ends = np.searchsorted(rows, np.arange(len(faulted) + 1)).astype(np.int32)
        mask = None if gone is None else pa.array(gone)
        names = pa.ListArray.from_arrays(pa.array(ends), self._functions.take(pa.array(places)), mask=mask)
        return {_FAULTED: pc.binary_join(names, ";") if self.joins_lists else names}

    def _reasons(self, reasons: RowReasons | None, gone: npt.NDArray[np.bool_] | None) -> dict[str, pa.Array]:
        """Return the columns of the reasons, null where a row has fewer or is gone."""
        values: dict[str, pa.Array] = {}
        if reasons is None:
            return values
        for number in range(self.columns.reasons):
            places, amounts = reasons.columns[:, number], reasons.contributions[:, number]
            none = places == _NONE if gone is None else (places == _NONE) | gone
            named = pa.array(places, mask=none)
            arrays = (self._codes.take(named), self._columns.take(named), pa.array(amounts, mask=none))
            values.update(zip(_reason_names(number), arrays, strict=True))
        return values

    def _select(
        self, batch: pa.RecordBatch, encoded: Columns32, problems: Problems
    ) -> tuple[dict[str, pa.Array], Problems]:
        ids, wrong = _ids(batch.column(self.columns.id), self.columns.id or "")
        eligible, unusable = self.eligible(batch)
        out, refused = self.bundle.select_columns(
            encoded,
            checkpoint=self.columns.checkpoint or "",
            ids=ids,
            eligible=eligible,
            pmf=self.columns.pmf,
            reasons=self.columns.reasons,
            seconds=self.at if self._rules else None,
        )
        problems = {**dict(refused), **unusable, **wrong, **problems}
        gone = _mask(problems, batch.num_rows)
        values = {
            "action": _named(self._actions, out.indices, gone),
            "propensity": pa.array(out.propensities, mask=gone),
            "expected_reward": pa.array(out.expected_rewards, mask=gone),
            **self._ruled(out.rules, gone),
            **self._faulted(out.faulted, gone),
            **self._reasons(out.reasons, gone),
        }
        if out.pmf is not None:
            values["pmf"] = _lists(out.pmf, gone)
        return values, problems


def _lists(values: npt.NDArray[Any], gone: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return the rows of a matrix as lists; null where a row is gone."""
    offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
    mask = None if gone is None else pa.array(gone)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.ravel()), mask=mask)


def _reason_names(number: int) -> tuple[str, str, str]:
    """Return the names of the columns of a reason, which is counted from 0 here and from 1 there."""
    name = f"reason_{number + 1}"
    return f"{name}_code", f"{name}_feature", f"{name}_contribution"


def _check_lists(bundle: Bundle) -> None:
    external = [one.name for one in bundle.rules.external_lists] if bundle.rules else []
    if external:
        raise BatchError(
            f"bundle {bundle.name}: batch scoring does not load the external lists {', '.join(external)} of "
            "its rules; score with a revision that has them as files (`scorer bundle revise --rules RULES "
            "--list NAME=FILE`)"
        )


def _check_options(bundle: Bundle, columns: BatchColumns) -> None:
    if not 0 <= columns.reasons <= MAX_REASONS:
        raise BatchError(
            f"--reasons {columns.reasons}: a row has at most {MAX_REASONS} reasons; ask for fewer"
        )
    if columns.reasons and not bundle.explains:
        raise BatchError(
            f"bundle {bundle.name}: it has no covers.bin, so it gives no reasons; build it again from its "
            "model, or remove --reasons"
        )
    if columns.at is not None and bundle.rules is None:
        raise BatchError(f"bundle {bundle.name}: it has no rules, which the time is for; remove --at")
    if bundle.rules is not None and bundle.rules.needs_ids and columns.id is None:
        raise BatchError(
            f"bundle {bundle.name}: a rule has a rollout, which depends on the id of the request; give --id"
        )
    if bundle.kind == "action":
        needed = {"--id": columns.id, "--checkpoint": columns.checkpoint}
        for option, value in needed.items():
            if not value:
                raise BatchError(
                    f"bundle {bundle.name}: an action is drawn by checkpoint and decision id; give {option}"
                )
        return
    for option, given in {"--pmf": columns.pmf, "--eligible": columns.eligible is not None}.items():
        if given:
            raise BatchError(f"bundle {bundle.name}: a score bundle has no actions; remove {option}")


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _mask(problems: Mapping[int, str], count: int) -> npt.NDArray[np.bool_] | None:
    if not problems:
        return None
    gone = np.zeros(count, bool)
    gone[list(problems)] = True
    return gone


def _texts(problems: Mapping[int, str], count: int) -> pa.Array:
    if not problems:
        return pa.nulls(count, pa.string())
    rows = sorted(problems)
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return pa.array([problems[row] for row in rows], pa.string()).take(pa.array(places, mask=places < 0))


def _named(names: pa.Array, places: npt.NDArray[np.uint32], gone: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return the names at places; null where a row is gone."""
    if gone is not None:
        places[gone] = 0
    return names.take(pa.array(places, mask=gone))


def _ids(column: pa.Array, name: str) -> tuple[tuple[Any, Any], Problems]:
    """Return the text and the offsets of decision ids, and the rows whose id a server would refuse."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    texts = column.cast(pa.large_string())
    valid = pc.match_substring_regex(texts, pattern=_IDS).fill_null(False).to_numpy(zero_copy_only=False)
    rule = f'id "{name}": an id is 1 to 80 printable ASCII characters; give the row one'
    return text_buffers(texts), dict.fromkeys(np.flatnonzero(~valid).tolist(), rule)


def _from_flags(column: pa.Array, name: str, actions: int) -> tuple[npt.NDArray[np.bool_], Problems]:
    """Return the eligible actions of lists of booleans, and the rows whose list has another length."""
    eligible = np.ones((len(column), actions), bool)
    lengths = pc.list_value_length(column).cast(pa.int64()).fill_null(-1).to_numpy()
    fits = lengths == actions
    flags = column.filter(pa.array(fits)).flatten().fill_null(False)
    eligible[fits] = flags.to_numpy(zero_copy_only=False).reshape(-1, actions)
    wrong = np.flatnonzero(~fits & (lengths >= 0)).tolist()
    rule = f'eligible "{name}": one boolean per action is needed, {actions} for this bundle; correct the list'
    return eligible, dict.fromkeys(wrong, rule)


def _from_ids(column: pa.Array, name: str, actions: pa.Array) -> tuple[npt.NDArray[np.bool_], Problems]:
    """Return the eligible actions of lists of ids, and the rows with an unknown id."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    eligible = np.ones((len(column), len(actions)), bool)
    given = column.is_valid()
    present = np.flatnonzero(given.to_numpy(zero_copy_only=False))
    eligible[present] = False
    lists = column.filter(given)
    rows = present[pc.list_parent_indices(lists).to_numpy()]
    ids = lists.flatten()
    places = pc.index_in(ids.cast(pa.string()), value_set=actions).fill_null(-1).to_numpy()
    known = places >= 0
    eligible[rows[known], places[known]] = True
    problems = {
        row: f'eligible "{name}": action "{ids[at].as_py()}" is not in the catalogue; remove it'
        for row, at in zip(rows[~known].tolist(), np.flatnonzero(~known).tolist(), strict=True)
    }
    return eligible, problems


def unused(schema: pa.Schema, used: Sequence[str]) -> list[str]:
    """Return the columns of a table that are not read."""
    return [name for name in schema.names if name not in set(used)]
