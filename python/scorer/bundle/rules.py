"""Rules of bundles: reading them from files, checking them against a bundle, and evaluating them on rows."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scorer.bundle.models import RulesNode
from scorer.errors import BundleError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from scorer.bridge import RawRuleSet, RuleReplay
    from scorer.bundle.columns import Rows
    from scorer.bundle.eligibility import Eligibility
    from scorer.bundle.models import Action, Feature

RULES = "rules.toml"
"""File of the rules in a bundle."""
MAX_LISTS = 64
"""Greatest number of lists of a bundle."""
Faults = Sequence[tuple[str, int, int, str]]
"""Faults as the compiler returns them: rule, line, column and problem."""


@dataclass(frozen=True)
class RuleList:
    """A list that conditions name with ``list("name")``."""

    content: bytes | None
    """One element per line, as UTF-8. None: the list is external and is not loaded at first."""
    type: Literal["string", "int"] = "string"
    """The type of the elements."""
    external: bool = False
    """Whether servers read the newest version in the registry; see `scorer lists put`."""
    minimum_version: int | None = None
    """The oldest version of an external list that the rules may read."""


@dataclass(frozen=True)
class BundleRules:
    """A rule set in the form of docs/rules.md, with its lists."""

    text: str
    """The TOML text of the rules."""
    lists: Mapping[str, RuleList] = field(default_factory=dict)
    """The lists by name."""
    salt: str | None = None
    """32 hexadecimal digits from which, with the request's id, roll-outs are derived. By default they follow
    from the name of the rule set, so that a roll-out stays the same in the next bundle."""

    @property
    def raw_lists(self) -> dict[str, tuple[bool, bytes | None, int | None]]:
        """The lists as the compiler takes them.

        They are whether the elements are ints, the content, and the oldest version of an external list.
        """
        return {
            name: (one.type == "int", one.content, (one.minimum_version or 0) if one.external else None)
            for name, one in self.lists.items()
        }

    @property
    def key(self) -> str:
        """The salt that the rules have in a bundle."""
        if self.salt is not None:
            return self.salt
        # The compiler reports rules that are not valid TOML, with place and remedy.
        try:
            name = tomllib.loads(self.text).get("name", "")
        except tomllib.TOMLDecodeError:
            name = ""
        return sha256(f"scorer rule set {name}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ExternalListInfo:
    """An external list that compiled rules declare."""

    name: str
    type: Literal["string", "int"]
    """The type of the elements."""
    minimum_version: int
    """The oldest version that the rules may read, or 0."""


@dataclass(frozen=True)
class RuleFault:
    """What is wrong with a rule, and where."""

    rule: str
    """Id of the rule; empty for the whole file."""
    line: int
    column: int
    problem: str
    """The rule that is broken, and the remedy."""

    def __str__(self) -> str:
        """Return the fault in one line."""
        rule = f'rule "{self.rule}", ' if self.rule else ""
        return f"{rule}line {self.line}, column {self.column}: {self.problem}"


@dataclass(frozen=True)
class RuleInfo:
    """One rule of a compiled rule set. A row of a table has an id such as "limits.row2"."""

    id: str
    decision: str | None
    reason: str | None
    source: str | None
    queue: str | None
    cap: float | None
    floor: float | None
    priority: int
    restricts: bool
    """Whether the rule removes actions from the eligible ones."""
    line: int
    daily: int | None
    """The most requests of a UTC day that it decides."""
    daily_amount: tuple[str, float] | None
    """A number, and the greatest sum of it over these requests."""

    @property
    def budget(self) -> str:
        """Its daily budget in a few words; empty if it has none."""
        amount = self.daily_amount and {"of": self.daily_amount[0], "most": self.daily_amount[1]}
        return ", ".join(written_budget({"daily": self.daily, "daily_amount": amount}))

    @property
    def effect(self) -> str:
        """What the rule writes, in a few words."""
        words = written_effects(vars(self))
        return ", ".join([*words, *(["restricts actions"] if self.restricts else [])]) or "none"


def written_budget(rule: Mapping[str, Any]) -> list[str]:
    """Return the daily budget of a rule, such as ``at most 500 a day``.

    Args:
        rule: The fields of a rule by name. A field that is left out or None is no limit.
    """
    daily, amount = rule.get("daily"), rule.get("daily_amount")
    return [
        *([] if daily is None else [f"at most {daily} a day"]),
        *([] if amount is None else [f"at most {amount['most']:g} of {amount['of']} a day"]),
    ]


def written_effects(rule: Mapping[str, Any]) -> list[str]:
    """Return what a rule writes to an answer, such as ``decision review``.

    Args:
        rule: The fields of a rule by name. A field that is left out or None is not written.
    """
    written = {name: rule.get(name) for name in ("decision", "reason", "queue", "cap", "floor")}
    return [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in written.items()
        if value is not None
    ]


@dataclass(frozen=True)
class RuledRows:
    """The results of a rule set on rows."""

    applied: list[list[int]]
    """For each row the positions of the rules that had an effect, ascending."""
    unknown: list[int]
    """Number of rules per row that did not fire because a value is missing."""
    errors: list[int]
    """Number of rules per row that did not fire because their condition has no value."""
    conflicts: list[int]
    """Number of groups per row whose rules contradicted each other."""
    scores: npt.NDArray[np.float64]
    """Scores within caps and floors, ``[n]``; of an action bundle NaN."""
    bands: npt.NDArray[np.uint32]
    """Positions of the decisions in the bundle's labels, ``[n]``. Of an action bundle 0."""
    written: npt.NDArray[np.bool_]
    """Whether a rule wrote the decision, ``[n]``."""
    allowed: npt.NDArray[np.bool_]
    """Actions that the rules allow, ``[n, actions]``."""
    faulted: list[int]
    """The functions of the bundle that had no result per row; see `Bundle.faulted_functions`."""


class CompiledRules:
    """A rule set that is compiled for a bundle; see `Bundle.rules` and `Bundle.check_rules`.

    Args:
        raw: The compiled rule set.
        actions: Number of actions of the bundle.
    """

    def __init__(self, raw: RawRuleSet, actions: int) -> None:
        self._raw, self._actions = raw, actions
        self.rules: tuple[RuleInfo, ...] = tuple(RuleInfo(*rule) for rule in raw.rules_in_order)
        """The rules in the order of their positions."""

    @property
    def name(self) -> str:
        """Name of the rule set."""
        return self._raw.name

    @property
    def external_lists(self) -> tuple[ExternalListInfo, ...]:
        """The external lists that the rules declare."""
        return tuple(
            ExternalListInfo(name, "int" if is_int else "string", minimum)
            for name, is_int, minimum in self._raw.external
        )

    def with_versions(self, versions: Mapping[str, Path]) -> CompiledRules:
        """Return the same rules with some versions of their external lists.

        Args:
            versions: Directory of a version by the name of the list. Other external lists have the content of
                the bundle's own files, if any.

        Raises:
            BundleError: A directory does not hold a version of an external list of these rules.
        """
        return CompiledRules(self._raw.with_versions(versions), self._actions)

    def reads(self, feature: str) -> bool:
        """Whether a value or a condition reads a feature."""
        return self._raw.reads(feature)

    def eligibility(
        self, rows: Rows, *, seconds: Any = None, ids: Sequence[str] | None = None
    ) -> Eligibility:
        """Evaluate rules about actions on rows as a server does, in one call.

        Args:
            rows: Encoded rows of the bundle's request features, ``[n, features]``; see `encode`.
            seconds: Times of the requests in seconds since 1970, ``[n]``; left out, all are 0. Only rules
                with dates depend on them.
            ids: Ids of the requests, ``[n]``; left out, all are empty. Only roll-outs depend on them.

        Raises:
            BundleError: An array has another shape.
        """
        import numpy as np

        from scorer.bundle.eligibility import Eligibility

        rows = np.ascontiguousarray(rows, dtype=np.float32)
        times = np.zeros(len(rows), np.int64) if seconds is None else seconds
        ends, rule, removed, totals = self._raw.removals(
            rows, np.ascontiguousarray(times, dtype=np.int64), None if ids is None else list(ids)
        )
        by = np.frombuffer(rule, np.uint16)
        masks = np.frombuffer(removed, np.uint8).reshape(len(by), (self._actions + 7) // 8)
        return Eligibility(self.rules, self._actions, np.frombuffer(ends, np.uint32), by, masks, *totals)

    def replay(
        self,
        amount: int | None,
        limits: Sequence[float],
        examples: int,
        since_us: int | None,
        until_us: int | None,
        *,
        recorded: bool = False,
    ) -> RuleReplay:
        """Begin to decide logged decisions again; see `scorer.log.rule_backtest`.

        Args:
            amount: Position of the feature with the amount.
            limits: Upper limits of the amount bands, ascending and excluded.
            examples: Number of ids that are kept for each change.
            since_us: Leave out decisions before this time, in microseconds since 1970.
            until_us: Leave out decisions at or after this time.
            recorded: Collect the versions of external lists that the decisions read, to evaluate with them.

        Raises:
            BundleError: The rules were compiled without a bundle.
        """
        from scorer import bridge

        return bridge.RuleReplay(self._raw, amount, list(limits), examples, since_us, until_us, recorded)

    def raw_costs(
        self, rows: Any, scores: Any, seconds: Any, ids: list[str], batches: int, limit: float
    ) -> Any:
        """Measure the rules in Rust; see `scorer.bundle.rule_costs.measure_rules`."""
        from scorer import bridge

        return bridge.rule_costs(self._raw, rows, scores, seconds, ids, batches, limit)

    @property
    def needs_ids(self) -> bool:
        """Whether a rule is rolled out to a share of the requests, which depends on their ids."""
        return self._raw.needs_ids

    def evaluate(
        self,
        rows: Rows,
        *,
        scores: Any,
        seconds: Any,
        ids: Sequence[str],
        exhausted: Sequence[Sequence[str]] | None = None,
    ) -> RuledRows:
        """Evaluate the rules on rows as a server does.

        Args:
            rows: Encoded rows of the bundle's request features, ``[n, features]``; see `encode`.
            scores: The bundle's scores ``[n]``; NaN where there is none. Ignored by an action bundle.
            seconds: Times of the requests in seconds since 1970, ``[n]``.
            ids: Ids of the requests, on which roll-outs depend.
            exhausted: Ids of the rules of each row whose daily budgets are used up. Left out, budgets do not
                apply.

        Raises:
            BundleError: An array has another shape.
        """
        import numpy as np

        rows = np.ascontiguousarray(rows, dtype=np.float32)
        count = len(ids)
        within, bands = np.empty(count), np.empty(count, np.uint32)
        written = np.empty(count, np.uint32)
        applied, masks = self._raw.evaluate(
            rows,
            np.ascontiguousarray(scores, dtype=np.float64),
            np.ascontiguousarray(seconds, dtype=np.int64),
            list(ids),
            within,
            bands,
            written,
            None if exhausted is None else [list(one) for one in exhausted],
        )
        actions = self._actions
        packed = np.frombuffer(masks, np.uint8).reshape(count, (actions + 7) // 8)
        allowed = np.unpackbits(packed, axis=1, bitorder="little")[:, :actions].astype(bool)
        return RuledRows(
            applied=[one[0] for one in applied],
            unknown=[one[1] for one in applied],
            errors=[one[2] for one in applied],
            conflicts=[one[3] for one in applied],
            scores=within,
            bands=bands,
            written=written.astype(bool),
            allowed=allowed,
            faulted=[one[4] for one in applied],
        )


def compile_action_rules(
    rules: BundleRules, features: Sequence[Feature], actions: Sequence[Action]
) -> CompiledRules | tuple[RuleFault, ...]:
    """Compile rules about actions without a bundle, with all static checks.

    Args:
        rules: The rules.
        features: The features of a request, in the order of the rows' columns.
        actions: The catalogue.

    Returns:
        The compiled rules, or every fault that was found.

    Raises:
        BundleError: The salt, the features or the actions are not valid.
    """
    from scorer import bridge

    raw, faults = bridge.compile_action_rules(
        json.dumps([feature.model_dump(by_alias=True, exclude_none=True) for feature in features]),
        json.dumps([action.model_dump(mode="json") for action in actions]),
        rules.text,
        rules.raw_lists,
        rules.key,
    )
    return compiled_or_faults(raw, faults, len(actions))


def compiled_or_faults(
    raw: RawRuleSet | None, faults: Faults, actions: int
) -> CompiledRules | tuple[RuleFault, ...]:
    """Return what the compiler returned: the rules, or the faults.

    Args:
        raw: The compiled rules; None if there are faults.
        faults: The faults.
        actions: Number of actions of the catalogue.
    """
    if raw is None:
        return tuple(RuleFault(*fault) for fault in faults)
    return CompiledRules(raw, actions)


def within(eligible: Any, allowed: Any) -> Any:
    """Return the eligible actions that rules allow; all eligible ones where the rules allow none of them.

    A server answers with its fallback where rules leave nothing. Estimates that need a policy on every row
    use the eligible actions there.

    Args:
        eligible: Eligible actions, bool ``[n, actions]``.
        allowed: Actions that the rules allow, bool ``[n, actions]``.
    """
    import numpy as np

    found = eligible & allowed
    return np.where(found.any(axis=1, keepdims=True), found, eligible)


@dataclass(frozen=True)
class ListFile:
    """Where a list of rules comes from: a file, the registry, or the registry with a file at first."""

    file: Path | None
    type: str = "string"
    """The type of the elements, "string" or "int"."""
    external: bool = False
    """Whether servers read the newest version in the registry."""
    minimum_version: int | None = None
    """The oldest version of an external list that the rules may read."""


def read_rules(file: Path, lists: Mapping[str, ListFile | tuple[Path, str]] | None = None) -> BundleRules:
    """Read rules and their lists from files.

    Args:
        file: The TOML file of the rules.
        lists: Each list by name, or its file and the type of its elements.

    Raises:
        BundleError: A file cannot be read, is not UTF-8, or has an unknown type.
    """
    try:
        return BundleRules(_read(file, "rules").decode(), read_lists(lists or {}))
    except UnicodeDecodeError as error:
        raise BundleError(
            f'rules "{file}": byte {error.start} is not UTF-8; save the file as UTF-8'
        ) from None


def stored_rules(directory: Path, *, contents: bool = True) -> BundleRules | None:
    """Return the rules of a verified bundle, with its salt and its lists.

    Args:
        directory: The bundle.
        contents: Whether the lists have their elements. Static checks need the names and types alone.

    Returns:
        The rules; None if the bundle has none.
    """
    manifest = json.loads((directory / "manifest.json").read_bytes())
    node = next((one for one in manifest["program"] if one["kind"] == "rules"), None)
    if node is None:
        return None
    lists = {}
    for name, entry in (node.get("lists") or {}).items():
        file = entry.get("file")
        content = None if file is None else (directory / file).read_bytes() if contents else b""
        external = entry.get("external", False)
        lists[name] = RuleList(content, entry["type"], external, entry.get("minimum_version"))
    return BundleRules((directory / node["file"]).read_text("utf-8"), lists, node["salt"])


def read_lists(lists: Mapping[str, ListFile | tuple[Path, str]]) -> dict[str, RuleList]:
    """Read lists from files.

    Args:
        lists: Each list by name, or its file and the type of its elements.

    Raises:
        BundleError: A file cannot be read, or has an unknown type.
    """
    found = {}
    for name, given in lists.items():
        one = given if isinstance(given, ListFile) else ListFile(*given)
        if one.type not in ("string", "int"):
            raise BundleError(f'list "{name}": type "{one.type}" is unknown; use string or int')
        found[name] = RuleList(
            None if one.file is None else _read(one.file, f'list "{name}"'),
            "int" if one.type == "int" else "string",
            one.external,
            one.minimum_version,
        )
    return found


def rules_node(rules: BundleRules, source: str, output: str) -> tuple[RulesNode, dict[str, bytes]]:
    """Return the program node of rules, and their files in a bundle.

    Args:
        rules: The rules.
        source: The slot that the node reads.
        output: The slot that it writes.

    Raises:
        BundleError: There are too many lists.
    """
    if len(rules.lists) > MAX_LISTS:
        raise BundleError(f"rules: {len(rules.lists)} lists, a bundle has at most {MAX_LISTS}; remove some")
    files = {RULES: rules.text.encode()}
    entries = {}
    for number, (name, one) in enumerate(sorted(rules.lists.items()), 1):
        entry: dict[str, object] = {"type": one.type}
        if one.content is not None:
            entry["file"] = f"list-{number:02}.txt"
            files[f"list-{number:02}.txt"] = one.content
        if one.external:
            entry |= {"external": True, "minimum_version": one.minimum_version}
        elif one.content is None or one.minimum_version is not None:
            raise BundleError(
                f'list "{name}": a list without a file and a minimum_version are for external lists; declare '
                "external = true, or give the list a file alone"
            )
        entries[name] = {key: value for key, value in entry.items() if value is not None}
    node = {"file": RULES, "input": source, "output": output, "lists": entries, "salt": rules.key}
    return RulesNode.model_validate(node), files


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f'{what} "{path}" cannot be read: {error.strerror}; correct the path') from None
