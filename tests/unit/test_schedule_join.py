"""Tests of the loop's join: logs of several servers, and the key of encrypted features in `[schedule]`."""

from __future__ import annotations

from pathlib import Path

import pytest
from joining import HOUR, POINT, START, Maker, outcome
from logs import write_segment

from scorer.errors import ScorerError
from scorer.learn import experience_files
from scorer.learn.experience import State
from scorer.learn.schedule.generation import EXPERIENCE, run_generation
from scorer.learn.schedule.workspace import Workspace
from scorer.learn.settings import load
from scorer.registry import Registry


@pytest.fixture
def base(tmp_path: Path, built_bundles: dict[str, Path]) -> Path:
    registry = Registry(tmp_path / "registry")
    digest = registry.push(built_bundles["action-1"])
    registry.alias("action-authorise", "live", digest)
    make = Maker(built_bundles["action-1"])
    write_segment(tmp_path / "decisions", 1, 1, [make.decision("a", 0), make.decision("b", 1, 1)])
    write_segment(tmp_path / "second", 1, 1, [outcome("a", 2), make.decision("c", 3)])
    return tmp_path


def _joined(base: Path, more: str) -> dict[str, State]:
    config = base / "learn.toml"
    config.write_text(f'[join]\nhours = 24.0\n[schedule]\ncheckpoint = "{POINT}"\n{more}')
    workspace = Workspace(base / "work")
    report = run_generation(workspace, load(config), base, step="join", as_of_ms=START + 100 * HOUR)
    found = experience_files.read(report.folder / EXPERIENCE)
    return {
        str(name): State(state) for name, state in zip(found.decision_id, found.state.tolist(), strict=True)
    }


def test_an_outcome_at_another_replica_is_found(base: Path) -> None:
    assert _joined(base, "") == {"a": State.MISSING, "b": State.MISSING}
    # Another setting does the step again.
    found = _joined(base, 'logs = ["decisions", "second"]\n')
    assert found == {"a": State.SETTLED, "b": State.MISSING, "c": State.MISSING}


def test_a_key_that_cannot_be_read_ends_the_step(base: Path) -> None:
    with pytest.raises(ScorerError, match="reader key"):
        _joined(base, 'reader_key = "none.key"\n')
