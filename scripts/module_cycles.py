"""Find circular dependencies between the modules of each Rust crate.

Within one folder, files may refer to one another. Between folders, and between a folder and a file beside it,
the references must have one direction: a cycle is printed with a line of code for each reference, and the
exit code is 1. Test modules and references between a folder and its contents are ignored.

    python scripts/module_cycles.py [CRATE_DIRECTORY ...]      # default: all crates of rust/
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Module = tuple[str, ...]
"""Path of a module within its crate: `()` is the root, `("answer", "score")` is `crate::answer::score`."""

_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\']+|[^\'\\])\'', re.DOTALL
)
_TEST = re.compile(
    r"#\[cfg\((?:all\()?test\b[^\]]*\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*([;{])"
)
_USE = re.compile(r"^[ \t]*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.MULTILINE)
_PATH = re.compile(r"(?<![\w:])(?:crate|super|self)(?:::\w+)+")


ALLOWED: dict[str, set[str]] = {}
"""Folders whose cycles are not reported, by crate."""


@dataclass(frozen=True)
class Reference:
    """A reference from one module to another."""

    source: Module
    target: Module
    place: str
    """`file:line: text`."""


@dataclass
class Crate:
    """The modules of a crate, their code and their re-exports."""

    modules: dict[Module, Path] = field(default_factory=dict)
    code: dict[Module, str] = field(default_factory=dict)
    exports: dict[tuple[Module, str], list[str]] = field(default_factory=dict)

    def is_folder(self, module: Module) -> bool:
        """Return whether a module has modules inside."""
        return any(len(other) > len(module) and other[: len(module)] == module for other in self.modules)

    def resolve(self, module: Module, path: list[str], depth: int = 8) -> Module | None:
        """Return the module to which a path in `module` leads; None if it is in another crate."""
        match path[0]:
            case "crate":
                at: Module = ()
            case "self":
                at = module
            case "super":
                at = module[:-1]
            case name if (*module, name) in self.modules:
                at = (*module, name)
            case _:
                return None
        for index, name in enumerate(path[1:], start=1):
            if name == "super":
                at = at[:-1]
            elif (*at, name) in self.modules:
                at = (*at, name)
            else:
                export = self.exports.get((at, name))
                if export is not None and depth:
                    found = self.resolve(at, [*export, *path[index + 1 :]], depth - 1)
                    return at if found is None else found
                return at
        return at


def read(source: Path) -> Crate:
    """Read the crate whose root module is in the directory `source`."""
    crate = Crate()
    skipped: set[Module] = set()
    for path in sorted(source.rglob("*.rs")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[0] in {"main", "bin"}:
            continue
        module = parts[:-1] if parts[-1] in {"lib", "mod"} else parts
        code, tests = _without_tests(_NOISE.sub(_blank, path.read_text(encoding="utf-8")))
        skipped |= {(*module, name) for name in tests}
        crate.modules[module], crate.code[module] = path, code
    for module in list(crate.modules):
        if any(module[: len(test)] == test for test in skipped):
            del crate.modules[module], crate.code[module]
    for module, code in crate.code.items():
        for match in _USE.finditer(code):
            for names, name in _leaves(match[2]):
                crate.exports.setdefault((module, name), names)
    return crate


def references(crate: Crate) -> Iterator[Reference]:
    """Yield the references between the modules of a crate."""
    for module, code in crate.code.items():
        mentions = [(match.start(), path) for match in _USE.finditer(code) for path, _ in _leaves(match[2])]
        plain = _USE.sub(_blank, code)
        mentions += [(match.start(), match[0].split("::")) for match in _PATH.finditer(plain)]
        for start, path in mentions:
            target = crate.resolve(module, path)
            if target is not None and target != module:
                line = code.count("\n", 0, start) + 1 + (code[start] == "\n")
                yield Reference(module, target, f"{crate.modules[module]}:{line}: {'::'.join(path)}")


def cycles(crate: Crate) -> list[list[Reference]]:
    """Return the circular dependencies of a crate, one shortest cycle for each folder that is part of one."""
    arrows: dict[Module, dict[Module, Reference]] = {}
    for reference in references(crate):
        source, target = reference.source, reference.target
        common = 0
        while common < min(len(source), len(target)) and source[common] == target[common]:
            common += 1
        if common in {len(source), len(target)}:
            # One module contains the other.
            continue
        # The siblings in the innermost folder that contains both.
        arrows.setdefault(source[: common + 1], {}).setdefault(target[: common + 1], reference)
    found: dict[frozenset[Module], list[Reference]] = {}
    for start in sorted(arrows):
        if crate.is_folder(start) and (cycle := _shortest(arrows, start)):
            found.setdefault(frozenset(step.source[: len(start)] for step in cycle), cycle)
    return list(found.values())


def _shortest(arrows: dict[Module, dict[Module, Reference]], start: Module) -> list[Reference] | None:
    """Return the references of a shortest path from a module back to itself."""
    ways: dict[Module, list[Reference]] = {start: []}
    queue = [start]
    for at in queue:
        for following, reference in arrows.get(at, {}).items():
            way = [*ways[at], reference]
            if following == start:
                return way
            if following not in ways:
                ways[following] = way
                queue.append(following)
    return None


def _leaves(tree: str) -> list[tuple[list[str], str]]:
    """Return the paths of a use tree, each with the name that it brings into scope."""
    tree = tree.strip()
    if (brace := tree.find("{")) >= 0:
        prefix, inner = tree[:brace].strip().removesuffix("::"), tree[brace + 1 : tree.rindex("}")]
        before = prefix.split("::") if prefix else []
        return [
            (
                [*before, *path] if path != ["self"] else before,
                before[-1] if path == ["self"] and before else name,
            )
            for part in _split(inner)
            for path, name in _leaves(part)
        ]
    path, _, alias = (text.strip() for text in tree.partition(" as "))
    names = [name.strip() for name in path.split("::") if name.strip()]
    return [(names, alias or names[-1])] if names else []


def _split(inner: str) -> list[str]:
    """Split the inside of a use tree's braces at its own commas."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(inner):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(inner[start:at])
            start = at + 1
    return [part for part in (*parts, inner[start:]) if part.strip()]


def _blank(match: re.Match[str]) -> str:
    """Replace removed code by blanks, so that line numbers do not change."""
    return re.sub(r"[^\n]", " ", match[0])


def _without_tests(code: str) -> tuple[str, set[str]]:
    """Return the code without its test modules, and the names of those in separate files."""
    files: set[str] = set()
    while match := _TEST.search(code):
        end = match.end()
        if match[2] == ";":
            files.add(match[1])
        else:
            depth = 1
            while depth and end < len(code):
                depth += (code[end] == "{") - (code[end] == "}")
                end += 1
        code = code[: match.start()] + re.sub(r"[^\n]", " ", code[match.start() : end]) + code[end:]
    return code, files


def main(arguments: list[str]) -> int:
    """Check the crates in the given directories, and return the exit code."""
    crates = [Path(argument) for argument in arguments] or sorted(
        manifest.parent for manifest in (ROOT / "rust").glob("*/Cargo.toml")
    )
    failed = False
    for directory in crates:
        for cycle in cycles(read(directory / "src")):
            if cycle[0].source[0] in ALLOWED.get(directory.name, ()):
                continue
            failed = True
            print(
                f"{directory.name}: circular dependency of modules; move the shared code to a separate module"
            )
            for reference in cycle:
                print(
                    f"    {'::'.join(reference.source)} -> {'::'.join(reference.target)}  ({reference.place})"
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
