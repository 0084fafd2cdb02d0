"""Building of request messages, with the checks that do not need the server.

All functions raise `InvalidRequestError` for values that break a rule.
"""

from __future__ import annotations

import math
import sys
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast

from scorer.client.errors import InvalidRequestError
from scorer.v1 import scoring_pb2 as pb


class Array(Protocol):
    """The methods of a NumPy array that the client uses. NumPy itself need not be installed."""

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""

    def tolist(self) -> Any:
        """Return the values as Python numbers, in lists nested by dimension."""


FeatureValue: TypeAlias = float | int | str | bool | None
Dense: TypeAlias = Sequence[float | None] | Array
Rows: TypeAlias = Sequence[Dense] | Array
Features: TypeAlias = Mapping[str, FeatureValue] | Dense
Eligible: TypeAlias = Iterable[str] | bytes | None
ReportedBy: TypeAlias = Literal["reviewer", "merchant", "issuer", "scheme"]
"""Who or what reports an outcome: an `OutcomeSourceKind` of scoring.proto."""

MAX_REQUEST_ID = 64
MAX_REASONS = 32


def number_of_reasons(reasons: int) -> int:
    """Check and return the number of reasons that a request asks for."""
    if isinstance(reasons, bool) or not isinstance(reasons, int) or not 0 <= reasons <= MAX_REASONS:
        raise InvalidRequestError(
            f"reasons {reasons!r} is not a whole number from 0 to {MAX_REASONS}", remedy="ask for fewer"
        )
    return reasons


def request_identity(request_id: str | None) -> str:
    """Check and return the caller's request id, or return a new random id if it is None."""
    if request_id is None:
        return uuid.uuid4().hex
    if not isinstance(request_id, str):
        raise InvalidRequestError(
            f"request_id must be a string, not {type(request_id).__name__}",
            remedy="leave it out for a new one",
        )
    printable = request_id.isascii() and request_id.isprintable()
    if not 1 <= len(request_id) <= MAX_REQUEST_ID or not printable:
        raise InvalidRequestError(
            f"request_id {request_id[:80]!r} is not 1 to {MAX_REQUEST_ID} printable ASCII characters",
            remedy="leave it out for a new one",
        )
    return request_id


def check_timeout(timeout: float) -> float:
    """Check that a time limit in seconds is finite and positive, and return it."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidRequestError(
            f"timeout must be a number of seconds, not {type(timeout).__name__}",
            remedy="leave it out for the client's default",
        )
    if not (math.isfinite(timeout) and timeout > 0):
        raise InvalidRequestError(
            f"timeout {timeout} is not a finite number of seconds above 0",
            remedy="every call has a deadline; leave it out for the client's default",
        )
    return float(timeout)


def named_features(features: Mapping[str, FeatureValue]) -> pb.NamedFeatures:
    """Return the message for features by name. None is a missing value."""
    message = pb.NamedFeatures()
    add = message.features.add
    for name, given in features.items():
        if not isinstance(name, str):
            raise InvalidRequestError(
                f"feature name {name!r} is not a string", remedy="name features by strings"
            )
        feature = add()
        feature.name = name
        # NumPy scalars are not Python numbers; their method `item` returns one.
        item = getattr(given, "item", None)
        value: object = given if item is None else item()
        if value is None:
            continue
        if isinstance(value, bool):
            feature.flag = value
        elif isinstance(value, str):
            feature.category = value
        elif isinstance(value, int | float):
            try:
                feature.number = float(value)
            except OverflowError:
                raise InvalidRequestError(
                    f'feature "{name}": the integer is too large for a double', remedy="pass a smaller number"
                ) from None
        else:
            raise InvalidRequestError(
                f'feature "{name}": {type(value).__name__} is neither a number, a string, a bool nor None',
                remedy="convert it, for instance with float()",
            )
    return message


def dense_row(features: object) -> array[float]:
    """Return one row as float32. None and NaN are missing values.

    Args:
        features: A sequence of numbers, or a one-dimensional array or pandas series.
    """
    values: Any = features
    if isinstance(values, str | bytes):
        raise InvalidRequestError(
            f"features are a {type(values).__name__}",
            remedy="pass a mapping of names or a sequence of numbers",
        )
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if hasattr(values, "ndim") and values.ndim != 1:
        raise InvalidRequestError(
            f"dense features have {values.ndim} dimensions", remedy="pass one row, or use score_batch()"
        )
    if hasattr(values, "tolist"):
        values = values.tolist()
    try:
        return array("f", values)
    except (TypeError, OverflowError):
        return array("f", [_dense_value(i, value) for i, value in enumerate(_iterate(values))])


def _iterate(values: object) -> Iterator[Any]:
    try:
        return iter(cast("Iterable[Any]", values))
    except TypeError:
        raise InvalidRequestError(
            f"features are a {type(values).__name__}",
            remedy="pass a mapping of names or a sequence of numbers",
        ) from None


def _dense_value(position: int, value: object) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str):
        raise InvalidRequestError(
            f"dense feature {position} is the text {value!r}",
            remedy="a category travels as its code, the index in describe().features[i].categories; "
            "or send features by name",
        )
    try:
        return float(cast(float, value))
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequestError(
            f"dense feature {position}: {type(value).__name__} is no number", remedy="convert it with float()"
        ) from None


def packed_rows(given: Rows) -> tuple[bytes, int, int]:
    """Pack many rows as little-endian float32 values, row by row.

    Args:
        given: An array or data frame ``[rows, features]``, or a sequence of rows of equal length.

    Returns:
        The packed values, the number of rows and the number of features.
    """
    rows: Any = given
    if hasattr(rows, "to_numpy"):
        rows = rows.to_numpy()
    if hasattr(rows, "ndim") and hasattr(rows, "astype"):
        if rows.ndim != 2:
            raise InvalidRequestError(
                f"rows have {rows.ndim} dimensions", remedy="pass an array [rows, features]"
            )
        count, width = int(rows.shape[0]), int(rows.shape[1])
        return rows.astype("<f4").tobytes(), _some_rows(count), width
    if isinstance(rows, Mapping | str | bytes):
        raise InvalidRequestError(
            f"rows are a {type(rows).__name__}",
            remedy="pass a sequence of dense rows or an array [rows, features]",
        )
    packed = array("f")
    width = -1
    count = 0
    for row in _iterate(rows):
        if isinstance(row, Mapping):
            raise InvalidRequestError(
                f"row {count} has features by name",
                remedy="a batch takes dense rows in describe().features order",
            )
        dense = dense_row(row)
        if width not in (-1, len(dense)):
            raise InvalidRequestError(
                f"row {count} has {len(dense)} values, the rows before it {width}",
                remedy="make all rows equally long",
            )
        width = len(dense)
        count += 1
        packed.extend(dense)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes(), _some_rows(count), width


def _some_rows(count: int) -> int:
    if count == 0:
        raise InvalidRequestError("the batch has no rows", remedy="send at least one")
    return count


def normalise_eligible(eligible: Eligible) -> tuple[str, ...] | bytes | None:
    """Return eligible actions in the form of a request: a tuple of ids, a bit mask, or None for all."""
    if eligible is None:
        return None
    if isinstance(eligible, bytes | bytearray | memoryview):
        mask = bytes(eligible)
        if not any(mask):
            raise InvalidRequestError(
                "the eligibility mask allows no action", remedy="pass None to allow all"
            )
        return mask
    if isinstance(eligible, str):
        raise InvalidRequestError(
            f"eligible is the single string {eligible!r}", remedy="pass an iterable of action ids"
        )
    ids = tuple(eligible)
    for action in ids:
        if not isinstance(action, str):
            raise InvalidRequestError(
                f"eligible action {action!r} is a {type(action).__name__}", remedy="name actions by their ids"
            )
    if not ids:
        raise InvalidRequestError("the set of eligible actions is empty", remedy="pass None to allow all")
    return ids


def shared_features(features: object) -> pb.NamedFeatures:
    """Return the message for the features that both steps of a request share, which have names."""
    if not isinstance(features, Mapping) and not hasattr(features, "keys"):
        raise InvalidRequestError(
            f"features are a {type(features).__name__}", remedy="pass a mapping of names to values"
        )
    return named_features(cast("Mapping[str, FeatureValue]", features))


def eligible_actions(eligible: tuple[str, ...] | bytes) -> pb.EligibleActions:
    """Return the message for eligible actions that `normalise_eligible` returned."""
    if isinstance(eligible, bytes):
        return pb.EligibleActions(mask=eligible)
    return pb.EligibleActions(ids=eligible)


def outcome_source(kind: ReportedBy | None, identifier: str) -> pb.OutcomeSource | None:
    """Return the source of an outcome; None if neither its kind nor its id is stated.

    Args:
        kind: Who or what reports the outcome; None: not stated.
        identifier: Short id of the source; may be empty.
    """
    if kind is None and not identifier:
        return None
    name = "unspecified" if kind is None else kind
    try:
        value = pb.OutcomeSourceKind.Value(f"OUTCOME_SOURCE_KIND_{name.upper()}")
        return pb.OutcomeSource(kind=value, id=identifier)
    except (AttributeError, TypeError, ValueError):
        raise InvalidRequestError(
            f"source {kind!r} with source_id {identifier!r} cannot be sent",
            remedy='source is "reviewer", "merchant", "issuer", "scheme" or None, and source_id a string',
        ) from None


def with_packed_values(message: pb.ScoreBatchRequest, packed: bytes) -> bytes:
    """Return an encoded batch request with the field `values` appended.

    Fields of a protobuf message may be in any order, so appending the encoded field is equal to setting it.
    This avoids one Python float per value.

    Args:
        message: The request without its values.
        packed: The values, as `packed_rows` returns them.
    """
    field = pb.ScoreBatchRequest.VALUES_FIELD_NUMBER
    header = bytearray([field << 3 | 2])
    size = len(packed)
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    header.append(size)
    return message.SerializeToString() + bytes(header) + packed


def health_request(service: str) -> bytes:
    """Return an encoded `grpc.health.v1.HealthCheckRequest`, whose only field is `service = 1`."""
    name = service.encode()
    if len(name) > 127:
        raise InvalidRequestError(f"service name of {len(name)} bytes is too long", remedy="use at most 127")
    return bytes([0x0A, len(name)]) + name if name else b""
