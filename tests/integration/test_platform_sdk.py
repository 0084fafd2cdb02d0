"""Tests of the SDK and the command line with the real application, a real server and a running pipeline."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from platforms import SETTINGS, World

from scorer import cli
from scorer.release.model import ChangeEvent, ChangeState, Outcome, Role, Stage
from scorer.sdk import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    PlatformClient,
)


def finish_when_audited(platform: PlatformClient, change: str) -> list[ChangeEvent]:
    """Follow the change request, and end its observation as soon as it starts."""
    events = []
    for event in platform.watch(change):
        events.append(event)
        if event.state is ChangeState.OBSERVING and not any(one.state is event.state for one in events[:-1]):
            platform.finish(change)
    return events


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[World]:
    settings = SETTINGS.replace("[platform]", "[platform]\ntick_ms = 100")
    world = World(tmp_path_factory.mktemp("sdk"), built_bundles, settings=settings)
    yield world
    world.close()


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with world.served() as address:
        world.platform.start()
        yield address


@pytest.fixture
def modeler(world: World, url: str) -> Iterator[PlatformClient]:
    with PlatformClient(url, world.tokens["modeler"], timeout=60) as platform:
        yield platform


@pytest.fixture
def admin(world: World, url: str) -> Iterator[PlatformClient]:
    with PlatformClient(url, world.tokens["admin"], timeout=60) as platform:
        yield platform


def test_the_sdk_uploads_a_directory_and_returns_the_final_report(
    world: World, modeler: PlatformClient
) -> None:
    lines: list[str] = []
    sent: list[tuple[int, int]] = []
    change = modeler.ship_test(
        world.bundles["score-3"],
        "fraud.checkout",
        minutes=30,
        narrate=lines.append,
        progress=lambda done, total: sent.append((done, total)),
    )
    assert [line.split()[0] for line in lines] == ["uploaded", "drafted", "submitted"]
    assert sent and sent[-1][0] == sent[-1][1] > 0
    events = finish_when_audited(modeler, change.id)
    states = list(dict.fromkeys(event.state for event in events))
    assert states[:4] == [
        ChangeState.DRAFT, ChangeState.CHECKS, ChangeState.BOOKED, ChangeState.DEPLOYING,
    ]  # fmt: skip
    assert [event.id for event in events] == sorted({event.id for event in events})
    detail = modeler.change(change.id)
    # There are no decisions, so the verdict is inconclusive, which never promotes.
    assert (detail.change.state, detail.change.verdict) == (ChangeState.DONE, Outcome.INCONCLUSIVE)
    report = modeler.readout(change.id)
    assert report.is_final and report.bundle == change.bundle and report.live_bundle == world.live
    name = report.figures[0].name
    assert modeler.figure(change.id, name).columns == report.figures[0].columns
    assert modeler.figure_csv(change.id, name).splitlines()[0] == ",".join(report.figures[0].columns)
    release = modeler.draft(
        kind="release", project="fraud", checkpoint="fraud.checkout", bundle=change.bundle, title="r"
    )
    with pytest.raises(InvalidError, match="a TEST that passed"):
        modeler.submit(release.id)


def test_a_draft_is_edited_by_its_version(world: World, modeler: PlatformClient) -> None:
    drafted = modeler.draft(
        project="fraud",
        checkpoint="fraud.checkout",
        bundle=world.candidate,
        title="one",
        stages=[Stage(0.1, 5.0)],
        sample=0.5,
    )
    edited = modeler.edit(drafted, title="two", minutes=30.0)
    assert (edited.title, edited.minutes, edited.stages, edited.sample) == (
        "two",
        30.0,
        (Stage(0.1, 5.0),),
        0.5,
    )
    with pytest.raises(ConflictError):
        modeler.edit(drafted, title="three")
    with pytest.raises(InvalidError, match="a draft has no sampling"):
        modeler.edit(edited, sampling=0.1)
    assert modeler.withdraw(edited.id, reason="only a test").state is ChangeState.REJECTED
    assert edited.id in [one.id for one in modeler.changes(project="fraud")]


def test_the_sdk_lists_checkpoints_slots_and_freezes(
    world: World, modeler: PlatformClient, admin: PlatformClient
) -> None:
    assert {one.name for one in modeler.checkpoints()} == {"fraud.checkout", "action.authorise"}
    one = modeler.checkpoint("fraud.checkout")
    assert one.recorded is not None and one.recorded.answer[0].bundle == world.live
    assert modeler.tables("fraud.checkout")[-1].cause == "found"
    with pytest.raises(NotAllowedError):
        modeler.set_sampling("fraud.checkout", sample=0.3)
    assert admin.set_sampling("fraud.checkout", sample=0.3).sample == 0.3
    with pytest.raises(ConflictError):
        admin.rollback_checkpoint("fraud.checkout", reason="nothing before")
    assert modeler.rolled_back_at("fraud.checkout") is None
    now = datetime.now(UTC)
    free = modeler.next_free("fraud.checkout", minutes=30, after=now + timedelta(hours=1))
    assert free.end - free.start == timedelta(minutes=30)
    freeze = admin.add_freeze("always", cron="* * * * *", minutes=60, checkpoints=["action.*"])
    try:
        assert modeler.frozen("fraud.checkout") is None
        window = modeler.frozen("action.authorise")
        assert window is not None and window.freeze.name == "always"
        assert [one.name for one in modeler.freezes()] == ["always"]
        page = modeler.calendar(now, now + timedelta(hours=3), checkpoint="action.authorise")
        assert page.windows
    finally:
        admin.remove_freeze(freeze.id)
    assert modeler.decisions("fraud.checkout") == []
    with pytest.raises(NotFoundError):
        modeler.decision("none")


def test_the_sdk_manages_members_tokens_and_channels(
    world: World, modeler: PlatformClient, admin: PlatformClient
) -> None:
    assert modeler.me().roles == {"fraud": Role.MODELER}
    assert modeler.only_project() == "fraud"
    with pytest.raises(InvalidError, match="--project"):
        admin.only_project()
    result = admin.create_project("wallet", "Wallet", quotas={"bundles": 3})
    assert (result.quotas.bundles, result.quotas.open_changes) == (3, 20)
    assert admin.update_project("wallet", checkpoints=["fraud.checkout"]).checkpoints == ("fraud.checkout",)
    admin.add_user("new")
    assert admin.set_member("wallet", "new", "viewer").role is Role.VIEWER
    assert [one.user for one in admin.members("wallet")] == ["new"]
    new = admin.create_token("phone", Role.VIEWER, user="new")
    with PlatformClient(admin.url, new.secret, timeout=60) as theirs:
        assert [project.name for project in theirs.projects()] == ["wallet"]
        admin.remove_user("new")
        with pytest.raises(NotAuthenticatedError):
            theirs.me()
    channel = admin.add_channel("wallet", "json://127.0.0.1:9/x", severity="error")
    assert channel.id in [one.id for one in admin.channels("wallet")]
    admin.remove_channel(channel.id)
    assert next(iter(admin.audit(project="wallet"))).action.startswith("channel")
    verified = admin.verify_audit()
    assert verified.problems == () and verified.entries > 10
    assert admin.verify_audit(expect=(verified.sequence, verified.head)).problems == ()
    assert admin.verify_audit(expect=(verified.sequence, "0" * 64)).problems
    assert admin.health().status == "ok"


def test_the_sdk_uploads_lists_and_adopts_bundles(world: World, modeler: PlatformClient) -> None:
    info = modeler.upload(world.bundles["score-2"], "fraud")
    assert info.digest == world.candidate
    assert info.digest in [one.digest for one in modeler.bundles("fraud")]
    assert modeler.bundle(info.digest[7:19]).info.digest == info.digest
    assert modeler.adopt("fraud", "fraud-checkout@live").digest == world.live
    with pytest.raises(InvalidError, match="is no bundle"):
        modeler.upload(world.directory, "fraud")
    with pytest.raises(NotFoundError):
        modeler.upload(world.bundles["score-2"], "other")


# --- the command line ---


@pytest.fixture
def scorer(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; return exit code, stdout and stderr."""

    def run(token: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("SCORER_PLATFORM_URL", url)
        monkeypatch.setenv("SCORER_PLATFORM_TOKEN", token)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["scorer", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as left:
            code = int(left.code or 0)
        lines = capsys.readouterr()
        return code, lines.out, lines.err

    return run


Scorer = Callable[..., tuple[int, str, str]]


def test_three_commands_run_a_test_and_write_its_report(
    world: World, url: str, modeler: PlatformClient, scorer: Scorer, tmp_path: Path
) -> None:
    token = world.tokens["modeler"]
    before = {one.id for one in modeler.changes()}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "scorer.cli", "change", "test", str(world.bundles["score-2"])),
            *("--checkpoint", "fraud.checkout", "--minutes", "30"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SCORER_PLATFORM_URL": url, "SCORER_PLATFORM_TOKEN": token},
    )
    with process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("submitted"):
                (change,) = {one.id for one in modeler.changes()} - before
                finish_when_audited(modeler, change)
    text = "".join(lines)
    assert process.returncode == 3, text
    for words in (
        "uploaded",
        "drafted",
        "submitted",
        "checks",
        "deploying",
        "observing",
        "inconclusive",
        "next:",
    ):
        assert words in text, text
    page = tmp_path / "readout.html"
    code, _, refused = scorer(token, "change", "readout", change, "-o", str(page))
    assert code == 0, refused
    html = page.read_text()
    assert "Plotly.newPlot" in html and change in html
    # The page loads nothing from other addresses.
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", html)
    assert "verdict inconclusive" in scorer(token, "change", "readout", change)[1]
    _, shown, _ = scorer(token, "change", "show", change, "--json")
    assert json.loads(shown)["change"]["verdict"] == "inconclusive"
    assert scorer(token, "change", "watch", change)[0] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["change", "approve", "cr-099999"], 'there is no change request "cr-099999"'),
        (["change", "test", ".", "--checkpoint", "fraud.checkout"], "is no bundle"),
        (["calendar", "freeze", "add", "x", "--cron", "0 0 1 1 *", "--minutes", "5"], "admin"),
        (["checkpoints", "show", "nowhere"], "nowhere"),
        (["checkpoints", "rollback", "fraud.checkout", "--reason", "x"], "an owner"),
        (["checkpoints", "versions", "fraud.checkout", "--sort", "size"], "cannot be sorted"),
        (["compare", "fraud-checkout@live", "cr-099999"], 'there is no change request "cr-099999"'),
        (["compare", "fraud-checkout@live", "action-authorise@live"], "no common measures"),
    ],
)
def test_a_refusal_is_one_line(world: World, scorer: Scorer, arguments: list[str], message: str) -> None:
    code, out, error = scorer(world.tokens["modeler"], *arguments)
    assert (code, out) == (1, "")
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["checkpoints"], "fraud.checkout"),
        (["checkpoints", "show", "fraud.checkout"], "live-1"),
        (["checkpoints", "history", "fraud.checkout"], "found"),
        (["checkpoints", "versions", "fraud.checkout", "--sort", "-place"], "live 1"),
        (["change", "list"], "fraud"),
        (["compare", "fraud-checkout@live", "fraud-checkout@live", "--all"], "same bundle"),
        (["calendar", "show"], ""),
        (["calendar", "next-free", "fraud.checkout"], "slot"),
        (["calendar", "freeze", "list"], ""),
    ],
)
def test_lists_are_printed_as_tables_and_as_json(
    world: World, scorer: Scorer, arguments: list[str], words: str
) -> None:
    code, out, error = scorer(world.tokens["viewer"], *arguments)
    assert code == 0 and words in out, error
    json.loads(scorer(world.tokens["viewer"], *arguments, "--json")[1])


def test_a_login_is_stored_and_removed(
    world: World, url: str, scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, code in (("scr_wrong", 1), (world.tokens["viewer"], 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{token}\n"))
        assert scorer("", "login", url)[0] == code
        assert (tmp_path / "scorer" / "token").exists() is (code == 0)
    assert "fraud.checkout" in scorer("", "checkpoints")[1]
    assert scorer("", "logout")[1] == "token deleted\n"
    assert "scorer login URL" in scorer("", "checkpoints")[2]


def test_a_frozen_checkpoint_is_reported_as_frozen(
    world: World, modeler: PlatformClient, admin: PlatformClient
) -> None:
    begun = datetime.now(UTC) - timedelta(minutes=5)
    cron = f"{begun.minute} {begun.hour} * * *"
    freeze = admin.add_freeze("moratorium", cron=cron, minutes=60, checkpoints=["fraud.*"])
    try:
        drafted = modeler.draft(
            project="fraud", checkpoint="fraud.checkout", bundle=world.candidate, title="f"
        )
        with pytest.raises(FrozenError, match="moratorium"):
            modeler.submit(drafted.id, start=datetime.now(UTC))
        modeler.withdraw(drafted.id, reason="frozen")
    finally:
        admin.remove_freeze(freeze.id)
