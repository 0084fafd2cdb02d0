"""Write tests/fixtures/releases/VERSION.tar.xz and VERSION.protos, which later versions must read.

Run it once for each release, from a build of the release, and commit the files. Do not run it for an older
version.
The tar contains a registry with a bundle and an alias, a decision log with an unsealed segment, and the
platform's SQLite database. VERSION.protos is the FileDescriptorSet of protos/scorer.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/fixtures/releases"
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/support")]


def make_registry(directory: Path) -> None:
    """Create a registry with one live score bundle."""
    from bundles import tiny_score_bundle

    from scorer.registry import Registry

    tiny_score_bundle(directory / "bundle", variant=1)
    made = Registry(directory / "registry")
    made.alias("fraud-checkout", "live", made.push(directory / "bundle"), by="release", reason="fixture")
    made.close()
    shutil.rmtree(directory / "bundle")


def make_log(directory: Path) -> None:
    """Create a log of three scores and an outcome, by a server that is then killed."""
    from servers import SCORE, settings, start_server

    from scorer.client import Client

    context = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}
    text = settings(SCORE + 'durability = "written"\n')
    with start_server(directory, text) as server, Client(server.address, timeout=30) as client:
        for number in range(3):
            client.score("fraud.checkout", context, request_id=f"d{number}", entity=f"customer-{number}")
        client.report_outcome("fraud.checkout", "d0", "fraud", 1.0)
        server.kill()


def make_platform(directory: Path) -> None:
    """Create the database of a platform with one project."""
    from sqlalchemy import insert

    from scorer.release.store import Store, tables

    store = Store(f"sqlite:///{directory}/platform.sqlite")
    row = {"name": "checkout", "title": "Checkout", "checkpoints": ["fraud.checkout"]}
    limits = {"open_changes": 1, "slot_minutes_per_week": 60, "bundles": 1}
    with store.write() as connection:
        values = row | limits | {"created_at": datetime(2026, 3, 2, tzinfo=UTC)}
        connection.execute(insert(tables.projects).values(values))
    store.close()
    # Merges the write-ahead log into the database, which is then a single file.
    with sqlite3.connect(directory / "platform.sqlite") as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def record_protos(protos: Path, target: Path) -> None:
    """Write the descriptors of protos/scorer.

    Args:
        protos: The directory `protos` of a release.
        target: The file to write.
    """
    from grpc_tools import protoc

    files = sorted(str(path) for path in (protos / "scorer").rglob("*.proto"))
    if protoc.main(["protoc", f"--proto_path={protos}", f"--descriptor_set_out={target}", *files]) != 0:
        raise SystemExit(f"protoc rejects {protos}")


def main() -> int:
    """Create the fixtures of the built version, and return the exit code."""
    from scorer import bridge

    target = FIXTURES / f"{bridge.__version__}.tar.xz"
    if target.exists() and "--replace" not in sys.argv[1:]:
        sys.stderr.write(f"{target} exists; a released version's fixture does not change\n")
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        make_registry(directory)
        make_log(directory)
        make_platform(directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:xz") as archive:
            for name in ("registry", "decisions", "platform.sqlite"):
                archive.add(directory / name, name, filter=_plain)
    record_protos(ROOT / "protos", target.with_name(f"{bridge.__version__}.protos"))
    sys.stdout.write(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes\n")
    return 0


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    sys.exit(main())
