"""``scorer learn config``: print an example of the settings file, or check one."""

from __future__ import annotations

from scorer.commands.settings_file import SettingsArgument, print_or_check


def config(file: SettingsArgument = None) -> None:
    """Print a complete, commented learn.toml, or check one. Exit code 64 if it is not valid."""
    from scorer.learn import settings

    print_or_check(file, settings.example, settings.load)
