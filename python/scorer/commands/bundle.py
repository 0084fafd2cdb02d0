"""``scorer bundle``: build, revise, sign, verify, inspect and draw bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.node_times import node_times
from scorer.commands.output import print_json, print_table, size
from scorer.commands.rule_options import LIST_OPTION, given_lists
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle import Inspection, ScoreMapFile
    from scorer.bundle.models import TransformStep
    from scorer.bundle.write import WrittenBundle

app = typer.Typer(
    help="Build, revise, sign, verify and inspect bundles.", no_args_is_help=True, **TYPER_OPTIONS
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the bundle.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SHOWN_ACTIONS = 10


@app.command()
def build(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="TOML file, described in docs/bundle-format.md.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to create.")],
    json: Json = False,
) -> None:
    """Build a bundle from a model file, a schema and data."""
    from scorer.bundle.spec import build_from_spec, read_spec

    built = build_from_spec(spec, output)
    _made(built, json)
    if not (built.path / "covers.bin").exists():
        why = "the model states no usable weights of its nodes (covers)"
        if read_spec(spec).ensemble is not None:
            why = "no single forest explains the score of an ensemble"
        elif read_spec(spec).bundle.model.suffix == ".onnx":
            why = "no forest explains the score of an ONNX model"
        typer.echo(f"{why}, so the bundle gives no reasons and no explanations", err=True)
    if clear := read_spec(spec).clear_features:
        typer.echo(
            f"golden.bin holds values of training rows in the clear for {len(clear)} features "
            f"({', '.join(clear)}); list those with personal data in `sensitive` of [bundle]",
            err=True,
        )


@app.command()
def revise(
    live: Annotated[
        Path, typer.Argument(metavar="LIVE", help="Directory of the bundle; a revision can be revised again.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to create.")],
    overlay: Annotated[
        Path | None,
        typer.Option(
            metavar="JSON", help="JSON file of the new overlay, described in docs/bundle-format.md."
        ),
    ] = None,
    remove_overlay: Annotated[bool, typer.Option("--remove-overlay", help="Remove the overlay.")] = False,
    score_map: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="JSON file of the new score map, such as `fit-map` writes."),
    ] = None,
    remove_score_map: Annotated[
        bool, typer.Option("--remove-score-map", help="Remove the score map.")
    ] = False,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="TOML", help="The new rules, described in docs/rules.md."),
    ] = None,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    remove_rules: Annotated[bool, typer.Option("--remove-rules", help="Remove the rules.")] = False,
    cap: Annotated[
        list[str] | None, typer.Option(metavar="ATTRIBUTE=LAMBDA", help="New price of a cap; repeatable.")
    ] = None,
    notes: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="JSON object that is added to the lineage."),
    ] = None,
    json: Json = False,
) -> None:
    """Create a revision of a bundle: the same forests with other rules, overlay, score map or cap prices."""
    from scorer.bundle.revision import read_notes, read_overlay
    from scorer.bundle.revision import revise as revise_bundle
    from scorer.bundle.rules import read_rules
    from scorer.bundle.score_map import read_score_map

    revised = revise_bundle(
        live,
        output,
        overlay=None if overlay is None else read_overlay(overlay),
        remove_overlay=remove_overlay,
        score_map=None if score_map is None else read_score_map(score_map),
        remove_score_map=remove_score_map,
        rules=None if rules is None else read_rules(rules, given_lists(rule_list)),
        remove_rules=remove_rules,
        caps=dict(_price(entry) for entry in cap or []),
        notes=None if notes is None else read_notes(notes),
    )
    _made(revised, json)


@app.command("fit-map")
def fit_map(
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="Parquet file with scores of the model that gets the map.")
    ],
    old: Annotated[
        Path,
        typer.Argument(
            metavar="OLD", help="Parquet file with scores of the model whose thresholds are kept."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="JSON file to write.")],
    column: Annotated[str, typer.Option("--column", help="Column of the scores in both files.")] = "score",
    json: Json = False,
) -> None:
    """Fit the score map with which a new model keeps the thresholds of an old one."""
    from scorer.bundle.models import to_json
    from scorer.bundle.score_map import fit_score_map, mapped, read_scores, share_difference

    scores, wanted = read_scores(new, column), read_scores(old, column)
    fitted = fit_score_map(scores, wanted)
    try:
        output.write_bytes(to_json(fitted))
    except OSError as error:
        raise BundleError(f'"{output}" cannot be written: {error.strerror}; name another file') from None
    before, after = (share_difference(one, wanted) for one in (scores, mapped(fitted, scores)))
    if json:
        print_json({"path": str(output), "knots": len(fitted.x), "before": before, "after": after})
        return
    typer.echo(
        f"{len(fitted.x)} knots; the shares of scores at or above a threshold differ by at most "
        f"{100 * after:.2f} percentage points ({100 * before:.2f} without the map)"
    )


def _price(entry: str) -> tuple[str, float]:
    attribute, _, text = entry.rpartition("=")
    try:
        price = float(text)
    except ValueError:
        attribute = ""
    if not attribute:
        raise BundleError(f'cap "{entry}" is not of the form ATTRIBUTE=LAMBDA, such as three_ds=0.04')
    return attribute, price


def _made(built: WrittenBundle, json: bool) -> None:
    if json:
        print_json({"digest": built.digest, "path": str(built.path)})
        return
    typer.echo(built.digest)
    from scorer.sdk import credentials

    if credentials.known():
        typer.echo(f"next: scorer change test {built.path} --checkpoint CHECKPOINT")
    else:
        typer.echo(f"next: scorer registry push {built.path}")


@app.command()
def keygen(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="NAME.key is the private key, NAME.pem the public one.")
    ],
    not_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time at which the key expires, such as 2027-01-01T00:00:00Z."),
    ] = None,
    json: Json = False,
) -> None:
    """Create an Ed25519 key pair for signing bundles."""
    from scorer.bundle.signing import new_key

    private, public = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pem")
    key = new_key(private, public, not_after=not_after)
    if json:
        print_json({"key": key, "private": str(private), "public": str(public)})
        return
    typer.echo(f"{key}  {private} (keep it secret), {public} (for bundles.trusted_keys)")


@app.command()
def sign(
    directory: Directory,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Private key; repeatable during a key rotation. Default: $SCORER_SIGNING_KEYS.",
        ),
    ] = None,
    release: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help="Release number of the bundle's name. Servers reject a lower number than they have served. "
            "Default: the time in seconds.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Verify a bundle and sign it. The signature replaces an existing one."""
    from scorer.bundle import signing
    from scorer.bundle import verify as verify_bundle

    verify_bundle(directory)
    made = signing.sign(directory, key or signing.configured_keys(), release=release)
    if json:
        print_json({"name": made.name, "release": made.release, "key": made.key})
        return
    typer.echo(f"signed {made.name} release {made.release} by {made.key}")


@app.command()
def verify(
    directory: Directory,
    digest: Annotated[str | None, typer.Option("--digest", help="Digest that the bundle must have.")] = None,
    trusted_key: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Public key, or directory of keys, to verify the signature with."),
    ] = None,
    json: Json = False,
) -> None:
    """Run the server's verification: hashes, structure, every golden case bit for bit, the signature."""
    from scorer.bundle import verify as verify_bundle
    from scorer.bundle.signing import verify_signature

    signed = verify_signature(directory, trusted_key) if trusted_key else None
    bundle = verify_bundle(directory, digest)
    if json:
        found = {"digest": bundle.digest, "name": bundle.name, "kind": bundle.kind, "ok": True}
        if signed is not None:
            found |= {"release": signed.release, "key": signed.key, "signed_at": signed.signed_at}
        print_json(found)
        return
    by = "" if signed is None else f", release {signed.release} signed by {signed.key}"
    typer.echo(f"ok {bundle.name} ({bundle.kind}) {bundle.digest}{by}")


@app.command()
def inspect(directory: Directory, json: Json = False) -> None:
    """Verify a bundle and show its contents."""
    from scorer.bundle import inspect as inspect_bundle

    inspection = inspect_bundle(directory)
    if json:
        print_json(inspection.model_dump(mode="json", by_alias=True, exclude_none=True))
        return
    _print(inspection)


@app.command()
def graph(
    directory: Directory,
    form: Annotated[
        Literal["text", "dot", "json"],
        typer.Option("--format", help="A table, a graph for Graphviz, or JSON."),
    ] = "text",
    times: Annotated[
        bool,
        typer.Option("--times", help="Add the time of each node: measured here on the golden cases."),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="With --times: take the times from this server, host:port or unix:///path, which has the "
            "bundle at a checkpoint.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, max=600.0, help="With --times: length of the measurement.")
    ] = 1.0,
) -> None:
    """Show the nodes of a bundle's program and the slots between them."""
    from scorer.bundle import inspect as inspect_bundle
    from scorer.bundle.graph import program_graph, time_text, to_dicts, to_dot

    if server is not None and not times:
        raise BundleError("--server is the source of times; add --times, or leave it out")
    inspection = inspect_bundle(directory)
    digest = inspection.manifest.digest
    nodes = program_graph(inspection.manifest.program, len(inspection.data.columns), inspection.nets)
    found = node_times(directory, digest, server, seconds) if times else None
    if form == "dot":
        typer.echo(to_dot(nodes, found))
    elif form == "json":
        print_json(to_dicts(nodes, found))
    else:
        shown = {slot: time_text(one.mean_us) for slot, one in (found or {}).items() if one.timed}
        rows = [
            [
                "" if node.number < 0 else str(node.number),
                node.kind,
                ", ".join(node.reads),
                node.writes,
                node.type + "".join(f" + {column}" for column in node.columns),
                *([] if found is None else [shown.get(node.writes, "")]),
                node.settings,
            ]
            for node in nodes
        ]
        time = [] if found is None else ["time"]
        print_table(["node", "kind", "reads", "writes", "type", *time, "settings"], rows, empty="")


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
        *([("revision", f"{lineage.revision} of {lineage.revision_of}")] if lineage.revision else []),
        ("reasons", "yes" if inspection.explains else "none: the bundle has no covers.bin"),
        *([] if inspection.score_map is None else [("score map", _shown_map(inspection.score_map))]),
        *((f"revision {name}", str(value)) for name, value in lineage.revision_notes.items()),
        *((f"metric {name}", str(value)) for name, value in lineage.metrics.items()),
    ]
    print_table(["bundle", ""], facts, empty="")
    forests = [[str(f["trees"]), str(f["nodes"]), str(f["outputs"])] for f in inspection.forests]
    if forests or not inspection.nets:
        print_table(["trees", "nodes", "outputs"], forests, empty="no forest")
    if inspection.nets:
        nets = [
            [net.file, str(net.columns), str(net.constants), net.shown_operators] for net in inspection.nets
        ]
        print_table(["net", "columns", "constants", "operators"], nets, empty="")
    columns = [("request", feature) for feature in inspection.data.features]
    columns += [("action", feature) for feature in inspection.data.action_features]
    rows = [[f.name, source, f.type, _domain(f), f.missing] for source, f in columns]
    print_table(["feature", "from", "type", "values", "missing"], rows, empty="no features")
    if inspection.functions:
        shown = [
            [f"{one.name}({', '.join(one.parameters)})", one.file, one.export or one.name, f"{one.fuel:,}"]
            for one in inspection.functions
        ]
        print_table(["own function", "module", "export", "fuel"], shown, empty="")
    steps = [step for node in manifest.program if node.kind == "transform" for step in node.steps]
    if steps:
        print_table(["function", "reads", "settings", "column"], [_shown_step(s) for s in steps], empty="")
    _print_end(inspection)
    if inspection.rules:
        shown = [[rule.id, rule.effect, rule.source or "", str(rule.line)] for rule in inspection.rules]
        print_table([f"rule ({len(shown)})", "effect", "source", "line"], shown, empty="")
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


def _shown_step(step: TransformStep) -> list[str]:
    fields = step.model_dump(exclude_none=True)
    function, output = fields.pop("function"), fields.pop("output", "")
    reads = [fields.pop(name) for name in ("feature", "left", "right") if name in fields]
    reads += fields.pop("inputs", [])
    settings = (
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
    )
    return [function, ", ".join(reads), ", ".join(settings), output or f"{reads[0]} (replaced)"]


def _shown_map(score_map: ScoreMapFile) -> str:
    ends = [(score_map.x[at], score_map.y[at]) for at in (0, -1)]
    return f"{len(score_map.x)} knots, " + " to ".join(f"{x:.4g} > {y:.4g}" for x, y in ends)


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
