"""Writes a verdict where others find it: all of it, or nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from scorer import bridge
from scorer.bundle.write import write_bundle
from scorer.durable import sync_directory, write_atomically
from scorer.learn.errors import DataError
from scorer.learn.gate.verdict import BUNDLE, KEY, Verdict, VerdictEvidence, content_digest
from scorer.learn.report.page import gate_page
from scorer.learn.report.score_page import score_page


def annotate(candidate: Path, evidence: VerdictEvidence, output: Path) -> str:
    """The candidate with the evidence in its lineage: the same program and files, verified again.

    Deterministic: the same candidate and evidence give the same digest.

    Returns:
        The new digest.

    Raises:
        DataError: the candidate is not the one that was judged.
        BundleError: it cannot be written or verified.
    """
    manifest = json.loads((candidate / "manifest.json").read_bytes())
    if (
        manifest["digest"] != evidence.candidate.digest
        or content_digest(manifest) != evidence.candidate.content
    ):
        raise DataError(f'"{candidate}" is not the bundle that was judged ({evidence.candidate.digest[:19]})')
    manifest["lineage"].setdefault("metrics", {})[KEY] = evidence.model_dump(mode="json")
    files = {name: (candidate / name).read_bytes() for name in manifest["files"]}
    head = {name: value for name, value in manifest.items() if name not in {"digest", "files"}}
    sealed = bridge.seal_manifest(json.dumps(head, allow_nan=False), files)
    return write_bundle(output, {**files, "manifest.json": sealed})


def write_verdict(verdict: Verdict, candidate: Path, output: Path) -> Verdict:
    """Writes verdict.json, report.html and, unless it says wait, the bundle to publish.

    The directory appears in one step. Writing the same verdict again changes nothing.

    Returns:
        The verdict with the digest of the bundle to publish.

    Raises:
        DataError: the directory holds another verdict.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        if verdict.evidence.decision != "wait":
            digest = annotate(candidate, verdict.evidence, temporary / BUNDLE)
            verdict = verdict.model_copy(update={"bundle": digest})
        content = verdict.to_bytes()
        if output.exists():
            held = output / "verdict.json"
            if held.is_file() and held.read_bytes() == content:
                return verdict
            raise DataError(f'"{output}" holds another verdict; choose another directory, verdicts are kept')
        page = gate_page if verdict.evidence.scores is None else score_page
        write_atomically(temporary / "report.html", page(verdict).encode())
        write_atomically(temporary / "verdict.json", content)
        temporary.chmod(0o755)
        sync_directory(temporary)
        temporary.rename(output)
        sync_directory(output.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return verdict
