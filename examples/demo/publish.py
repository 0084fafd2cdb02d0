"""Publish trained models in a registry, and write the settings of a server that follows it."""

from __future__ import annotations

from dataclasses import dataclass

from examples.demo.errors import DemoError
from examples.demo.models import Trained
from examples.demo.output import Output
from examples.demo.plan import Paths
from examples.demo.process import Addresses
from examples.demo.replay import ROUTE
from examples.demo.traffic import AUTHORISE, FRAUD
from examples.fraud.bundles import build_fraud
from examples.oracle import SimpleOracle, build_oracle, near_greedy
from scorer.bundle import PolicySpec
from scorer.learn.training.policies import policy_spec
from scorer.learn.training.settings import PolicySettings
from scorer.learn.training.trained import Built
from scorer.registry import Registry

# Exponent of the loss-ratio policy by version: version 1 has seen little data and explores more. The default
# of `scorer learn` explores less, but the gate of the demo has only a few thousand payments.
EXPONENTS = (8.0, 12.0)
# Exploration is small, because one of the four providers is much better than the others.
ROUTING_EPSILON = 0.05


@dataclass(frozen=True)
class Published:
    """Bundles in the registry: versions 1 and 2 of both models, and the routing bundle if there is one."""

    fraud: tuple[Built, Built]
    oracle: tuple[Built, Built]
    routing: Built | None

    def names(self) -> dict[str, str]:
        """Return a readable name by digest."""
        named = {
            self.fraud[0].digest: "fraud v1",
            self.fraud[1].digest: "fraud v2",
            self.oracle[0].digest: "action v1",
            self.oracle[1].digest: "action v2",
        }
        return named | ({self.routing.digest: "route v1"} if self.routing else {})


def publish(trained: Trained, registry: Registry, paths: Paths, run_id: str, output: Output) -> Published:
    """Build every bundle, push it and point the aliases to version 1.

    Raises:
        DemoError: the registry computes another digest than the builder.
    """

    def action(oracle: SimpleOracle, policy: PolicySpec, name: str) -> Built:
        return build_oracle(oracle, policy, paths.bundles / name, f"{run_id}-{name}")

    def loss_ratio(exponent: float, name: str) -> PolicySpec:
        return policy_spec(PolicySettings(rule="loss_ratio", exponent=exponent), 0.0, 0, f"{run_id}-{name}")

    paths.bundles.mkdir()
    with output.busy("building bundles"):
        frauds = [
            build_fraud(model, paths.bundles / f"fraud-v{number}", f"{run_id}-fraud-v{number}")
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
            raise DemoError(
                f"the registry computed digest {digest} for {built.path.name}, the builder {built.digest}"
            )
    for built in (frauds[0], oracles[0], *extra):
        registry.alias(built.name, "live", built.digest, reason="demo: first version")
    published = Published((frauds[0], frauds[1]), (oracles[0], oracles[1]), routing)
    output.table(
        ("bundle", "digest", "size"),
        [
            (name, digest.removeprefix("sha256:")[:12], f"{registry.show(digest).record.bytes / 1e6:.1f} MB")
            for digest, name in published.names().items()
        ],
    )
    return published


def write_settings(published: Published, paths: Paths, addresses: Addresses) -> None:
    """Write the server's settings file.

    Args:
        published: bundles to serve.
        paths: files of the run.
        addresses: fixed addresses, so that a restarted server has the same ones.
    """
    # The client shares the machine's cores with the server, so violations of the SLA are only counted, and a
    # slower warm-up on a busy core is accepted.
    sla = 'mode = "observe"\nwarmup_max_ratio = 50.0'
    sections = [
        "# Written by the demo; `scorer config example` prints every key.",
        "[server]",
        f'listen = "{addresses.data}"',
        f'control_listen = "{addresses.control}"',
        f'metrics_listen = "{addresses.metrics}"',
        'state_dir = "state"',
        "",
        "[registry]",
        'path = "registry"',
        "poll_ms = 100",
        "",
        "[log]",
        'dir = "decisions"',
    ]
    checkpoints = [(FRAUD, "score", published.fraud[0].name), (AUTHORISE, "action", published.oracle[0].name)]
    if published.routing is not None:
        checkpoints.append((ROUTE, "action", published.routing.name))
    for checkpoint, kind, name in checkpoints:
        sections += ["", f'[checkpoints."{checkpoint}"]', f'kind = "{kind}"', f'alias = "{name}@live"', sla]
    paths.settings.write_text("\n".join(sections) + "\n", encoding="utf-8")
