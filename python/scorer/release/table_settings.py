"""Section `[tables]` of platform.toml: shipped tables that the platform reads instead of logs."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from scorer.log.source.settings import SourceSettings


class TableSettings(SourceSettings):
    """The tables of `scorer ship` that the platform reads, for servers whose logs it cannot reach."""

    urls: list[str] = Field(
        default=[],
        max_length=16,
        description="Directories or URLs of tables: `[delta] url` of the shippers. The records of all "
        "servers that ship to them are read, except of those whose log is read from a directory.",
        examples=[["s3://decisions/lake"]],
    )
    refresh_seconds: float = Field(
        default=5.0, ge=0, le=3_600, description="Shortest interval of looks for new rows, in seconds."
    )

    @field_validator("urls")
    @classmethod
    def _are_places(cls, value: list[str], info: ValidationInfo) -> list[str]:
        base = (info.context or {}).get("base", Path())
        found = []
        for url in value:
            plain = url.removeprefix("delta:").rstrip("/")
            if not plain or "#" in plain:
                raise ValueError(f'"{url}" is no place of tables; write [delta] url of `scorer ship`')
            found.append(plain if "://" in plain else str(Path(base) / Path(plain).expanduser()))
        if twice := sorted({one for one in found if found.count(one) > 1}):
            raise ValueError(f'"{twice[0]}" is given twice; name each table once')
        return found
