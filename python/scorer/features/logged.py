"""Feature values that a server used, from its decision log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.features.canonical import feature_digest
from scorer.features.declaration import FeatureSet
from scorer.features.reading import FeatureSetError, parse_set
from scorer.features.tables import FeatureTableError, TableSource, arrow, database, quoted

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_COMPARED = frozenset({"late", "failed"})
"""Values of `features_defaulted` with which a decision holds defaults that no state of the store explains."""


@dataclass(frozen=True)
class _Bundle:
    """Position of each compared feature in the features of a decision."""

    positions: Mapping[str, int]


def logged_values(
    declared: FeatureSet,
    logs: Sequence[Path],
    bundles: Sequence[Path],
    checkpoint: str,
    decisions: Sequence[str],
) -> pa.Table:
    """Return the served values of a checkpoint's decisions as `scorer.features.parity.compare` takes them.

    A value is left out (null) if the request stated it, if it is sensitive and withheld, or if the server
    used defaults because the source was late or failed. Decisions without a read of the store are left out.

    Args:
        declared: The feature set. A feature that a bundle defines otherwise is left out.
        logs: Directories of decision logs.
        bundles: Directories of bundles, or registries.
        checkpoint: Name of the checkpoint.
        decisions: Files with the column id and a column of keys for each entity, because a log has no keys.

    Raises:
        FeatureTableError: No decision can be compared.
        LogError: A log cannot be read.
    """
    import pyarrow as pa

    from scorer.log import scan
    from scorer.log.bundles import bundle_directories

    directories = bundle_directories(bundles)
    known: dict[str, _Bundle] = {}
    names = [feature.name for feature in declared.features]
    rows: dict[str, list[Any]] = {"id": [], "time": [], **{f"served {name}": [] for name in names}}
    for log in logs:
        for entry in scan(log, kinds=("decision",), checkpoint=checkpoint):
            record = entry.record
            if not record.features_at_us or record.features_defaulted in _NOT_COMPARED:
                continue
            digest = f"sha256:{record.bundle.hex()}"
            if digest not in directories:
                raise FeatureTableError(
                    f"bundles: {digest[:19]}, which made decision {record.decision_id!r}, is in none of the "
                    "directories; add its registry to --bundles"
                )
            if digest not in known:
                known[digest] = _bundle(declared, Path(directories[digest]))
            left_out = {*record.stated_features, *record.withheld}
            rows["id"].append(record.decision_id)
            rows["time"].append(record.features_at_us)
            for name in names:
                position = known[digest].positions.get(name)
                served = None if position is None or position in left_out else record.features[position]
                rows[f"served {name}"].append(served)
    types = {"id": pa.string(), "time": pa.int64()}
    table = pa.table({name: pa.array(of, types.get(name, pa.float64())) for name, of in rows.items()})
    return _with_keys(declared, table, decisions)


def _bundle(declared: FeatureSet, directory: Path) -> _Bundle:
    try:
        content = json.loads((directory / "features.json").read_bytes())
        schema = json.loads((directory / "schema.json").read_bytes())
        used = parse_set(content["set"], f"{directory}: features.json")
    except FileNotFoundError:
        return _Bundle({})
    except (OSError, ValueError, KeyError) as error:
        raise FeatureSetError(f"{directory}: features.json cannot be read: {error}") from None
    columns = [feature["name"] for feature in schema["features"]]
    own = {feature.name for feature in declared.features}
    positions = {
        name: columns.index(column)
        for column, name in content["columns"].items()
        if name in own and feature_digest(used, name) == feature_digest(declared, name)
    }
    return _Bundle(positions)


def _with_keys(declared: FeatureSet, table: pa.Table, decisions: Sequence[str]) -> pa.Table:
    with database(512) as connection:
        source = TableSource(connection, "decisions", list(decisions))
        if "id" not in source.types:
            raise FeatureTableError('decisions: column "id" is missing; it identifies a decision')
        connection.register("logged", table)
        present = [entity for entity in declared.entities if entity in source.types]
        keys = "".join(f", cast(keyed.{quoted(entity)} as varchar) as {quoted(entity)}" for entity in present)
        joined = arrow(
            connection,
            f"select logged.*{keys} from logged join {source.relation} as keyed "
            "on logged.id = cast(keyed.id as varchar) order by logged.id",
        )
    if not len(joined):
        raise FeatureTableError(
            f"decisions: none of the {len(table)} logged decisions with computed features is in the files; "
            "give those with their ids"
        )
    return joined
