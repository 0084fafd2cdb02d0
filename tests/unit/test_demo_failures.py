"""Tests that every failure of the demo ends with one line that names the step."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from examples.demo.errors import DemoError
from examples.demo.output import Output
from examples.demo.plan import DemoPlan, Paths
from examples.demo.process import ServerProcess, run_command
from examples.demo.run import run_demo
from examples.fraud.transactions import write_transactions
from examples.simulators.transactions import TransactionPlan, simulate_transactions


def fails(paths: Paths, plan: DemoPlan | None = None) -> str:
    with pytest.raises(DemoError) as failed:
        run_demo(paths, plan or DemoPlan.quick(), 0, Output(Console(file=io.StringIO())))
    assert "\n" not in str(failed.value)
    return str(failed.value)


def test_unreadable_transactions_are_reported(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"nothing of the kind")
    text = fails(Paths(tmp_path / "t.parquet", None, tmp_path / "out"))
    assert text.startswith("Data and features: transactions ")
    assert "not a readable Parquet file" in text


def test_an_unreadable_routing_log_is_reported(tmp_path):
    (tmp_path / "r.csv").write_text("a,b\n1,2\n")
    text = fails(Paths(None, tmp_path / "r.csv", tmp_path / "out"))
    assert "column tmsp, country, amount, success, PSP, 3D_secured, card is missing" in text


@pytest.mark.parametrize(
    ("days", "message"),
    [
        (20, "cover 20 days and at least 24 are needed"),
        (24, "cover 24 days and at least 25 are needed"),
    ],
)
def test_a_period_that_is_too_short_is_refused(tmp_path, days, message):
    short = simulate_transactions(TransactionPlan(customers=300, terminals=3_000, days=days), seed=0)
    write_transactions(short, tmp_path / "short.parquet")
    text = fails(Paths(tmp_path / "short.parquet", None, tmp_path / "out"))
    assert message in text
    assert text.startswith("Train two versions")


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    text = fails(Paths(None, None, tmp_path / "file" / "out"))
    assert "choose another with --output" in text


def test_the_traceback_of_an_internal_error_is_written_to_a_file(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero\nand more")

    monkeypatch.setattr("examples.demo.data.features", broken)
    text = fails(Paths(None, None, tmp_path))
    assert text.startswith("Data and features: ZeroDivisionError: by zero; the traceback is in ")
    assert "in broken" in (tmp_path / "traceback.txt").read_text()


def test_earlier_output_is_replaced_and_other_files_are_kept(tmp_path):
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "old").write_text("")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "none").mkdir()
    fails(Paths(tmp_path / "missing.parquet", None, tmp_path))
    assert not (tmp_path / "registry").exists()
    assert not (tmp_path / "summary.json").exists()
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert (tmp_path / "none").is_dir()


def test_the_reason_of_a_failed_server_start_is_reported(tmp_path):
    settings = tmp_path / "scorer.toml"
    settings.write_text('[server]\nlisten = "nonsense"\n')
    with (
        pytest.raises(DemoError, match=r"the server did not start: .*nonsense"),
        ServerProcess(settings, tmp_path / "server.log"),
    ):
        pytest.fail("the server started")
    assert "config_invalid" in (tmp_path / "server.log").read_text()


def test_the_reason_of_a_failed_command_is_reported(tmp_path):
    with pytest.raises(DemoError, match=r"scorer log verify .* failed: ") as failed:
        run_command("log", "verify", "--log", str(tmp_path / "none"))
    assert "none" in str(failed.value)
    assert "\n" not in str(failed.value)
