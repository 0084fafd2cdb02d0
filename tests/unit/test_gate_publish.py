"""Tests of publishing, from experience to a moved alias: bound to digests, idempotent, never half applied."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from gates import ACTIONS, COUNTRIES, START_MS, K, bundle, greedy, log
from typer.testing import CliRunner

from scorer.bundle import inspect, read_manifest, verify
from scorer.cli import app
from scorer.learn.errors import DataError
from scorer.learn.experience_files import read, write
from scorer.learn.gate.judge import judge
from scorer.learn.gate.publish import publish
from scorer.learn.gate.settings import GateSettings
from scorer.learn.gate.verdict import read_verdict
from scorer.learn.guardrails.settings import CapSettings, GuardrailSettings
from scorer.learn.report.history import history_page, read_runs
from scorer.learn.report.page import gate_page
from scorer.learn.report.write import write_verdict
from scorer.registry import Registry
from scorer.report import ReportPage

TRUTH = np.full((len(COUNTRIES), K), 0.6)
TRUTH[:, 1] = 0.8


class Place:
    """A live bundle that prefers A, a candidate that prefers the better B, and their log."""

    def __init__(self, root: Path) -> None:
        self.live, self.candidate = root / "live", root / "candidate"
        bundle(self.live, prefers=0)
        bundle(self.candidate, prefers=1)
        self.logged = log(TRUTH, n=6_000, seed=1)
        self.experience = root / "experience.parquet"
        write(self.logged, self.experience)

    def verdict(self, **gate):
        settings = GateSettings(segments=("country",), **gate)
        guardrails = GuardrailSettings(caps=(CapSettings(attribute="challenge", limit=0.3),))
        digest = self.logged.digest()
        return judge(self.logged, self.candidate, self.live, settings, guardrails, experience_digest=digest)

    def registry(self, root: Path) -> Registry:
        registry = Registry(root / "registry")
        registry.alias("pay", "live", registry.push(self.live))
        return registry


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("gate"))


@pytest.fixture
def judged(place, tmp_path):
    write_verdict(place.verdict(), place.candidate, tmp_path / "run")
    return tmp_path / "run"


def go(place, run, registry, **changed):
    given = {"alias": "pay@live", "experience": place.experience} | changed
    return publish(run, registry, given["alias"], experience=given["experience"], by="test")


def test_the_verdict_is_on_the_policies_of_both_bundles(place):
    verdict = place.verdict()
    assert verdict.evidence.decision == "promote", verdict.evidence.reasons
    shares = {row["action"]: row for row in verdict.figures["arms"]}
    expected = greedy(1, 1, 0.3)[0]
    assert shares["route=B"]["candidate"] == pytest.approx(expected[1])
    assert shares["route=B"]["live"] == pytest.approx(0.3 / K)
    assert verdict.evidence.live_value.value == pytest.approx(0.6 + 0.2 * 0.3 / K, abs=0.02)
    assert verdict.evidence.value.value == pytest.approx(0.6 + 0.2 * expected[1], abs=0.05)
    assert verdict.evidence.caps[0].candidate.value == pytest.approx(2 * 0.3 / K)
    assert verdict.evidence.window.experience == place.logged.digest()


def test_publishing_moves_the_alias_to_the_same_program_with_the_evidence(place, judged, tmp_path):
    registry = place.registry(tmp_path)
    done = go(place, judged, registry)
    assert done.moved
    assert registry.aliases() == {"pay@live": done.digest}
    published = registry.resolve("pay@live").path
    before, after = read_manifest(place.candidate), read_manifest(published)
    assert after.digest != before.digest
    assert (after.program, after.files, after.created_at) == (before.program, before.files, before.created_at)
    kept = after.lineage.metrics["gate"]
    assert kept == read_verdict(judged).evidence.model_dump(mode="json")
    assert kept["candidate"]["digest"] == before.digest
    assert after.lineage.metrics["learning"] == before.lineage.metrics["learning"]
    assert verify(published).digest == done.digest
    change = registry.history("pay@live")[-1]
    assert "gate: promote" in change.reason
    assert change.by == "test"


def test_publishing_again_changes_nothing(place, judged, tmp_path):
    registry = place.registry(tmp_path)
    first = go(place, judged, registry)
    history = registry.history()
    again = go(place, judged, registry)
    assert (again.moved, again.digest, again.alias) == (False, first.digest, first.alias)
    assert registry.history() == history


def test_a_crash_at_any_step_keeps_the_live_bundle_and_the_next_run_completes_the_publication(
    place, judged, tmp_path
):
    registry = place.registry(tmp_path)
    live = registry.aliases()["pay@live"]
    for step in ("push", "alias"):
        broken = Registry(registry.path)
        if step == "push":
            broken.push = crash
        else:
            broken.alias = crash
        with pytest.raises(KeyboardInterrupt):
            go(place, judged, broken)
        assert registry.aliases() == {"pay@live": live}
    assert go(place, judged, registry).moved


def crash(*_, **__):
    raise KeyboardInterrupt


def test_a_rollback_is_not_undone_by_publishing_again(place, judged, tmp_path):
    registry = place.registry(tmp_path)
    go(place, judged, registry)
    registry.rollback("pay", "live", reason="harm")
    with pytest.raises(DataError, match="was taken back"):
        go(place, judged, registry)
    assert registry.aliases()["pay@live"] == read_verdict(judged).evidence.live.digest


def test_a_mixture_moves_a_separate_alias_and_gives_the_lanes(place, tmp_path):
    few = place.logged.take(slice(0, 1_200))
    verdict = judge(
        few,
        place.candidate,
        place.live,
        GateSettings(margin=0.02, bound_effective=1e9),
        GuardrailSettings(),
        experience_digest=few.digest(),
    )
    assert (verdict.evidence.decision, verdict.evidence.share) == ("mix", 0.02)
    run = tmp_path / "run"
    write_verdict(verdict, place.candidate, run)
    write(few, tmp_path / "few.parquet")
    registry = place.registry(tmp_path)
    live = registry.aliases()["pay@live"]
    done = go(place, run, registry, experience=tmp_path / "few.parquet")
    assert registry.aliases() == {"pay@live": live, "pay@candidate": done.digest}
    assert done.lanes == (("pay@live", 0.98), ("pay@candidate", 0.02))
    assert not go(place, run, registry, experience=tmp_path / "few.parquet").moved


def test_a_verdict_to_wait_changes_nothing(place, tmp_path):
    run = tmp_path / "run"
    write_verdict(place.verdict(min_rows=10**6), place.candidate, run)
    assert sorted(path.name for path in run.iterdir()) == ["report.html", "verdict.json"]
    registry = place.registry(tmp_path)
    before = registry.history()
    assert go(place, run, registry).decision == "wait"
    assert registry.history() == before
    assert len(registry.list()) == 1


def tampered_share(run: Path) -> None:
    path = run / "verdict.json"
    content = json.loads(path.read_text())
    content["evidence"]["settings"]["gate"]["margin"] = 0.5
    path.write_text(json.dumps(content))


def tampered_bundle(run: Path) -> None:
    shutil.rmtree(run / "bundle")
    bundle(run / "bundle", prefers=2)


def tampered_file(run: Path) -> None:
    path = run / "bundle" / "actions.json"
    path.write_bytes(path.read_bytes().replace(b"route=B", b"route=Z"))


def tampered_run(run: Path) -> None:
    """Change the run of the lineage, which makes it another bundle with the same content and evidence."""
    from scorer import bridge

    manifest = json.loads((run / "bundle" / "manifest.json").read_bytes())
    manifest["lineage"]["run_id"] = "another"
    files = {name: (run / "bundle" / name).read_bytes() for name in manifest["files"]}
    head = {name: value for name, value in manifest.items() if name not in {"digest", "files"}}
    (run / "bundle" / "manifest.json").write_bytes(bridge.seal_manifest(json.dumps(head), files))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (tampered_run, "not the bundle of"),
        (tampered_share, "not the one in"),
        (tampered_bundle, "not the bundle of"),
        (tampered_file, "actions.json"),
    ],
)
def test_tampered_bundles_and_verdicts_are_refused(place, judged, tmp_path, tamper, message):
    registry = place.registry(tmp_path)
    before = registry.aliases()
    tamper(judged)
    with pytest.raises(Exception, match=message):
        go(place, judged, registry)
    assert registry.aliases() == before


def test_a_verdict_over_other_decisions_is_refused(place, judged, tmp_path):
    registry = place.registry(tmp_path)
    reward = place.logged.reward.copy()
    reward[7] = 1 - reward[7]
    other = read(place.experience)
    object.__setattr__(other, "reward", reward)
    write(other, tmp_path / "other.parquet")
    with pytest.raises(DataError, match="is not the experience that was judged"):
        go(place, judged, registry, experience=tmp_path / "other.parquet")


def test_a_verdict_against_a_bundle_that_is_no_longer_live_is_refused(place, judged, tmp_path):
    registry = place.registry(tmp_path)
    bundle(tmp_path / "third", prefers=2)
    registry.alias("pay", "live", registry.push(tmp_path / "third"))
    with pytest.raises(DataError, match="judge it against what is live now"):
        go(place, judged, registry)
    with pytest.raises(DataError, match="points nowhere"):
        go(place, judged, registry, alias="pay@other")


def test_the_same_verdict_gives_the_same_bytes_and_another_is_not_overwritten(place, judged):
    before = {path: path.read_bytes() for path in judged.rglob("*") if path.is_file()}
    write_verdict(place.verdict(), place.candidate, judged)
    assert {path: path.read_bytes() for path in judged.rglob("*") if path.is_file()} == before
    with pytest.raises(DataError, match="holds another verdict"):
        write_verdict(place.verdict(margin=0.5), place.candidate, judged)
    assert {path: path.read_bytes() for path in judged.rglob("*") if path.is_file()} == before
    assert not [path for path in judged.parent.iterdir() if path.name.startswith(".")]


def test_a_candidate_that_changed_after_its_verdict_is_refused(place, tmp_path):
    verdict = place.verdict()
    with pytest.raises(DataError, match="is not the bundle that was judged"):
        write_verdict(verdict, place.live, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.iterdir())


def test_a_candidate_is_evaluated_only_on_decisions_that_it_was_not_trained_on(place, tmp_path):
    half = int(place.logged.time_ms[3_000])
    bundle(tmp_path / "newer", prefers=1, learned_until_ms=half)
    verdict = judge(
        place.logged,
        tmp_path / "newer",
        place.live,
        GateSettings(),
        GuardrailSettings(),
        experience_digest="sha256:x",
    )
    assert verdict.evidence.window.start_ms > half
    assert verdict.evidence.window.decisions == int((place.logged.time_ms > half).sum())
    bundle(tmp_path / "newest", prefers=1, learned_until_ms=START_MS + 8 * 86_400_000)
    waits = judge(
        place.logged,
        tmp_path / "newest",
        place.live,
        GateSettings(),
        GuardrailSettings(),
        experience_digest="sha256:x",
    )
    assert waits.evidence.decision == "wait"
    assert waits.evidence.window.decisions == 0
    assert "0 settled decisions" in waits.evidence.reasons[0]
    assert "may the candidate go live" in gate_page(waits)


def test_a_bundle_with_another_catalogue_is_refused(place, tmp_path):
    other = log(TRUTH, n=10, seed=1)
    object.__setattr__(other, "actions", tuple(f"x{at}" for at in range(K)))
    with pytest.raises(DataError, match="another catalogue"):
        judge(other, place.candidate, place.live, GateSettings(), GuardrailSettings(), experience_digest="x")


class Balanced(HTMLParser):
    """An HTML parser that refuses unbalanced tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "br", "path", "use", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_starts_with_the_verdict_and_is_self_contained(place, judged):
    text = (judged / "report.html").read_text()
    parser = Balanced()
    parser.feed(text)
    words = " ".join(parser.text)
    verdict = read_verdict(judged)
    assert words.index("Promote: the candidate is worth") < words.index("Gate")
    for check in verdict.evidence.checks:
        assert check.says in words
    for needed in (
        "Caps",
        "Segments",
        "propensity",
        "weight",
        "predicted",
        "joined",
        "route=B",
        verdict.bundle,
    ):
        assert needed in words
    assert text.count("<svg") == 7
    assert not re.search(r'(src|href)="(?!#)', text), "the report loads nothing"
    assert "<script" not in text


def test_text_in_reports_is_escaped(place, judged):
    evil = '<script>alert("x")</script>&$\\frac'
    content = json.loads((judged / "verdict.json").read_text())
    content["evidence"]["candidate"]["name"] = evil
    content["evidence"]["reasons"] = [evil]
    content["evidence"]["segments"][0]["value"] = evil
    content["evidence"]["checks"][0]["says"] = evil
    content["evidence"]["caps"][0]["attribute"] = evil
    content["figures"]["arms"][0]["action"] = evil
    content["figures"]["joins"][0]["family"] = evil
    (judged / "verdict.json").write_text(json.dumps(content))
    verdict = read_verdict(judged)
    for page in (gate_page(verdict), history_page([(evil, verdict)])):
        assert "<script" not in page
        assert "&lt;script&gt;" in page
    page = ReportPage(evil, evil)
    page.tiles([(evil, evil)])
    page.section(evil, evil)
    page.table((evil,), [(evil,)])
    assert "<script" not in page.text()


def test_the_history_is_in_chronological_order(place, tmp_path):
    for name, rows in (("b", 6_000), ("a", 3_000)):
        part = place.logged.take(slice(0, rows))
        verdict = judge(
            part,
            place.candidate,
            place.live,
            GateSettings(),
            GuardrailSettings(),
            experience_digest=part.digest(),
        )
        write_verdict(verdict, place.candidate, tmp_path / name)
    assert [name for name, _ in read_runs(tmp_path)] == ["a", "b"]
    page = history_page(read_runs(tmp_path))
    assert page.index(">a<") < page.index(">b<")
    with pytest.raises(DataError, match=r"no verdict\.json"):
        read_runs(tmp_path / "a" / "bundle")


def test_the_commands_evaluate_and_publish(place, tmp_path):
    config = tmp_path / "learn.toml"
    config.write_text(
        '[gate]\nsegments = ["country"]\n[[guardrails.caps]]\nattribute = "challenge"\nlimit = 0.3\n'
    )
    run = [
        "learn",
        "gate",
        str(place.experience),
        "--candidate",
        str(place.candidate),
        "--live",
        str(place.live),
    ]
    shown = CliRunner().invoke(app, [*run, "-c", str(config), "-o", str(tmp_path / "runs" / "g1")])
    assert shown.exit_code == 0, shown.output
    assert "Promote: " in shown.output
    place.registry(tmp_path)
    command = ["learn", "publish", str(tmp_path / "runs" / "g1"), "--experience", str(place.experience)]
    command += ["-r", str(tmp_path / "registry"), "--alias", "pay@live"]
    assert "pay@live -> " in CliRunner().invoke(app, command).output
    assert "already points to" in CliRunner().invoke(app, command).output
    shown = CliRunner().invoke(app, ["learn", "report", str(tmp_path / "runs")])
    assert shown.exit_code == 0, shown.output
    assert "generations" in (tmp_path / "runs" / "history.html").read_text()


def test_the_catalogue_of_the_tests_equals_that_of_the_bundles(place):
    assert [action.id for action in inspect(place.live).actions] == [action.id for action in ACTIONS]
