"""Tests that samples of the Prometheus text format are read as servers write them."""

from __future__ import annotations

from scorer.operator.exposition import samples

TEXT = r"""# HELP scorer_lane_share Share of the lane.
# TYPE scorer_lane_share gauge
scorer_lane_share{checkpoint="fraud.checkout",name="a \"b\" {c} \\ \n d"} 0.25
scorer_pressure 1e-3 1700000000000
scorer_latency_bucket{le="+Inf",method="Score"} 7 # {trace_id="ab 12"} 0.5 1700000000.5
scorer_empty{} +Inf
no sample
scorer_word word
"""


def test_labels_values_and_exemplars_are_told_apart() -> None:
    found = list(samples(TEXT))
    assert [(one.name, one.value) for one in found] == [
        ("scorer_lane_share", 0.25),
        ("scorer_pressure", 0.001),
        ("scorer_latency_bucket", 7.0),
        ("scorer_empty", float("inf")),
    ]
    assert found[0].labels == {"checkpoint": "fraud.checkout", "name": 'a "b" {c} \\ \n d'}
    assert found[2].labels == {"le": "+Inf", "method": "Score"}
    assert not found[1].labels
    assert not found[3].labels
