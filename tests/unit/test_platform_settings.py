"""Tests of platform.toml: which values are valid, and the messages for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from scorer.config.problems import InvalidSettingsError
from scorer.release.model import GateSpec, Stage
from scorer.release.settings import PlatformFile, example

MINIMAL = '[checkpoints."fraud.checkout"]\nalias = "fraud-checkout@live"\n'


def parse(text: str, **environment: str) -> PlatformFile:
    return PlatformFile.parse(text, base=Path("/etc/scorer"), environment=environment)


def refusal(text: str, **environment: str) -> str:
    with pytest.raises(InvalidSettingsError) as caught:
        parse(text, **environment)
    return str(caught.value)


def test_the_example_contains_every_key_with_its_default() -> None:
    from_example, bare = parse(example()), parse(MINIMAL)
    assert from_example.platform == bare.platform
    assert from_example.checkpoints["fraud.checkout"] == bare.checkpoints["fraud.checkout"]
    shown = example()
    for model in (type(bare.platform), type(bare.checkpoints["fraud.checkout"]), type(from_example.fleet[0])):
        for key, field in model.model_fields.items():
            assert f"\n{key} = " in shown or f"\n# {key} = " in shown or f".{key}]\n" in shown
            assert field.description, f"{key} has no explanation"


def test_commented_lines_of_the_example_are_valid() -> None:
    uncommented = "\n".join(
        line.removeprefix("# ")
        if line.startswith(("# public_url =", "# trusted_proxy", "# gates = ")) and " = " in line
        else line
        for line in example().splitlines()
    )
    settings = parse(uncommented)
    assert settings.platform.public_url == "https://scorer.example.com"
    assert settings.platform.trusted_proxy_secret_file == Path("/etc/scorer/proxy.secret")
    gates = settings.checkpoints["fraud.checkout"].gates
    assert [type(gate) for gate in gates] == [GateSpec, GateSpec]


def test_relative_paths_start_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "platform.toml"
    file.write_text('[[fleet]]\nname = "a"\ncontrol = "127.0.0.1:1"\nlog = "../log"\n' + MINIMAL)
    settings = PlatformFile.load(file)
    assert settings.platform.database == f"sqlite:///{tmp_path}/conf/platform.sqlite"
    assert settings.platform.data_dir == tmp_path / "conf" / "platform"
    assert settings.platform.registry == str(tmp_path / "conf" / "registry")
    assert settings.fleet[0].log == tmp_path / "conf" / ".." / "log"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("state.sqlite", "sqlite:////etc/scorer/state.sqlite"),
        ("sqlite:///state.sqlite", "sqlite:////etc/scorer/state.sqlite"),
        ("sqlite:////var/lib/state.sqlite", "sqlite:////var/lib/state.sqlite"),
        ("postgresql://scorer@db/platform", "postgresql+psycopg://scorer@db/platform"),
        ("postgresql+psycopg://scorer@db/platform", "postgresql+psycopg://scorer@db/platform"),
        ("$DATABASE", "postgresql+psycopg://scorer:secret@db/platform"),
    ],
)
def test_database_urls_are_checked(written: str, meant: str) -> None:
    settings = parse(
        f'[platform]\ndatabase = "{written}"\n' + MINIMAL,
        DATABASE="postgresql://scorer:secret@db/platform",
    )
    assert settings.platform.database == meant


def test_stages_and_gates_are_parsed() -> None:
    settings = parse(
        MINIMAL
        + "stages = [{ share = 0.1, minutes = 5.0 }, { share = 0.5, minutes = 10 }]\n"
        + 'gates = [{ metric = "error_rate", success = "== 0", min_rows = 10 }]\n'
    )
    checkpoint = settings.checkpoints["fraud.checkout"]
    assert checkpoint.stages == (Stage(0.1, 5.0), Stage(0.5, 10.0))
    assert checkpoint.gates == (GateSpec("error_rate", "== 0", min_rows=10),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "platform.toml: checkpoints: no checkpoint is defined"),
        ("[platform", "platform.toml:1:10: not valid TOML"),
        (
            MINIMAL + "slot = 3\n",
            'platform.toml:3: checkpoints."fraud.checkout".slot: unknown key; did you mean "slots"?',
        ),
        (MINIMAL + "slots = 0\n", "0 is out of range; it must be at least 1"),
        (MINIMAL + "sample = 0.0\n", "0.0 is out of range; it must be above 0"),
        (MINIMAL + "sample = 1.1\n", "1.1 is out of range; it must be at most 1"),
        (MINIMAL + "minutes = 500\nmax_minutes = 60\n", "60 is less than minutes (500)"),
        (MINIMAL + "pool = true\n", 'role = "shadow"; add one'),
        (MINIMAL + "filter = 'amount > 3'\n", "the filter is not JSON"),
        (MINIMAL + """filter = '[{"feature": "a", "op": "~"}]'\n""", "is not a condition; ops are =="),
        (MINIMAL + """filter = '[{"feature": "a", "op": "missing", "value": 1}]'\n""", "is not a condition"),
        (
            MINIMAL + "stages = [{ share = 0.5, minutes = 1 }, { share = 0.2, minutes = 1 }]\n",
            "must increase",
        ),
        (MINIMAL + "stages = [{ share = 1.0, minutes = 1 }]\n", "stages[0].share: 1.0 is out of range"),
        (MINIMAL + 'gates = [{ metric = "a", succes = "x" }]\n', 'unknown key; did you mean "success"?'),
        (
            MINIMAL
            + 'gates = [{metric="error_rate", success="== 0"}, {metric="error_rate", success="< 1%"}]\n',
            "error_rate is judged twice",
        ),
        (
            MINIMAL + 'gates = [{ metric = "flip_rate", success = "around 3" }]\n',
            '"around 3" is no comparison; write for instance "<= 0.02 upper95"',
        ),
        ('[platform]\nlisten = "0.0.0.0:80"\n' + MINIMAL, "set allow_remote = true"),
        ('[platform]\nallow_remote = true\nlisten = "0.0.0.0:80"\n' + MINIMAL, "its https:// address"),
        (
            '[platform]\nallow_remote = true\nlisten = "[::]:80"\npublic_url = "http://scorer"\n' + MINIMAL,
            "its https:// address",
        ),
        ('[web]\ntrusted_proxies = ["10.0.0.1/8"]\n' + MINIMAL, "is not a network"),
        ('[web]\ntrusted_proxies = ["proxy"]\n' + MINIMAL, "is not a network"),
        ('[platform]\nnotification_networks = ["here"]\n' + MINIMAL, "is not a network"),
        (
            '[platform]\ndatabase = "mysql://u:hunter2@h/d"\n' + MINIMAL,
            '"mysql://" is not a supported database',
        ),
        ('[platform]\ndatabase = "sqlite:///:memory:"\n' + MINIMAL, "is not durable"),
        ('[platform]\ndatabase = "$NOWHERE"\n' + MINIMAL, "environment variable NOWHERE is not set"),
        ('[platform]\ntrusted_proxy_header = "X-User"\n' + MINIMAL, "needs both"),
        ('[platform]\nregistry = "mlflow:ftp://x"\n' + MINIMAL, "platform.registry"),
        ('[[fleet]]\nname = "a"\ncontrol = "nowhere"\n' + MINIMAL, '"nowhere" is not an address'),
        (
            '[[fleet]]\nname = "a"\ncontrol = "h:1"\n[[fleet]]\nname = "a"\ncontrol = "h:2"\n' + MINIMAL,
            'two servers have the name "a"',
        ),
    ],
)
def test_refusals_name_the_key_the_rule_and_the_remedy(text: str, message: str) -> None:
    assert message in refusal(text)


def test_an_interval_may_have_a_unit() -> None:
    gates = 'gates = [{metric="error_rate", success="== 0", interval="5m", count=12}]\n'
    (gate,) = parse(MINIMAL + gates).checkpoints["fraud.checkout"].gates
    assert (gate.interval_seconds, gate.count) == (300, 12)
    assert "is no duration" in refusal(MINIMAL + gates.replace("5m", "soon"))


def test_a_refused_database_does_not_show_its_password() -> None:
    assert "hunter2" not in refusal('[platform]\ndatabase = "mysql://u:hunter2@h/d"\n' + MINIMAL)


def test_all_problems_are_reported_together() -> None:
    text = refusal("[platform]\ntick_ms = 1\nlisten = 5\n" + MINIMAL + "p99_ms = -1.0\n")
    assert len(text.splitlines()) == 3


def test_the_error_of_a_missing_file_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingsError, match="scorer platform config"):
        PlatformFile.load(tmp_path / "platform.toml")
