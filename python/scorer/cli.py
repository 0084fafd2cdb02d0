"""The ``scorer`` command.

Exit codes: 0 done; 1 failed, with one line ``error: ...`` on stderr; 2 wrong usage;
64 settings that cannot be used; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

# Each command: where it lives, and the line that `scorer --help` shows without importing it.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("scorer.commands.serve:serve", "Serve the checkpoints of a settings file."),
    "health": ("scorer.commands.health:health", "Ask a server whether it serves."),
    "status": ("scorer.commands.control:status", "Show what a running server serves."),
    "lanes": ("scorer.commands.control:lanes", "Show or set the lanes of a checkpoint."),
    "observe": ("scorer.commands.observe:observe", "Observe a checkpoint with other bundles."),
    "swap": ("scorer.commands.control:swap", "Send all traffic of a checkpoint to another bundle."),
    "rollback": ("scorer.commands.control:rollback", "Restore the lanes before the current ones."),
    "add-checkpoint": ("scorer.commands.added:add", "Add a checkpoint to a running server."),
    "remove-checkpoint": ("scorer.commands.added:remove", "Remove a checkpoint that was added."),
    "quarantine": ("scorer.commands.quarantine:app", "Bundles that a server never loads again."),
    "unmanage": ("scorer.commands.control:unmanage", "End a platform's management of a checkpoint."),
    "identity": (
        "scorer.commands.identity:app",
        "Certificates and grants: make a trial's, check a server's.",
    ),
    "config": ("scorer.commands.config:app", "Check settings, or print an example."),
    "registry": ("scorer.commands.registry:app", "Store bundles and point aliases to them."),
    "bundle": ("scorer.commands.bundle:app", "Build, sign, verify and inspect bundles."),
    "lists": ("scorer.commands.lists:app", "Publish and compare versions of lists that rules read."),
    "rules": ("scorer.commands.rules:app", "Check, test and backtest rules."),
    "log": ("scorer.commands.log:app", "Read, export and verify the decision log."),
    "outcomes": ("scorer.commands.outcomes:app", "Outcomes: how late they come, and import of files."),
    "drift": ("scorer.commands.drift:app", "Find drift of features, scores and outcomes in logs."),
    "features": (
        "scorer.commands.feature_sets:app",
        "Feature sets: check, compare, build training tables.",
    ),
    "ship": ("scorer.commands.ship:app", "Ship the decision log to a Delta table or to Kafka."),
    "operator": ("scorer.commands.operator:operator", "Run servers in Kubernetes from custom resources."),
    "score": ("scorer.commands.score:score", "Score a table with a bundle."),
    "explain": ("scorer.commands.explain:app", "Explain rows and bundles, and find counterfactuals."),
    "card": ("scorer.commands.card:app", "Model cards of bundles: show, describe, explain."),
    "backup": ("scorer.commands.backup:backup", "Back up registry, decision log and platform."),
    "restore": ("scorer.commands.backup:restore", "Check a backup and restore it."),
    "platform": ("scorer.commands.platform:app", "Run the platform: pages, REST, change requests."),
    "login": ("scorer.commands.login:login", "Store a platform's address and token."),
    "logout": ("scorer.commands.login:logout", "Delete the stored token."),
    "change": ("scorer.commands.change:app", "Bring a bundle to a checkpoint: test, release, roll back."),
    "review": ("scorer.commands.review:app", "Decisions that require a review: list, claim, decide."),
    "compare": ("scorer.commands.compare:compare", "Compare two bundles or change requests."),
    "calendar": ("scorer.commands.calendar:app", "The shadow's calendar: bookings, free slots, freezes."),
    "checkpoints": (
        "scorer.commands.checkpoints:app",
        "Checkpoints that the platform manages, with their lanes.",
    ),
    "mcp": ("scorer.commands.mcp:app", "Tools for agents: serve them, print schemas, list calls."),
    "token": ("scorer.commands.token:app", "Create the keys of decision tokens, and inspect a token."),
    "loadtest": ("scorer.commands.loadtest:loadtest", "Measure a server at a fixed rate against its SLA."),
    "new": ("scorer.commands.new:app", "Make a project folder of your own from a template."),
    "datasets": ("scorer.commands.datasets:app", "Check data sets and keep them on record."),
    "learn": ("scorer.commands.learn:app", "Learn from decisions and their outcomes."),
    "causal": ("scorer.commands.causal:app", "What adoption is worth where nothing was randomised."),
    "audit": ("scorer.commands.audit:app", "Read and verify the platform's audit log."),
}

# What comes with scorer[platform] alone; the message about a missing package names the extra.
PLATFORM_PACKAGES = frozenset(
    {
        "alembic",
        "apprise",
        "fastapi",
        "httpx",
        "jinja2",
        "plotly",
        "psycopg",
        "sqlalchemy",
        "standardwebhooks",
        "uvicorn",
    }
)

# What comes with scorer[ship] alone.
SHIP_PACKAGES = frozenset({"deltalake", "confluent_kafka"})

# What comes with scorer[operator] alone.
OPERATOR_PACKAGES = frozenset({"kopf", "kubernetes"})

# What comes with scorer[mcp] alone.
MCP_PACKAGES = frozenset({"mcp", "mcp_types"})

# Rich help costs 270 ms, most of it imports; plain help is read just as well.
TYPER_OPTIONS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _LazyGroup(TyperGroup):
    """Lists every command, imports one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if not isinstance(target, typer.Typer):
            single = typer.Typer(**TYPER_OPTIONS)
            single.command(cmd_name)(target)
            target = single
        command = typer.main.get_command(target)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(cls=_LazyGroup, **TYPER_OPTIONS)


def _print_version(wanted: bool) -> None:
    if wanted:
        from scorer import bridge

        typer.echo(f"scorer {bridge.__version__} ({bridge.build_profile} build)")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def _scorer(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Decisions on payments while the shopper waits: fraud scores and payment actions over gRPC."""


def main() -> None:
    """Runs the command line; every expected error ends as one line on stderr."""
    from scorer.errors import ScorerError

    try:
        app(prog_name="scorer")
    except ScorerError as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            sys.stderr.write(f"error: {line}\n")
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "scorer":
            raise
        package = error.name.partition(".")[0]
        extras = {
            "mcp": MCP_PACKAGES,
            "ship": SHIP_PACKAGES,
            "operator": OPERATOR_PACKAGES,
            "platform": PLATFORM_PACKAGES,
        }
        extra = next((name for name, packages in extras.items() if package in packages), "train")
        sys.stderr.write(f'error: this command needs the package "{error.name}"; install scorer[{extra}]\n')
        sys.exit(1)
    except BrokenPipeError:
        # The reader (`head`, a pager) has left; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
