"""Create docs/screenshots with a real platform, server and browser (`make screenshots`).

There are payments, three users, a TEST that passes and one that fails, a TEST of an action bundle, a RELEASE
that waits for its approval and is then rolled out, and bookings for the next days. The browser takes pictures
of pages, and one of each chart. The script takes about five minutes.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from browser import Visitor, chromium, serving  # noqa: E402
from bundles import tiny_action_bundle  # noqa: E402
from servers import RunningServer, settings, start_server  # noqa: E402
from waiting import wait_until  # noqa: E402

from scorer.registry import Registry  # noqa: E402
from scorer.release.changes import Draft  # noqa: E402
from scorer.release.model import PLATFORM as OURSELVES  # noqa: E402
from scorer.release.model import ChangeKind, ChangeState, Outcome, Role  # noqa: E402
from scorer.release.open import PlatformServices, open_service  # noqa: E402
from scorer.release.requests import NewFreeze  # noqa: E402
from scorer.release.settings import PlatformFile  # noqa: E402
from scorer.v1 import scoring_pb2 as pb  # noqa: E402
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub  # noqa: E402
from scorer.web.app import create_app  # noqa: E402

OUT = ROOT / "docs" / "screenshots"
CHARTS = OUT / "charts"
MOST_BYTES = 150_000
FEATURES = ("amount", "hour", "orders_24h", "km_to_address", "card_age_days", "items")
SERVER = """
[checkpoints."fraud.checkout"]
kind = "score"
alias = "fraud-checkout@live"
p99_ms = 100.0
mode = "observe"
[checkpoints."action.authorise"]
kind = "action"
alias = "action-authorise@live"
p99_ms = 100.0
mode = "observe"
"""
PLATFORM = """
[platform]
database = "platform.sqlite"
tick_ms = 100

[[fleet]]
name = "scorer-1"
control = "{control}"
log = "decisions"

[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
p99_ms = 25.0
sample = 1.0
minutes = 1.0
[checkpoints."fraud.checkout".segments]
bands = {{ amount = [25.0, 75.0, 150.0], hour = [6.0, 12.0, 18.0] }}

[checkpoints."action.authorise"]
alias = "action-authorise@live"
p99_ms = 20.0
"""


def shoppers(count: int, seed: int) -> Any:
    """Generate the features of shoppers: float32 `[count, 6]`."""
    random = np.random.default_rng(seed)
    columns = (
        random.gamma(1.6, 45.0, count).round(2),
        random.integers(0, 24, count),
        random.poisson(1.4, count),
        random.exponential(25.0, count).round(1),
        random.exponential(400.0, count).round(),
        random.integers(1, 9, count),
    )
    return np.stack(columns, axis=1).astype(np.float32)


def measured(model: Any, rows: Any, labels: Any) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a model on rows that it was not trained on."""
    import xgboost as xgb
    from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

    scores = model.predict(xgb.DMatrix(rows, feature_names=list(FEATURES)))
    for name, metric in (
        ("auc", roc_auc_score),
        ("average_precision", average_precision_score),
        ("log_loss", log_loss),
    ):
        yield name, round(float(metric(labels, scores)), 4)


def bundle(directory: Path, *, seed: int, trees: int, drift: float = 0.0) -> str:
    """Build the bundle of a fraud model of synthetic payments; `drift` shifts its labels' log-odds."""
    import xgboost as xgb

    from scorer.bundle import Band, Feature, Lineage, SchemaFile, build_score_bundle

    data = shoppers(12_000, seed=1)
    odds = data[:, 0] / 90 + data[:, 2] * 0.8 + data[:, 3] / 60 - data[:, 4] / 300 - 4.6 + drift
    labels = np.random.default_rng(seed).random(len(data)) < 1 / (1 + np.exp(-odds))
    model = xgb.train(
        {"objective": "binary:logistic", "max_depth": 4, "eta": 0.08, "nthread": 1, "seed": seed},
        xgb.DMatrix(data[:9000], labels[:9000], feature_names=list(FEATURES)),
        trees,
    )
    bands = (("approve", 0.0), ("review", 0.3), ("decline", 0.65))
    return str(
        build_score_bundle(
            directory,
            name="fraud-checkout",
            model=model,
            schema=SchemaFile(features=[Feature(name=name) for name in FEATURES]),
            bands=[Band(start=start, label=label) for label, start in bands],
            training=data[:9000],
            validation=data[9000:],
            lineage=Lineage(
                data_digest=f"sha256:{hashlib.sha256(bytes([seed])).hexdigest()}",
                code_version="8c1d2e7",
                run_id=f"run-{seed}",
                metrics=dict(measured(model, data[9000:], labels[9000:])),
                parameters={"algorithm": "xgboost", "trees": trees, "max_depth": 4, "eta": 0.08},
                importance=model.get_score(importance_type="gain"),
            ),
            golden_cases=256,
            created_at=datetime.now(UTC),
        ).digest
    )


@contextmanager
def traffic(server: RunningServer) -> Iterator[None]:
    """Send requests to both checkpoints within the block."""
    stop = threading.Event()
    stub, people = ScoringServiceStub(server.channel()), shoppers(5000, seed=9)
    context = ("amount", "hour", "count_24h", "distance")

    def named(names: tuple[str, ...], values: Any) -> Any:
        pairs = zip(names, values.tolist(), strict=False)
        return pb.NamedFeatures(features=[pb.Feature(name=name, number=value) for name, value in pairs])

    def shop() -> None:
        number = 0
        while not stop.wait(0.004):
            one, number = people[number % len(people)], number + 1
            paid = f"pay-{810_000 + number}"
            features = named(FEATURES, one)
            stub.Score(pb.ScoreRequest(request_id=paid, checkpoint="fraud.checkout", named=features))
            if number % 4 == 0:
                chosen = named(context, one)
                stub.SelectAction(
                    pb.SelectActionRequest(request_id=paid, checkpoint="action.authorise", named=chosen)
                )

    thread = threading.Thread(target=shop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


class Story:
    """The users and change requests of the screenshots."""

    def __init__(self, platform: PlatformServices, candidate: str, shifted: str, policy: str) -> None:
        self._service = platform.service
        self.tokens: dict[str, str] = {}
        self.began = datetime.now(UTC)
        access = self._service.access
        _, secret = access.bootstrap("root")
        root = access.authenticate(secret)
        access.create_project(root, "fraud", "Fraud at checkout")
        for user in ("mia", "otto", "noor"):
            access.set_member(root, "fraud", user, Role.APPROVER)
            _, self.tokens[user] = access.create_token(root, user=user, label="laptop", role=Role.OWNER)
        for digest in (candidate, shifted, policy):
            self._service.bundles.adopt(self._who("mia"), "fraud", digest)
        weekend = {"cron": "0 18 * * 5", "timezone": "Europe/Amsterdam", "minutes": 3600}
        freeze = {
            "name": "Weekend",
            "kind": "deny",
            "checkpoints": ["action.*"],
            "reason": "No approvers on call",
        }
        self._service.calendar.add_freeze(root, NewFreeze(**freeze, **weekend))
        self._candidate, self._shifted, self._policy = candidate, shifted, policy

    def run(self) -> tuple[str, str, str]:
        """Run the changes up to the report of the RELEASE.

        Returns:
            The ids of the TEST that passed, of the RELEASE that waits, and of the TEST of an action bundle.
        """
        passed = self._submit("mia", "Card-age features of October", self._candidate)
        stopped = self._submit("otto", "Trained on a wrong month", self._shifted)
        policy = self._submit("noor", "Exemptions by amount", self._policy, checkpoint="action.authorise")
        self._book_ahead()
        done = self._until(passed, ChangeState.DONE)
        if done.verdict is not Outcome.PASS:
            raise SystemExit(f"{passed} did not pass: {done.note}")
        self._until(stopped, ChangeState.REJECTED)
        release = self._submit("mia", "Card-age features of October", self._candidate, ChangeKind.RELEASE)
        self._until(release, ChangeState.REPORT, step="approval")
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        self._ahead("noor", "Next in line", ChangeKind.RELEASE, midnight + timedelta(hours=43), 13)
        self._ahead("otto", "For the weekend", ChangeKind.RELEASE, midnight + timedelta(hours=100), 20)
        self._until(policy, ChangeState.DONE, ChangeState.REJECTED)
        return passed, release, policy

    def roll_out(self, release: str) -> None:
        """Approve a RELEASE, and wait until it is in progress and the charts have points."""
        self._service.changes.approve(self._who("otto"), release)
        self._until(release, ChangeState.RELEASED)
        # The charts over time have one point per minute.
        time.sleep(100)

    def flipped(self, change: str) -> str:
        """Return the id of a decision that differs from the live bundle's."""
        return str(self._service.readouts.readout(self._who("mia"), change).examples[0]["decision"])

    def _who(self, user: str) -> Any:
        return self._service.access.authenticate(self.tokens[user])

    def _submit(
        self, user: str, title: str, digest: str, kind: ChangeKind = ChangeKind.TEST, **more: Any
    ) -> str:
        checkpoint = more.pop("checkpoint", "fraud.checkout")
        draft = Draft("fraud", kind, checkpoint, digest, title, minutes=more.pop("minutes", 1.0))
        change = self._service.changes.draft(self._who(user), draft)
        return str(self._service.changes.submit(self._who(user), change.id, **more).id)

    def _ahead(self, user: str, title: str, kind: ChangeKind, start: datetime, hours: int) -> None:
        self._submit(user, title, self._candidate, kind, start=start, minutes=hours * 60.0)

    def _book_ahead(self) -> None:
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        for user, title, hours, length in (
            ("mia", "Without the hour", 26, 16),
            ("noor", "LightGBM instead of XGBoost", 30, 26),
            ("otto", "Deeper trees", 57, 18),
            ("mia", "With the card's age", 82, 14),
            ("noor", "Fewer trees", 124, 26),
        ):
            self._ahead(user, title, ChangeKind.TEST, midnight + timedelta(hours=hours), length)

    def _until(self, change: str, *states: ChangeState, step: str = "") -> Any:
        def reached() -> Any:
            one = self._service.changes.get(self._who("mia"), change).change
            if one.state.is_final and one.state not in states:
                raise SystemExit(f"{change} ended {one.state}: {one.note}")
            return one if one.state in states and step in one.step else None

        return wait_until(reached, f"{change} {states[0]}", seconds=240)


def smaller(path: Path) -> None:
    """Reduce the number of colours of an image, and check its size."""
    from PIL import Image

    with Image.open(path) as picture:
        # This method keeps colours that few pixels have, such as those of a legend, apart from similar ones.
        few = picture.convert("RGB").quantize(
            192, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes; the limit is {MOST_BYTES:,}")


def look(browser: Any, address: str, story: Story, passed: str, release: str, live: str) -> None:
    """Take the screenshots."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, user, path, height in (
        ("home", "otto", "/", 900),
        ("calendar", "mia", "/calendar", 900),
        ("change-request", "otto", f"/changes/{release}", 1250),
        ("readout", "mia", f"/changes/{passed}/readout", 1250),
        ("metrics", "mia", f"/checkpoints/fraud.checkout/metrics?start={story.began:%Y-%m-%dT%H:%M}", 1500),
        ("versions", "mia", "/checkpoints/fraud.checkout/versions", 620),
        ("compare", "mia", f"/compare?left={live}&right={passed}", 1250),
        ("build", "mia", "/builds/new?checkpoint=fraud.checkout", 1000),
        ("try", "mia", "/checkpoints/fraud.checkout/try", 1000),
        ("decision-explorer", "mia", f"/decisions/{story.flipped(passed)}?checkpoint=fraud.checkout", 900),
    ):
        visitor = Visitor(browser, address, size=(1280, height))
        visitor.sign_in(story.tokens[user])
        visitor.open(path)
        if name == "readout":
            visitor.page.locator("#figure-execution").scroll_into_view_if_needed()
            visitor.page.evaluate("document.querySelector('[aria-label=Figures]').scrollIntoView()")
        visitor.check()
        visitor.page.screenshot(path=OUT / f"{name}.png")
        smaller(OUT / f"{name}.png")
        if name == "readout":
            visitor.page.evaluate("scrollTo(0, 0)")
            visitor.page.screenshot(path=OUT / "verdict.png")
            smaller(OUT / "verdict.png")
        visitor.close()


@dataclass(frozen=True)
class ChartPage:
    """A page with charts, each of which has its own picture.

    Attributes:
        path: Address on the platform.
        charts: CSS selector by name of the picture.
        dark: Names of the pictures that are taken in dark mode too.
        user: Who visits the page.
    """

    path: str
    charts: Mapping[str, str]
    dark: tuple[str, ...] = ()
    user: str = "mia"


_SCORES = (
    "execution",
    "data-load",
    "latency",
    "scores",
    "score-cdf",
    "score-score",
    "flips",
    "drops",
    "coverage",
)
_ACTIONS = ("actions", "rewards", "propensities", "flips")
_METRICS = ("rate", "decisions", "outcomes", "execution", "data-load", "fallbacks", "drift")
_COMPARED = ("reference", "observed-scores", "execution", "importance")


def _figures(prefix: str, names: tuple[str, ...]) -> dict[str, str]:
    return {f"{prefix}-{name}": f"#figure-{name}" for name in names}


def chart_pages(story: Story, passed: str, policy: str, live: str, release: str) -> list[ChartPage]:
    """Return every page of the platform that draws charts."""
    own = "/checkpoints/fraud.checkout"
    dark = ("report-latency", "report-scores", "report-score-score", "report-drops")
    return [
        ChartPage(
            f"/changes/{passed}/readout",
            _figures("report", _SCORES) | {"report-segments": "#figure-segments"},
            dark,
        ),
        ChartPage(f"/changes/{policy}/readout", _figures("actions", _ACTIONS)),
        ChartPage(
            f"/compare?left={live}&right={passed}",
            _figures("compare", _COMPARED) | {"compare-swaps": "#swaps"},
        ),
        ChartPage(f"{own}/timeline", {"timeline": "#figure-timeline"}, ("timeline",)),
        ChartPage(
            f"/models/{live.removeprefix('sha256:')}", {"model-reference": "section:has(#plot-reference)"}
        ),
        # The approver of the release has every control of it.
        ChartPage(f"/changes/{release}", {"rollout": "#live-rollout"}, ("rollout",), user="otto"),
        ChartPage(own, {"lanes": "#live-lanes"}, ("lanes",)),
        ChartPage("/", {"overview-tile": ".tile:has-text('fraud.checkout')"}),
        ChartPage(
            f"{own}/metrics?start={story.began:%Y-%m-%dT%H:%M}",
            _figures("metrics", _METRICS),
            ("metrics-execution",),
        ),
    ]


def take_charts(browser: Any, address: str, tokens: Mapping[str, str], pages: list[ChartPage]) -> None:
    """Take the picture of each chart, and of one of each kind in dark mode."""
    CHARTS.mkdir(parents=True, exist_ok=True)
    for page in pages:
        for dark in (False, True) if page.dark else (False,):
            visitor = Visitor(browser, address, size=(1280, 900), dark=dark)
            visitor.sign_in(tokens[page.user])
            visitor.open(page.path)
            visitor.check()
            for name, selector in page.charts.items():
                if not dark or name in page.dark:
                    picture = CHARTS / f"{name}{'-dark' if dark else ''}.png"
                    visitor.page.locator(selector).screenshot(path=picture)
                    smaller(picture)
            visitor.close()


LEARNING = {
    "learning-days": "Value by day",
    "learning-factors": "Shares of factor levels",
    "learning-actions": "Shares of actions",
    "learning-segments": "Difference by segment",
    "learning-calibration": "The candidate's oracle",
    "learning-propensities": "Small propensities",
    "learning-weights": "Mean ",
}
GENERATIONS = {"learning-generations": "Value, estimated", "learning-differences": "Against what was live"}


def take_learning(browser: Any, directory: Path) -> None:
    """Take the pictures of the learning reports of a simulated log whose truth is known."""
    import gates

    from scorer.learn.gate.judge import judge
    from scorer.learn.gate.settings import GateSettings
    from scorer.learn.guardrails.settings import GuardrailSettings
    from scorer.learn.report.history import history_page
    from scorer.learn.report.page import gate_page

    truth = np.full((len(gates.COUNTRIES), gates.K), 0.6)
    truth[:, 1] = 0.8
    bundles = [directory / f"policy-{best}" for best in (0, 1)]
    for best, path in enumerate(bundles):
        gates.bundle(path, prefers=best)
    runs = []
    for number in range(1, 4):
        logged = gates.log(truth, n=6_000, seed=number)
        settings = GateSettings(segments=("country",))
        verdict = judge(
            logged, bundles[1], bundles[0], settings, GuardrailSettings(), experience_digest=logged.digest()
        )
        runs.append((f"2026-0{number}-01", verdict))
    for text, charts in ((gate_page(runs[-1][1]), LEARNING), (history_page(runs), GENERATIONS)):
        file = directory / "report.html"
        file.write_text(text)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        for name, caption in charts.items():
            picture = CHARTS / f"{name}.png"
            page.locator("figure", has_text=caption).first.screenshot(path=picture)
            smaller(picture)
        page.close()


def main() -> None:
    """Start the platform in a temporary directory, and take the screenshots."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scorer-screenshots-")))
        registry = Registry(directory / "registry")
        live = bundle(directory / "live", seed=3, trees=120)
        candidate = bundle(directory / "candidate", seed=3, trees=130)
        shifted = bundle(directory / "shifted", seed=5, trees=120, drift=1.4)
        tiny_action_bundle(directory / "action")
        policy = tiny_action_bundle(directory / "policy", variant=2)
        registry.alias("fraud-checkout", "live", registry.push(directory / "live"))
        registry.alias("action-authorise", "live", registry.push(directory / "action"))
        for name in ("candidate", "shifted", "policy"):
            registry.push(directory / name)
        server = stack.enter_context(start_server(directory, settings(SERVER)))
        stack.enter_context(traffic(server))
        platform = open_service(PlatformFile.parse(PLATFORM.format(control=server.control), base=directory))
        stack.callback(platform.close)
        platform.start()
        wait_until(lambda: platform.service.checkpoints.view(OURSELVES, "fraud.checkout").recorded, "lanes")
        story = Story(platform, candidate, shifted, policy)
        passed, release, tested = story.run()
        address = stack.enter_context(serving(create_app(platform, platform.settings)))
        browser = stack.enter_context(chromium())
        look(browser, address, story, passed, release, live)
        story.roll_out(release)
        take_charts(browser, address, story.tokens, chart_pages(story, passed, tested, live, release))
        take_learning(browser, directory)
    for path in sorted(OUT.rglob("*.png")):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
