"""Tests of the checks and messages that the client makes before it sends anything."""

from __future__ import annotations

import datetime
import math
import struct
import subprocess
import sys
from array import array
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.client import Client, InvalidRequestError, InvalidTargetError
from scorer.client.channel import channel_options, parse_target, parse_targets
from scorer.client.requests import (
    dense_row,
    named_features,
    normalise_eligible,
    packed_rows,
    request_identity,
    with_packed_values,
)
from scorer.v1 import scoring_pb2 as pb


def as_dict(message):
    kinds = {
        "number": lambda f: f.number,
        "category": lambda f: f.category,
        "flag": lambda f: f.flag,
        None: lambda _: None,
    }
    return {feature.name: kinds[feature.WhichOneof("value")](feature) for feature in message.features}


def test_named_features_keep_their_types():
    message = named_features(
        {
            "amount": 12.5,
            "count": 3,
            "country": "NL",
            "returning": True,
            "age": None,
            "f32": np.float32(0.5),
            "i64": np.int64(7),
            "b": np.bool_(False),
            "s": np.str_("DE"),
            "nan": math.nan,
        }
    )
    values = as_dict(message)
    assert math.isnan(values.pop("nan"))
    assert values == {
        "amount": 12.5,
        "count": 3.0,
        "country": "NL",
        "returning": True,
        "age": None,
        "f32": 0.5,
        "i64": 7.0,
        "b": False,
        "s": "DE",
    }
    flags = [f.name for f in message.features if f.WhichOneof("value") == "flag"]
    assert flags == ["returning", "b"]


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"amount": Decimal(1)}, 'feature "amount": Decimal is neither a number'),
        ({"at": datetime.date(2026, 1, 1)}, 'feature "at": date is neither'),
        ({"amount": [1.0]}, 'feature "amount": list is neither'),
        ({"amount": 10**400}, 'feature "amount": the integer is too large'),
        ({3: 1.0}, "feature name 3 is not a string"),
    ],
)
def test_named_features_that_cannot_be_encoded_are_refused(features, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        named_features(features)
    assert_one_line(caught.value)


def assert_one_line(error):
    text = str(error)
    assert "\n" not in text
    assert error.remedy
    assert text.endswith(error.remedy)


@pytest.mark.parametrize(
    "row",
    [
        [1, 2.5, None, True],
        (1.0, 2.5, math.nan, 1),
        np.array([1, 2.5, np.nan, 1]),
        np.array([1, 2.5, np.nan, 1], dtype=np.float32),
        np.array([[9, 1], [9, 2.5], [9, np.nan], [9, 1]])[:, 1],
        array("d", [1, 2.5, math.nan, 1]),
    ],
)
def test_dense_rows_of_every_type_are_encoded(row):
    result = dense_row(row)
    assert result.typecode == "f"
    assert [None if math.isnan(v) else v for v in result] == [1.0, 2.5, None, 1.0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([1.0, "NL"], "dense feature 1 is the text 'NL'"),
        ([1.0, [2.0]], "dense feature 1: list is no number"),
        ("abc", "features are a str"),
        (b"abc", "features are a bytes"),
        (7, "features are a int"),
        (None, "features are a NoneType"),
        (np.zeros((2, 2)), "dense features have 2 dimensions"),
        (np.float64(1.0), "dense features have 0 dimensions"),
    ],
)
def test_dense_rows_that_cannot_be_encoded_are_refused(row, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        dense_row(row)
    assert_one_line(caught.value)


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(st.floats(width=32, allow_nan=False), min_size=width, max_size=width),
            min_size=1,
            max_size=50,
        )
    )
)
def test_appended_values_are_decoded_as_set_values(rows):
    message = pb.ScoreBatchRequest(checkpoint="c", request_id="r", schema_fingerprint=5, rows=len(rows))
    packed, count, width = packed_rows(rows)
    decoded = pb.ScoreBatchRequest.FromString(with_packed_values(message, packed))
    message.values.extend(value for row in rows for value in row)
    assert decoded == message
    assert (count, width) == (len(rows), len(rows[0]))


@pytest.mark.parametrize("size", [1, 31, 32, 4095, 4096, 70_000])
def test_the_length_prefix_is_correct_at_its_boundaries(size):
    packed = struct.pack(f"<{size}f", *range(size))
    decoded = pb.ScoreBatchRequest.FromString(with_packed_values(pb.ScoreBatchRequest(rows=1), packed))
    assert list(decoded.values) == list(range(size))


def test_arrays_and_sequences_are_packed_equally():
    rows = np.arange(12, dtype=np.float64).reshape(4, 3) / 7
    assert packed_rows(rows) == packed_rows(rows.tolist()) == packed_rows(list(rows))
    assert packed_rows(np.asfortranarray(rows)) == packed_rows(rows)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no rows"),
        (np.zeros((0, 3)), "no rows"),
        (np.zeros(3), "rows have 1 dimensions"),
        ([[1.0], [1.0, 2.0]], "row 1 has 2 values, the rows before it 1"),
        ([{"a": 1.0}], "row 0 has features by name"),
        ({"a": [1.0]}, "rows are a dict"),
        ("ab", "rows are a str"),
        (5, "int"),
        ([1.0, 2.0], "features are a float"),
    ],
)
def test_batches_that_cannot_be_encoded_are_refused(rows, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        packed_rows(rows)
    assert_one_line(caught.value)


def test_eligible_sets_are_encoded_from_every_form():
    assert normalise_eligible(None) is None
    assert normalise_eligible(a for a in ("x", "y")) == ("x", "y")
    assert normalise_eligible(bytearray(b"\x05")) == b"\x05"


@pytest.mark.parametrize(
    ("eligible", "words"),
    [
        ([], "is empty"),
        (b"", "mask allows no action"),
        (b"\x00\x00", "mask allows no action"),
        ("3ds", "the single string '3ds'"),
        (["a", 3], "eligible action 3 is a int"),
    ],
)
def test_invalid_eligible_sets_are_refused(eligible, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        normalise_eligible(eligible)
    assert_one_line(caught.value)


@pytest.mark.parametrize("request_id", ["", "x" * 65, "a\nb", "café", 7, b"x"])
def test_request_ids_that_the_server_would_refuse_are_refused(request_id):
    with pytest.raises(InvalidRequestError, match="request_id") as caught:
        request_identity(request_id)
    assert_one_line(caught.value)


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("127.0.0.1:7000", "127.0.0.1:7000"),
        ("scorer.prod.svc:7000", "scorer.prod.svc:7000"),
        ("[::1]:7000", "[::1]:7000"),
        ("dns:///scorer:7000", "dns:///scorer:7000"),
        ("unix:///run/scorer.sock", "unix:/run/scorer.sock"),
        ("unix:/run/scorer.sock", "unix:/run/scorer.sock"),
    ],
)
def test_targets_are_parsed(target, address):
    assert parse_target(target) == address


@pytest.mark.parametrize(
    "target",
    [
        "",
        "localhost",
        "localhost:",
        ":7000",
        "localhost:0",
        "localhost:65536",
        "http://localhost:7000",
        "a b:1",
        "unix://run/scorer.sock",
        "unix:",
        "unix:///",
        "unix:relative",
        "unix:///" + "x" * 120,
        7000,
        None,
    ],
)
def test_targets_that_are_not_an_address_are_refused(target):
    with pytest.raises(InvalidTargetError) as caught:
        Client(target)
    assert_one_line(caught.value)


@pytest.mark.parametrize(
    ("targets", "address"),
    [
        (["127.0.0.1:7000"], "ipv4:127.0.0.1:7000"),
        (("127.0.0.1:7000", "127.0.0.1:7001"), "ipv4:127.0.0.1:7000,127.0.0.1:7001"),
        (["[::1]:7000", "[::1]:7001"], "ipv6:[::1]:7000,[::1]:7001"),
        ("127.0.0.1:7000", "127.0.0.1:7000"),
    ],
)
def test_lists_of_addresses_are_parsed(targets, address):
    assert parse_targets(targets) == address


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ([], "is empty"),
        (["127.0.0.1:7000", "[::1]:7000"], "IPv4 and IPv6"),
        (["127.0.0.1:7000", "127.0.0.1:7000"], "twice"),
        (["scorer:7000", "127.0.0.1:7000"], "'scorer:7000' in a list is no IP address"),
        (["unix:///run/scorer.sock"], "is no IP address"),
        (["127.0.0.1"], "is no address"),
        ([7000], "must be a string"),
    ],
)
def test_lists_that_are_not_addresses_are_refused(targets, words):
    with pytest.raises(InvalidTargetError, match=words) as caught:
        Client(targets)
    assert_one_line(caught.value)


@pytest.mark.parametrize(
    ("targets", "server_name", "authority"),
    [
        ("127.0.0.1:7000", None, None),
        ("127.0.0.1:7000", "scorer.internal", "scorer.internal"),
        ("unix:///run/scorer.sock", None, "localhost"),
        (["127.0.0.1:7000", "127.0.0.1:7001"], None, "127.0.0.1:7000"),
        (["127.0.0.1:7000", "127.0.0.1:7001"], "scorer.internal", "scorer.internal"),
    ],
)
def test_the_authority_is_one_name(targets, server_name, authority):
    options = dict(channel_options(parse_targets(targets), 1 << 20, server_name))
    assert options.get("grpc.default_authority") == authority


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, "1", None, True])
def test_every_client_has_a_finite_deadline(timeout):
    with pytest.raises(InvalidRequestError, match="timeout") as caught:
        Client("localhost:1", timeout=timeout)
    assert_one_line(caught.value)


def test_the_client_works_without_numpy():
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import scorer.client, scorer.aio\n"
        "from scorer.client.requests import dense_row, packed_rows\n"
        "assert list(dense_row([1, 2])) == [1.0, 2.0]\n"
        "assert packed_rows([[1, 2], [3, 4]])[1:] == (2, 2)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
