"""``scorer bundle``: build, verify and inspect bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table, size

if TYPE_CHECKING:
    from scorer.bundle import Inspection

app = typer.Typer(help="Build, verify and inspect bundles.", no_args_is_help=True, **TYPER_OPTIONS)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A bundle's directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SHOWN_ACTIONS = 10


@app.command()
def build(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="TOML: see docs/bundle-format.md.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The directory to make.")],
    json: Json = False,
) -> None:
    """Build a bundle from a model file, a schema and data."""
    from scorer.bundle.spec import build_from_spec

    built = build_from_spec(spec, output)
    if json:
        print_json({"digest": built.digest, "path": str(built.path)})
        return
    typer.echo(built.digest)
    typer.echo(f"next: scorer registry push {built.path}")


@app.command()
def verify(
    directory: Directory,
    digest: Annotated[str | None, typer.Option("--digest", help="The digest it must have.")] = None,
    json: Json = False,
) -> None:
    """Check everything that the server checks: hashes, structure, every golden case bit for bit."""
    from scorer.bundle import verify as verify_bundle

    bundle = verify_bundle(directory, digest)
    if json:
        print_json({"digest": bundle.digest, "name": bundle.name, "kind": bundle.kind, "ok": True})
        return
    typer.echo(f"ok {bundle.name} ({bundle.kind}) {bundle.digest}")


@app.command()
def inspect(directory: Directory, json: Json = False) -> None:
    """Verify a bundle and show what it is."""
    from scorer.bundle import inspect as inspect_bundle

    inspection = inspect_bundle(directory)
    if json:
        print_json(inspection.model_dump(mode="json", by_alias=True, exclude_none=True))
        return
    _print(inspection)


def _print(inspection: Inspection) -> None:
    manifest = inspection.manifest
    lineage = manifest.lineage
    facts = [
        ("name", manifest.name),
        ("kind", manifest.kind),
        ("digest", manifest.digest),
        ("created", manifest.created_at),
        ("schema fingerprint", inspection.schema_fingerprint),
        ("program", " > ".join(node.kind for node in manifest.program)),
        ("data digest", lineage.data_digest),
        ("code version", lineage.code_version),
        ("run", lineage.run_id),
        ("libraries", ", ".join(f"{name} {version}" for name, version in lineage.library_versions.items())),
        *((f"metric {name}", str(value)) for name, value in lineage.metrics.items()),
    ]
    print_table(["bundle", ""], facts, empty="")
    forests = [[str(f["trees"]), str(f["nodes"]), str(f["outputs"])] for f in inspection.forests]
    print_table(["trees", "nodes", "outputs"], forests, empty="no forest")
    columns = [("request", feature) for feature in inspection.data.features]
    columns += [("action", feature) for feature in inspection.data.action_features]
    rows = [[f.name, source, f.type, _domain(f), f.missing] for source, f in columns]
    print_table(["feature", "from", "type", "values", "missing"], rows, empty="no features")
    _print_end(inspection)
    reference = inspection.reference
    distributions = [
        [
            name,
            str(d.count),
            f"{d.mean:.4f}",
            *(f"{_quantile(d.quantiles, q):.4f}" for q in (0.01, 0.5, 0.99)),
        ]
        for name, d in (("training", reference.training), ("validation", reference.validation))
    ]
    print_table(["scores", "count", "mean", "p1", "p50", "p99"], distributions, empty="")
    files = [[name, size(entry.bytes), entry.sha256] for name, entry in manifest.files.items()]
    print_table(["file", "size", "sha256"], files, empty="")


def _print_end(inspection: Inspection) -> None:
    end = inspection.manifest.program[-1]
    if end.kind == "threshold":
        print_table(["decision", "from"], [[b.label, f"{b.start:g}"] for b in end.bands], empty="")
    elif end.kind == "policy":
        settings = end.policy.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True)
        settings.pop("salt")
        print_table(["policy", ""], [[name, str(value)] for name, value in settings.items()], empty="")
        shown = [
            [action.id, _attributes(action.attributes)] for action in inspection.actions[:_SHOWN_ACTIONS]
        ]
        print_table([f"action ({len(inspection.actions)})", "attributes"], shown, empty="")
        if len(inspection.actions) > _SHOWN_ACTIONS:
            typer.echo(f"... and {len(inspection.actions) - _SHOWN_ACTIONS} more; --json lists all")


def _domain(feature: Any) -> str:
    if feature.type == "category":
        shown = ", ".join(feature.categories[:4])
        return f"{len(feature.categories)}: {shown}{', ...' if len(feature.categories) > 4 else ''}"
    if feature.minimum is None and feature.maximum is None:
        return "any" if feature.type == "number" else "true, false"
    low = "" if feature.minimum is None else f"{feature.minimum:g}"
    high = "" if feature.maximum is None else f"{feature.maximum:g}"
    return f"{low} .. {high}"


def _attributes(attributes: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in attributes.items())


def _quantile(quantiles: list[float], q: float) -> float:
    return quantiles[round(q * (len(quantiles) - 1))]
