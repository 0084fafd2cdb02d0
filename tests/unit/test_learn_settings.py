"""Tests of learn.toml: defaults, the generated example, and every error with its line."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from scorer.cli import app
from scorer.config.problems import InvalidSettingsError
from scorer.learn import settings


def test_the_printed_example_is_every_default():
    text = CliRunner().invoke(app, ["learn", "config"]).output
    assert settings.parse(text) == settings.LearnSettings() == settings.parse("")
    # What is commented out is an example: it must be accepted as well.
    every = "\n".join(
        line.removeprefix("# ") if re.match(r"# \w+ = ", line) else line for line in text.splitlines()
    )
    given = settings.parse(every)
    assert given.join.days == 56
    assert given.train.policy.gamma_first == 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[join]\nhuors = 3", 'learn.toml:2: join.huors: unknown key; did you mean "hours"?'),
        ("\n[jion]", 'learn.toml:2: jion: unknown key; did you mean "join"?'),
        (
            '[[join.families]]\nname = "a"\nfactors = { x = "y" }\nhours = -1',
            "learn.toml:4: join.families[0].hours: -1 is out of range",
        ),
        ("[train]\ntau = [2]", "learn.toml:1: train: tau: each must be from 0"),
        ('[train.policy]\nrule = "bagging"', "learn.toml:1: train: members: the bagging rule needs"),
        ("[train.policy]\ngamma_growth = 5", "learn.toml:2: train.policy.gamma_growth: 5 is out of range"),
        ("[train", "learn.toml:1:7: not valid TOML"),
    ],
)
def test_mistakes_are_named_with_their_line(text, said):
    with pytest.raises(InvalidSettingsError) as refused:
        settings.parse(text)
    assert said in str(refused.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidSettingsError, match="no such file; `scorer learn config`"):
        settings.load(tmp_path / "learn.toml")
    (tmp_path / "learn.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidSettingsError, match="byte 0 is not UTF-8"):
        settings.load(tmp_path / "learn.toml")


@pytest.mark.parametrize(
    ("keys", "logs"),
    [
        ('log = "a"', ("a",)),
        ('log = "a"\nreplicas = ["b", "c"]', ("a", "b", "c")),
        ('replicas = ["b"]', ("decisions", "b")),
    ],
)
def test_the_keys_before_logs_still_work_and_are_named(tmp_path, keys, logs, capsys):
    file = tmp_path / "learn.toml"
    file.write_text(f"[schedule]\nkeep = 3\n{keys}\n")
    found = settings.load(file).schedule
    assert (found.logs, found.keep) == (logs, 3)
    key = keys.split()[0]
    [line] = capsys.readouterr().err.splitlines()
    written = ", ".join(f'"{one}"' for one in logs)
    assert line == f"warning: {file}:3: schedule.{key}: deprecated; write logs = [{written}]"
    told = []
    assert settings.parse(file.read_text(), warn=told.append).schedule == found
    assert len(told) == 1 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[schedule]\nlogs = ["a"]\nlog = "a"', 'learn.toml:3: schedule.log: is the old form of "logs"'),
        ("[schedule]\nlogs = []", "learn.toml:2: schedule.logs: "),
        ("[schedule]\nlog = 3", "schedule.logs[0]: "),
    ],
)
def test_logs_that_cannot_be_are_named_with_their_line(text, said):
    with pytest.raises(InvalidSettingsError) as refused:
        settings.parse(text, warn=lambda _: None)
    assert said in str(refused.value)
