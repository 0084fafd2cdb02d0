"""A parser of deploy/Dockerfile, as far as this project needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parents[2] / "deploy/Dockerfile"


@dataclass
class Stage:
    """The instructions from one FROM to the next."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for keyword, rest in self.steps if keyword == instruction]

    def one(self, instruction: str) -> str:
        [rest] = self.all(instruction)
        return rest


def stages() -> list[Stage]:
    """Return the stages of the Dockerfile, with the build arguments above the first FROM filled in."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", " ", text)
    arguments: dict[str, str] = {}
    parsed: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "ARG" and not parsed:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif keyword == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", rest)
            assert match, line
            base = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], match[1])
            parsed.append(Stage(base, match[2]))
        else:
            parsed[-1].steps.append((keyword, rest.strip()))
    return parsed
