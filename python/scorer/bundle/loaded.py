"""A verified bundle for offline scoring, replay and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from scorer.errors import BundleError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from scorer.bridge import RawBundle
    from scorer.bundle.rules import BundleRules, CompiledRules, RuleFault

    Rows = npt.NDArray[np.float32]
    Doubles = npt.NDArray[np.float64]
    Refused = Sequence[tuple[int, str]]
    TextBuffers = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
    RuleArguments = tuple[int, TextBuffers | None, Doubles, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]

_CHUNK_VALUES = 1 << 22
MAX_REASONS = 32
"""Greatest number of reasons of one row."""


@dataclass(frozen=True)
class RowReasons:
    """The columns of the forest with the largest contributions to the margin of each row."""

    columns: npt.NDArray[np.uint32]
    """Positions in `Bundle.columns`, the largest contribution first, ``[n, k]``; the greatest uint32 where a
    row has fewer reasons."""
    contributions: Doubles
    """By how much each moves the margin from its expectation, ``[n, k]``; NaN where a row has fewer."""

    @classmethod
    def empty(cls, rows: int, count: int) -> RowReasons:
        """Allocate the results of some rows."""
        import numpy as np

        return cls(np.empty((rows, count), np.uint32), np.empty((rows, count)))


@dataclass(frozen=True)
class RuleTime:
    """What the rules of a bundle see beside the rows."""

    seconds: int
    """Time of the requests in seconds since 1970."""
    ids: TextBuffers | None = None
    """The UTF-8 text of the ids of all requests, and the offsets ``[n + 1]`` at which they start and end.
    Rules that are rolled out to a share of the requests need them."""


@dataclass(frozen=True)
class RowRules:
    """The rules of a bundle on rows that are given column by column."""

    offsets: npt.NDArray[np.int32]
    """Offsets ``[n + 1]`` of the rows in `fired`."""
    fired: npt.NDArray[np.uint16]
    """Positions in `CompiledRules.rules` of the rules that had an effect, one row after the other."""
    scores: Doubles
    """Scores within caps and floors, ``[n]``; NaN in an action bundle and where a row was refused."""
    queues: npt.NDArray[np.uint32]
    """Position of the rule whose review queue is used, ``[n]``; the greatest uint32 where there is none."""
    allowed: npt.NDArray[np.bool_] | None = None
    """Actions that both the request and the rules allow, ``[n, actions]``, if they were asked for."""


@dataclass(frozen=True)
class Scores:
    """The results of a score bundle, one entry per row."""

    margins: Doubles
    """Raw output of the forest, ``[n]``."""
    scores: Doubles
    """Scores after link and calibration, ``[n]``."""
    bands: npt.NDArray[np.uint32]
    """Index of the score's band in the bundle's labels, ``[n]``."""
    faulted: npt.NDArray[np.uint64]
    """The functions that had no result, ``[n]``; see `Bundle.faulted_functions`."""
    reasons: RowReasons | None = None
    """The reasons, if they were asked for."""
    rules: RowRules | None = None
    """What the rules did, if they were applied. The bands are then those that the rules decide."""


@dataclass(frozen=True)
class NetFacts:
    """An ONNX model of a bundle."""

    file: str
    columns: int
    """Number of columns of a row."""
    constants: int
    """Number of constants, which are mostly weights. Matrices are filled up to a multiple of 32 columns."""
    operators: dict[str, int]
    """Number of nodes of each operator that the score needs."""

    @property
    def shown_operators(self) -> str:
        """The operators in alphabetical order, each with its number."""
        return ", ".join(f"{count} {name}" for name, count in self.operators.items())

    @property
    def summary(self) -> str:
        """The file, its size and its operators in one line."""
        return f"{self.file}: {self.columns} columns, {self.constants} constants, {self.shown_operators}"


@dataclass(frozen=True)
class Selection:
    """The action that an action bundle chose, with the probabilities and expected rewards of all actions."""

    index: int
    """Position of the chosen action in the catalogue."""
    action: str
    """Id of the chosen action."""
    propensity: float
    """Probability of the chosen action."""
    expected_reward: float
    """The oracle's score of the chosen action."""
    pmf: Doubles
    """Probability of every action of the catalogue, ``[actions]``."""
    expected_rewards: Doubles
    """Expected reward of every action, ``[actions]``; NaN for actions that are not eligible."""
    faulted: int = 0
    """The functions that had no result for an eligible action; see `Bundle.faulted_functions`."""


@dataclass(frozen=True)
class Selections:
    """The actions that an action bundle chose for many rows, one entry per row."""

    indices: npt.NDArray[np.uint32]
    """Position of the chosen action in the catalogue, ``[n]``."""
    propensities: Doubles
    """Probability of the chosen action, ``[n]``."""
    expected_rewards: Doubles
    """The oracle's score of the chosen action, ``[n]``."""
    faulted: npt.NDArray[np.uint64]
    """The functions that had no result, ``[n]``; see `Bundle.faulted_functions`."""
    pmf: Doubles | None
    """Probability of every action of the catalogue, ``[n, actions]``; None if it was not asked for."""
    reasons: RowReasons | None = None
    """The reasons of the chosen action's score, if they were asked for."""
    rules: RowRules | None = None
    """What the rules did, if they were applied."""


class Bundle:
    """A bundle whose files, structure and golden cases have been verified.

    Rows are float32 in the order of the schema; `scorer.bundle.encode` converts named columns to rows. Use
    `Bundle.load` to open a bundle's directory.
    """

    def __init__(self, raw: RawBundle) -> None:
        self._raw = raw

    @classmethod
    def load(cls, path: str | PathLike[str], digest: str | None = None) -> Bundle:
        """Read and verify a bundle's directory.

        Args:
            path: The bundle's directory.
            digest: The digest that the bundle must have; None accepts any.

        Raises:
            BundleError: A check failed. The message is one line with the failed check and the remedy.
        """
        from scorer import bridge

        return cls(bridge.RawBundle.load(fspath(path), digest))

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hexadecimal digits."""
        return self._raw.digest

    @property
    def name(self) -> str:
        """Name of the bundle, as in its manifest."""
        return self._raw.name

    @property
    def kind(self) -> str:
        """Kind of the bundle: ``score`` or ``action``."""
        return self._raw.kind

    @property
    def num_features(self) -> int:
        """Number of features of a request's row."""
        return self._raw.num_features

    @property
    def schema_fingerprint(self) -> int:
        """Fingerprint of the schema, which a request with a dense row must contain."""
        return self._raw.schema_fingerprint

    @cached_property
    def labels(self) -> Sequence[str]:
        """Labels of the score bands; empty for an action bundle."""
        return self._raw.labels

    @cached_property
    def actions(self) -> Sequence[str]:
        """Ids of the actions in catalogue order; empty for a score bundle."""
        return self._raw.action_ids

    @cached_property
    def rules(self) -> CompiledRules | None:
        """The bundle's rules; None if it has none."""
        from scorer import bridge
        from scorer.bundle.rules import CompiledRules

        raw = bridge.rules_of(self._raw)
        return None if raw is None else CompiledRules(raw, len(self.actions))

    def check_rules(self, rules: BundleRules) -> CompiledRules | tuple[RuleFault, ...]:
        """Compile other rules for this bundle, with all static checks.

        Args:
            rules: The rules. They may refer to the bundle's features, scores, decisions and actions.

        Returns:
            The compiled rules, or every fault that was found.

        Raises:
            BundleError: The salt is not valid.
        """
        from scorer import bridge
        from scorer.bundle.rules import compiled_or_faults

        raw, faults = bridge.compile_rules(self._raw, rules.text, rules.raw_lists, rules.key)
        return compiled_or_faults(raw, faults, len(self.actions))

    @property
    def policy(self) -> str | None:
        """One-line description of the policy; None for a score bundle."""
        return self._raw.policy

    @cached_property
    def functions(self) -> Sequence[str]:
        """Names of the functions in WebAssembly modules; empty if the bundle has none."""
        return self._raw.functions

    def faulted_functions(self, faulted: int) -> list[str]:
        """Return the names of a set of functions that had no result, in the order of `functions`.

        Args:
            faulted: The set, with a bit for each function; bit 0 is the first one.
        """
        return [name for at, name in enumerate(self.functions) if int(faulted) >> at & 1]

    @property
    def explains(self) -> bool:
        """Whether the bundle has the covers that reasons and explanations need."""
        return self._raw.explains

    @cached_property
    def columns(self) -> Sequence[str]:
        """Names of the forest's columns: the features of a request, then those of an action."""
        return self._raw.column_names

    @cached_property
    def reason_codes(self) -> Sequence[str]:
        """Reason code of each of the `columns`; empty if the bundle gives no reasons."""
        return self._raw.reason_codes

    @property
    def forests(self) -> Sequence[Mapping[str, int]]:
        """Numbers of trees, nodes and outputs of each forest, that of the oracle first."""
        return [
            {"trees": trees, "nodes": nodes, "outputs": outputs}
            for trees, nodes, outputs in self._raw.forests
        ]

    @cached_property
    def nets(self) -> Sequence[NetFacts]:
        """The ONNX models, in the order of the program."""
        return [
            NetFacts(file, columns, constants, dict(operators))
            for file, columns, constants, operators in self._raw.nets
        ]

    def check(self, rows: Any) -> None:
        """Check rows ``[n, features]`` against the schema.

        Raises:
            BundleError: The rows have another shape, or the schema rejects a value.
        """
        for _, chunk in self._chunks(rows):
            self._raw.check_rows(chunk)

    def score(self, rows: Any) -> Scores:
        """Score rows offline, with the same results as the server's.

        Args:
            rows: Encoded rows, float32 ``[n, features]``.

        Raises:
            BundleError: The rows have another shape, or the bundle is an action bundle.
        """
        import numpy as np

        whole = self._rows(rows)
        count = len(whole)
        out = Scores(np.empty(count), np.empty(count), np.empty(count, np.uint32), np.empty(count, np.uint64))
        for part, chunk in self._chunks(whole):
            self._raw.score(chunk, out.margins[part], out.scores[part], out.bands[part], out.faulted[part])
        return out

    def score_columns(
        self, columns: Rows, *, reasons: int = 0, rules: RuleTime | None = None
    ) -> tuple[Scores, Refused]:
        """Score rows that are given column by column, each checked as the server checks a request.

        The results have the same bits as those of `score`, and take a fraction of its time. All values are
        copied once, so callers pass a bounded number of rows at a time.

        Args:
            columns: Encoded features, float32 ``[features, n]`` in C order.
            reasons: Number of reasons per row, at most 32. Their contributions are path attributions.
            rules: Time and ids with which the bundle's rules decide; None for the bands of the scores.

        Returns:
            The results, and the position and reason of each row that was refused. The entries of a refused
            row are NaN, and its band is the greatest uint32.

        Raises:
            BundleError: The columns have another shape, the bundle is an action bundle, or it gives no
                reasons or has no rules.
        """
        import numpy as np

        from scorer import bridge

        count = columns.shape[-1]
        causes = self._reasons(count, reasons)
        out = Scores(
            np.empty(count), np.empty(count), np.empty(count, np.uint32), np.empty(count, np.uint64), causes
        )
        ruling = self._ruling(count, rules, 0)
        refused, fired = bridge.score_columns(
            self._raw,
            columns,
            out.margins,
            out.scores,
            out.bands,
            out.faulted,
            None if causes is None else (causes.columns, causes.contributions),
            ruling,
        )
        return replace(out, rules=self._ruled(ruling, fired)), refused

    def _ruling(self, rows: int, rules: RuleTime | None, masks: int) -> RuleArguments | None:
        """Allocate the results of the rules, with masks of that size; None if they are not applied."""
        if rules is None:
            return None
        if self.rules is None:
            raise BundleError(f"bundle {self.name} has no rules; score it without them")
        if self.rules.needs_ids and rules.ids is None:
            raise BundleError(f"bundle {self.name}: a rule has a rollout, which depends on ids; give the ids")
        import numpy as np

        allowed = np.empty((rows, masks), np.uint8)
        return rules.seconds, rules.ids, np.empty(rows), np.empty(rows, np.uint32), allowed

    def _ruled(self, ruling: RuleArguments | None, fired: tuple[bytes, bytes] | None) -> RowRules | None:
        """Return the results of the rules; None if they were not applied."""
        if ruling is None or fired is None:
            return None
        import numpy as np

        _, _, within, queues, masks = ruling
        allowed = None
        if masks.shape[1]:
            allowed = np.unpackbits(masks, axis=1, bitorder="little")[:, : len(self.actions)].astype(bool)
        offsets, numbers = np.frombuffer(fired[0], np.int32), np.frombuffer(fired[1], np.uint16)
        return RowRules(offsets, numbers, within, queues, allowed)

    def _reasons(self, rows: int, count: int) -> RowReasons | None:
        """Allocate reasons; None if none are asked for."""
        if count == 0:
            return None
        if not 0 < count <= MAX_REASONS:
            raise BundleError(f"reasons: {count} are asked for; a row has at most {MAX_REASONS}")
        if not self.explains:
            raise BundleError(
                f"bundle {self.name} has no covers.bin, so it gives no reasons; build it again from its model"
            )
        return RowReasons.empty(rows, count)

    def select_columns(
        self,
        columns: Rows,
        *,
        checkpoint: str,
        ids: TextBuffers,
        eligible: npt.NDArray[np.bool_] | None = None,
        pmf: bool = False,
        reasons: int = 0,
        seconds: int | None = None,
    ) -> tuple[Selections, Refused]:
        """Choose an action for each of many rows, as `select` does for one row.

        Args:
            columns: As in `score_columns`.
            checkpoint: The checkpoint's name.
            ids: The UTF-8 text of all decision ids, and the offsets ``[n + 1]`` at which they start and end.
            eligible: Booleans ``[n, actions]``, or None for every action.
            pmf: Whether the probabilities of all actions, and the actions that the rules allow, are returned.
            reasons: Number of reasons of the chosen action's score, as in `score_columns`.
            seconds: Time in seconds since 1970 at which the bundle's rules restrict the actions; None for a
                selection without rules.

        Returns:
            The results, and the position and reason of each row that was refused. The entries of a refused
            row are NaN, and its index is the greatest uint32.

        Raises:
            BundleError: An array has another shape, the bundle is a score bundle, or it gives no reasons or
                has no rules.
        """
        import numpy as np

        from scorer import bridge

        count, actions = columns.shape[-1], len(self.actions)
        if eligible is not None and eligible.shape != (count, actions):
            raise BundleError(f"eligible has shape {eligible.shape}, {(count, actions)} is needed")
        masks = None if eligible is None else np.packbits(eligible, axis=1, bitorder="little")
        causes = self._reasons(count, reasons)
        out = Selections(
            np.empty(count, np.uint32),
            np.empty(count),
            np.empty(count),
            np.empty(count, np.uint64),
            np.empty((count, actions)) if pmf else None,
            causes,
        )
        time = None if seconds is None else RuleTime(seconds, ids)
        ruling = self._ruling(count, time, (actions + 7) // 8 if pmf else 0)
        refused, fired = bridge.select_columns(
            self._raw,
            columns,
            masks,
            checkpoint,
            ids,
            (out.indices, out.propensities, out.expected_rewards, out.faulted, out.pmf),
            None if causes is None else (causes.columns, causes.contributions),
            ruling,
        )
        return replace(out, rules=self._ruled(ruling, fired)), refused

    def explain(self, row: Any, *, action: int | None = None) -> tuple[float, Doubles]:
        """Explain a margin: that of a score, or that of one action's expected reward.

        Args:
            row: The features of the request, float32 ``[features]``.
            action: For an action bundle: position of the action in the catalogue.

        Returns:
            The expectation of the margin over the training rows, and the exact contribution of each of the
            `columns`, ``[columns]``. They add up to the margin.

        Raises:
            BundleError: The row has another length, the action does not suit the bundle, or the bundle has no
                covers.
        """
        import numpy as np

        out = np.empty(len(self.columns))
        values = np.ascontiguousarray(row, dtype=np.float32)
        return self._raw.explain(values, action, out), out

    def select(self, row: Any, *, checkpoint: str, decision_id: str, eligible: Any = None) -> Selection:
        """Choose the action that the server chooses for this decision.

        The draw depends only on the policy's salt, the checkpoint and the decision id, so it can be repeated.

        Args:
            row: The features of the context, float32 ``[features]``.
            checkpoint: The checkpoint's name.
            decision_id: The decision's id.
            eligible: The eligible set as booleans ``[actions]`` or as packed bytes (least significant bit
                first), or None for every action.
        """
        return self._select(row, eligible, (checkpoint, decision_id))

    def select_greedy(self, row: Any, *, eligible: Any = None) -> Selection:
        """Choose the eligible action with the highest expected reward, as while exploration is stopped.

        Args:
            row: The features of the context, float32 ``[features]``.
            eligible: As in `select`.
        """
        return self._select(row, eligible, None)

    def evaluate(self, rows: Any, *, eligible: Any = None) -> tuple[Doubles, Doubles]:
        """Return probabilities and expected rewards, each ``[n, actions]``, without choosing an action.

        Args:
            rows: Encoded contexts, float32 ``[n, features]``.
            eligible: Booleans ``[n, actions]``, or None for every action.

        Raises:
            BundleError: An array has another shape.
        """
        import numpy as np

        whole = self._rows(rows)
        masks = None if eligible is None else np.asarray(eligible, dtype=bool)
        if masks is not None and masks.shape != (len(whole), len(self.actions)):
            raise BundleError(
                f"eligible has shape {masks.shape}, {(len(whole), len(self.actions))} is needed"
            )
        pmf = np.empty((len(whole), len(self.actions)))
        rewards = np.empty_like(pmf)
        for part, chunk in self._chunks(whole):
            packed = None if masks is None else np.packbits(masks[part], axis=1, bitorder="little").tobytes()
            self._raw.evaluate_actions(chunk, packed, pmf[part], rewards[part])
        return pmf, rewards

    def restrict(
        self, rows: Any, eligible: npt.NDArray[np.bool_], *, seconds: Any, ids: Sequence[str]
    ) -> npt.NDArray[np.bool_]:
        """Return the eligible actions that the bundle's rules allow, as `scorer.bundle.rules.within` does.

        Args:
            rows: Encoded contexts, float32 ``[n, features]``.
            eligible: Eligible actions, bool ``[n, actions]``. Without rules they are returned.
            seconds: Times of the requests in seconds since 1970, ``[n]``.
            ids: Ids of the requests.

        Raises:
            BundleError: An array has another shape.
        """
        if self.rules is None or not len(ids):
            return eligible
        import numpy as np

        from scorer.bundle.rules import within

        whole = self._rows(rows)
        out = np.empty_like(eligible)
        for part, chunk in self._chunks(whole):
            named = ids[part]
            none = np.full(len(named), np.nan)
            found = self.rules.evaluate(chunk, scores=none, seconds=seconds[part], ids=named)
            out[part] = within(eligible[part], found.allowed)
        return out

    def _select(self, row: Any, eligible: Any, ids: tuple[str, str] | None) -> Selection:
        import numpy as np

        if eligible is not None and not isinstance(eligible, bytes):
            eligible = np.packbits(np.asarray(eligible, dtype=bool), bitorder="little").tobytes()
        pmf, rewards = np.empty(len(self.actions)), np.empty(len(self.actions))
        values = np.ascontiguousarray(row, dtype=np.float32)
        index, propensity, reward, faulted = self._raw.select(values, eligible, ids, pmf, rewards)
        return Selection(index, self.actions[index], propensity, reward, pmf, rewards, faulted)

    def _rows(self, rows: Any) -> Rows:
        import numpy as np

        array = np.ascontiguousarray(rows, dtype=np.float32)
        if array.ndim != 2 or array.shape[1] != self.num_features:
            raise BundleError(
                f"rows have shape {array.shape}, [n, {self.num_features}] is needed; see the bundle's schema"
            )
        return array

    def _chunks(self, rows: Any) -> Iterator[tuple[slice, Rows]]:
        whole = self._rows(rows)
        step = max(1, _CHUNK_VALUES // max(self.num_features, len(self.actions), 1))
        for start in range(0, len(whole), step):
            part = slice(start, min(start + step, len(whole)))
            yield part, whole[part]
