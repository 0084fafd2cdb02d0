"""From trained models to a registry and the settings of a server that follows it."""

from __future__ import annotations

from dataclasses import dataclass

from examples.demo.errors import DemoError
from examples.demo.models import Trained
from examples.demo.narrate import Narrator
from examples.demo.plan import Places
from examples.demo.replay import ROUTE
from examples.demo.traffic import AUTHORISE, FRAUD
from examples.fraud.bundles import build_fraud
from examples.oracle import build_oracle, near_greedy
from scorer.bundle import PolicySpec
from scorer.learn.bundles import Built
from scorer.learn.oracle import Oracle
from scorer.learn.training.policies import policy_spec
from scorer.learn.training.settings import PolicySettings
from scorer.registry import Registry

# How sharply each version prefers what it takes for better: the first knows little, so it tries more.
# Learning's default is sharper still; here a few thousand payments have to be evidence enough for the gate.
EXPONENTS = (8.0, 12.0)
# The providers are four, and one is far better than the others.
ROUTING_EPSILON = 0.05


@dataclass(frozen=True)
class Published:
    """Bundles in the registry: version one and two of what is swapped, and the routing bundle."""

    fraud: tuple[Built, Built]
    oracle: tuple[Built, Built]
    routing: Built | None

    def names(self) -> dict[str, str]:
        """Digest to a name for people."""
        named = {
            self.fraud[0].digest: "fraud v1",
            self.fraud[1].digest: "fraud v2",
            self.oracle[0].digest: "action v1",
            self.oracle[1].digest: "action v2",
        }
        return named | ({self.routing.digest: "route v1"} if self.routing else {})


def publish(
    trained: Trained, registry: Registry, places: Places, run_id: str, narrator: Narrator
) -> Published:
    """Builds every bundle, pushes it, and points the aliases to the first versions."""

    def action(oracle: Oracle, policy: PolicySpec, name: str) -> Built:
        return build_oracle(oracle, policy, places.bundles / name, f"{run_id}-{name}")

    def loss_ratio(exponent: float, name: str) -> PolicySpec:
        return policy_spec(PolicySettings(rule="loss_ratio", exponent=exponent), 0.0, 0, f"{run_id}-{name}")

    places.bundles.mkdir()
    with narrator.busy("built, with golden cases from XGBoost's own predictions"):
        frauds = [
            build_fraud(model, places.bundles / f"fraud-v{number}", f"{run_id}-fraud-v{number}")
            for number, model in enumerate(trained.fraud, 1)
        ]
        oracles = [
            action(oracle, loss_ratio(sharp, f"action-v{number}"), f"action-v{number}")
            for number, (oracle, sharp) in enumerate(zip(trained.oracle, EXPONENTS, strict=True), 1)
        ]
        routing = None
        if trained.routing:
            routing = action(trained.routing, near_greedy(ROUTING_EPSILON, f"{run_id}-route-v1"), "route-v1")
    extra = [routing] if routing else []
    for built in (*frauds, *oracles, *extra):
        digest = registry.push(built.path)
        if digest != built.digest:
            raise DemoError(f"the registry calls {built.path.name} {digest}, the builder {built.digest}")
    for built in (frauds[0], oracles[0], *extra):
        registry.alias(built.name, "live", built.digest, reason="demo: first version")
    published = Published((frauds[0], frauds[1]), (oracles[0], oracles[1]), routing)
    narrator.table(
        ("bundle", "digest", "size"),
        [
            (name, digest.removeprefix("sha256:")[:12], f"{registry.show(digest).record.bytes / 1e6:.1f} MB")
            for digest, name in published.names().items()
        ],
    )
    return published


def write_settings(published: Published, places: Places) -> None:
    """Writes the settings file of the demo's server."""
    # The client shares the server's cores on a machine that may do other things: shedding is counted only.
    promise = 'mode = "observe"'
    sections = [
        "# Written by the demo; ports are chosen by the system.",
        "[server]",
        'listen = "127.0.0.1:0"',
        'control_listen = "127.0.0.1:0"',
        'metrics_listen = "127.0.0.1:0"',
        'state_dir = "state"',
        "",
        "[registry]",
        'path = "registry"',
        "poll_ms = 100",
        "",
        "[log]",
        'dir = "decisions"',
        "",
        f'[checkpoints."{FRAUD}"]',
        'kind = "score"',
        f'alias = "{published.fraud[0].name}@live"',
        promise,
        "",
        f'[checkpoints."{AUTHORISE}"]',
        'kind = "action"',
        f'alias = "{published.oracle[0].name}@live"',
        promise,
    ]
    if published.routing is not None:
        sections += [
            "",
            f'[checkpoints."{ROUTE}"]',
            'kind = "action"',
            f'alias = "{published.routing.name}@live"',
            promise,
        ]
    places.settings.write_text("\n".join(sections) + "\n", encoding="utf-8")
