"""The outcome join against a naive pass over all reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.log import OutcomeJoin
from scorer.v1.log_pb2 import OutcomeRecord

REPORTS = st.lists(
    st.builds(
        OutcomeRecord,
        checkpoint=st.sampled_from(["c", "d"]),
        decision_id=st.sampled_from(["1", "2"]),
        kind=st.sampled_from(["fraud", "chargeback"]),
        revision=st.integers(0, 3),
        value=st.sampled_from([0.0, 1.0, 0.5]),
    ),
    max_size=40,
)


@pytest.mark.fault_case(77)
@given(REPORTS)
def test_the_first_report_of_the_highest_revision_counts(reports: list[OutcomeRecord]) -> None:
    join = OutcomeJoin()
    for sequence, report in enumerate(reports, 1):
        join.add(sequence, report)
    for checkpoint in ("c", "d"):
        for decision in ("1", "2"):
            mine = [r for r in reports if (r.checkpoint, r.decision_id) == (checkpoint, decision)]
            counts = join.of(checkpoint, decision)
            assert set(counts) == {r.kind for r in mine}
            for kind, reported in counts.items():
                of_kind = [r for r in mine if r.kind == kind]
                top = max(r.revision for r in of_kind)
                first = next(r for r in of_kind if r.revision == top)
                assert (reported.revision, reported.value) == (top, first.value)


@given(REPORTS)
def test_every_report_is_new_a_duplicate_or_a_conflict(reports: list[OutcomeRecord]) -> None:
    join = OutcomeJoin()
    for sequence, report in enumerate(reports, 1):
        join.add(sequence, report)
    kept = list(join)
    assert len(kept) + join.duplicates + len(join.conflicts) == len(reports) == join.reports
    assert sum(not counts for *_, counts in kept) == join.superseded
    for conflict in join.conflicts:
        assert conflict.first.sequence < conflict.other.sequence
        assert conflict.first.value != conflict.other.value
