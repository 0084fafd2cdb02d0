"""A parser of deploy/Dockerfile, as far as this project needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parents[2] / "deploy/Dockerfile"
IMAGES = ("serve", "platform", "operator", "ship")


@dataclass
class Stage:
    """The instructions from one FROM to the next, after those of the stage that it continues."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for keyword, rest in self.steps if keyword == instruction]

    def one(self, instruction: str) -> str:
        [rest] = self.all(instruction)
        return rest


def stages(image: str = "serve") -> list[Stage]:
    """Return the stages that the build of one image needs: those that it copies from, then its own.

    The build arguments above the first FROM are filled in.

    Args:
        image: The value of the build argument IMAGE.
    """
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", " ", text)
    arguments: dict[str, str] = {}
    parsed: dict[str, Stage] = {}
    current = None
    known: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "ARG" and current is None:
            name, _, value = rest.partition("=")
            arguments[name] = image if name == "IMAGE" else value
        elif keyword == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", rest)
            assert match, line
            base = _filled(match[1], arguments)
            continued = parsed.get(base)
            current = Stage(continued.base if continued else base, match[2])
            current.steps += continued.steps if continued else []
            parsed[current.name] = current
            known = {}
        else:
            assert current is not None, line
            if keyword == "ARG":
                # An argument above the first FROM is not known in a stage that does not name it.
                known[rest] = arguments[rest]
            current.steps.append((keyword, _filled(rest, known).strip()))
    assert current is not None
    return [*_sources(current, parsed), current]


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)


def _sources(stage: Stage, parsed: dict[str, Stage]) -> list[Stage]:
    """Return the stages from which a stage copies files, and those from which these copy."""
    named = [re.match(r"--from=(\S+)", copy) for copy in stage.all("COPY")]
    direct = [parsed[match[1]] for match in named if match]
    return [one for source in direct for one in (*_sources(source, parsed), source)]
