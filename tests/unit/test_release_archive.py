"""Tests of uploaded archives: their permitted content, and every known attack on unpacking."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.release.archive import MAX_FILES, pack, unpack
from scorer.release.errors import InvalidError

LIMIT = 1 << 20


def tar(fill: Callable[[tarfile.TarFile], None], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        fill(archive)
    return buffer.getvalue()


def file(archive: tarfile.TarFile, name: str, content: bytes = b"x", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(content))


def special(archive: tarfile.TarFile, name: str, kind: bytes, target: str = "/etc/passwd") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    archive.addfile(info)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PK\x03\x04" + bytes(600), "a zip archive"),
        (b"{L\x00\x00\x00\x00" + bytes(600), "an XGBoost model (UBJSON)"),
        (b'{"learner": {}}', "JSON"),
        (b"tree\nversion=v4\n", "a LightGBM model"),
        (b"PAR1" + bytes(20), "a Parquet file"),
        (b"\x80\x04\x95" + bytes(20), "a Python pickle"),
        (b"amount,label\n1,0\n", "a text file"),
        (b"", "empty"),
    ],
)
def test_the_format_of_another_file_is_named(data: bytes, what: str, tmp_path: Path) -> None:
    text = refused(data, tmp_path)
    assert f"the file is {what}, not an archive of a bundle" in text
    assert "scorer bundle build" in text


def refused(data: bytes, tmp_path: Path, *, limit: int = LIMIT) -> str:
    inside = tmp_path / "in" / "side"
    inside.mkdir(parents=True)
    with pytest.raises(InvalidError) as caught:
        unpack(io.BytesIO(data), inside, limit=limit)
    assert "\n" not in str(caught.value)
    # Only regular files within the directory were written.
    assert {path.parent for path in tmp_path.rglob("*") if not path.is_dir()} <= {inside}
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]
    return str(caught.value)


def test_a_packed_bundle_is_unpacked_unchanged(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    buffer = io.BytesIO()
    pack(built_bundles["score-1"], buffer)
    again = io.BytesIO()
    pack(built_bundles["score-1"], again)
    assert buffer.getvalue() == again.getvalue()
    into = tmp_path / "into"
    into.mkdir()
    names = unpack(io.BytesIO(buffer.getvalue()), into, limit=LIMIT)
    assert names[0] == "manifest.json"
    assert {p.name: p.read_bytes() for p in into.iterdir()} == {
        p.name: p.read_bytes() for p in built_bundles["score-1"].iterdir()
    }


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("prefix", ["", "./", "fraud/", "./fraud/"])
def test_archives_of_common_tools_are_accepted(
    tmp_path: Path, prefix: str, form: int, compress: Callable[[bytes], bytes]
) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        if prefix:
            special(archive, prefix, tarfile.DIRTYPE, "")
        file(archive, f"{prefix}a.json", b"one", mtime=1.5 if form == tarfile.PAX_FORMAT else 1)
        file(archive, f"{prefix}b.bin", b"two" * 1000)

    assert unpack(io.BytesIO(compress(tar(fill, form=form))), tmp_path, limit=LIMIT) == [
        "a.json",
        "b.bin",
    ]
    assert (tmp_path / "b.bin").read_bytes() == b"two" * 1000


@pytest.mark.fault_case(56)
@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/a", "a/../../b", "..", "x/y/z", "x//y", "./../a", "a/..", "x\\..\\y", "a/.", "//a"],
)
def test_paths_out_of_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    assert "is outside its directory" in refused(tar(lambda a: file(a, name)), tmp_path)


@pytest.mark.fault_case(56)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.FIFOTYPE, "device or pipe"),
        (tarfile.CHRTYPE, "device or pipe"),
        (tarfile.BLKTYPE, "device or pipe"),
        (tarfile.GNUTYPE_SPARSE, "special file"),
        (b"Z", "special file"),
    ],
)
def test_entries_that_are_not_regular_files_are_refused(tmp_path: Path, kind: bytes, message: str) -> None:
    assert message in refused(tar(lambda a: special(a, "model", kind), form=tarfile.GNU_FORMAT), tmp_path)


def test_a_file_behind_a_link_is_refused(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        special(archive, "x", tarfile.SYMTYPE, str(tmp_path))
        file(archive, "x/evil")

    assert "link" in refused(tar(fill), tmp_path)
    assert not (tmp_path / "evil").exists()


def test_a_pax_record_does_not_rename_a_file(tmp_path: Path) -> None:
    data = tar(lambda a: file(a, "plain", pax_headers={"path": "../../evil", "size": "99999999"}))
    with suppress(InvalidError):
        unpack(io.BytesIO(data), tmp_path, limit=LIMIT)
    assert [p.name for p in tmp_path.rglob("*") if p.name == "evil"] == []


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        file(archive, "a")
        file(archive, "a", b"y")

    assert "twice" in refused(tar(fill), tmp_path)


def test_two_directories_are_refused(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        file(archive, "one/a")
        file(archive, "two/b")

    assert "2 directories" in refused(tar(fill), tmp_path)


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        for number in range(MAX_FILES + 1):
            file(archive, f"f{number}")

    assert f"more than {MAX_FILES} files" in refused(tar(fill), tmp_path)


def test_endless_headers_are_refused(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        for _ in range(5 * MAX_FILES):
            special(archive, "d", tarfile.DIRTYPE, "")

    assert "entries" in refused(tar(fill), tmp_path)


def test_a_gzip_bomb_is_refused_at_the_limit(tmp_path: Path) -> None:
    bomb = gzip.compress(tar(lambda a: file(a, "zeros", bytes(64 << 20))), 9)
    assert len(bomb) < 100_000
    assert "upload_mb" in refused(bomb, tmp_path)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) <= LIMIT


def test_a_header_with_a_size_beyond_the_file_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.size = 1 << 32
    assert "is truncated" in refused(info.tobuf() + b"x" * 600, tmp_path)


def test_a_huge_pax_header_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    assert "header of" in refused(info.tobuf(format=tarfile.USTAR_FORMAT), tmp_path)


@pytest.mark.parametrize("data", [b"\x1f\x8b", b"\x1f\x8b" + bytes(50)])
def test_files_that_are_no_archive_are_refused(tmp_path: Path, data: bytes) -> None:
    assert "send a complete tar or tar.gz" in refused(data, tmp_path)


@pytest.fixture(scope="module")
def sound() -> bytes:
    def fill(archive: tarfile.TarFile) -> None:
        file(archive, "manifest.json", b"{}" * 300)
        file(archive, "forest", bytes(range(256)) * 20)

    return tar(fill)


@pytest.mark.parametrize("packed", [False, True])
def test_every_truncation_is_detected(tmp_path: Path, sound: bytes, packed: bool) -> None:
    # An archive ends with two empty blocks, and tarfile fills it up to 10 KiB. One block suffices to
    # detect the end.
    data = gzip.compress(sound) if packed else sound[: len(sound.rstrip(b"\0")) // 512 * 512 + 2 * 512]
    last = len(data) - (512 if not packed else 9)
    for end in range(0, last, 97):
        into = tmp_path / str(end)
        into.mkdir()
        if packed and end > last - 60:
            continue
        with pytest.raises(InvalidError):
            unpack(io.BytesIO(data[:end]), into, limit=LIMIT)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, sound: bytes, data: st.DataObject
) -> None:
    """Any change of bytes gives an InvalidError or regular files in the directory, and nothing else."""
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 1600))] = data.draw(st.integers(0, 255))
    around = tmp_path_factory.mktemp("damage")
    into = around / "into"
    into.mkdir()
    try:
        names = unpack(io.BytesIO(bytes(damaged)), into, limit=LIMIT)
    except InvalidError:
        pass
    else:
        assert sorted(names) == sorted(p.name for p in into.iterdir())
    assert list(around.iterdir()) == [into]
    assert all(path.is_file() and not path.is_symlink() for path in into.iterdir())
