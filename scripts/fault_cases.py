"""Write the fault cases of docs/fault-cases.toml, with the tests that assert them, to docs/security.md.

A Python test names its cases by `@pytest.mark.fault_case(1, 2)`, a Rust test by the line
`/// Fault cases 1, 2.` above it. An unknown number is an error.

    python scripts/fault_cases.py               # write the table
    python scripts/fault_cases.py --check       # exit code 1 if it is out of date or a case has no test
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "docs" / "fault-cases.toml"
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- fault cases: begin -->", "<!-- fault cases: end -->"

_RUST_CASE = re.compile(r"^\s*///\s*Fault cases? ([\d, and]+)\.\s*$")
_RUST_TEST = re.compile(r"^\s*(?:pub )?(?:async )?fn (\w+)")


@dataclass(frozen=True, order=True)
class Test:
    """A test function and the file that it is in, relative to the repository."""

    file: str
    name: str


def _decorated_cases(decorators: list[ast.expr]) -> Iterator[int]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault_case":
            yield from (int(ast.literal_eval(argument)) for argument in decorator.args)


def python_tests(root: Path) -> Iterator[tuple[int, Test]]:
    """Yield each case that a Python test names, with the test."""
    for path in sorted(root.rglob("test_*.py")):
        text = path.read_text()
        if "fault_case" not in text:
            continue
        file = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for number in _decorated_cases(node.decorator_list):
                    yield number, Test(file, node.name)


def rust_tests(root: Path) -> Iterator[tuple[int, Test]]:
    """Yield each case that a Rust test names, with the test."""
    for path in sorted(root.rglob("*.rs")):
        numbers: list[int] = []
        for line in path.read_text().splitlines():
            if found := _RUST_CASE.match(line):
                numbers += [int(number) for number in re.findall(r"\d+", found[1])]
            elif numbers and (function := _RUST_TEST.match(line)):
                for number in numbers:
                    yield number, Test(str(path.relative_to(ROOT)), function[1])
                numbers = []
        if numbers:
            raise SystemExit(f"error: {path}: fault cases {numbers} are named above no test")


@dataclass(frozen=True)
class Case:
    """A fault and the expected behaviour."""

    number: int
    fault: str
    expected: str


def read_groups(text: str) -> dict[str, list[Case]]:
    """Return the cases of each group by the group's title."""
    return {
        group["title"]: [Case(*case) for case in group["cases"]] for group in tomllib.loads(text)["group"]
    }


def table(groups: dict[str, list[Case]], tests: dict[int, set[Test]]) -> str:
    """Return the Markdown of all groups."""
    lines: list[str] = []
    for title, cases in groups.items():
        lines += ["", f"### {title}", "", "| # | fault | what must happen | tests |", "|---|---|---|---|"]
        for case in cases:
            names = [f"`{test.file}` `{test.name}`" for test in sorted(tests.get(case.number, ()))]
            shown = "<br>".join(names) or "none yet"
            lines.append(f"| {case.number} | {case.fault} | {case.expected} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check the table; return the exit code."""
    groups = read_groups(CASES.read_text())
    numbers = [case.number for cases in groups.values() for case in cases]
    known = set(numbers)
    if twice := sorted(number for number in known if numbers.count(number) > 1):
        raise SystemExit(f"error: docs/fault-cases.toml has case {twice[0]} twice; give one a new number")
    tests: dict[int, set[Test]] = defaultdict(set)
    for number, test in [*python_tests(ROOT / "tests"), *rust_tests(ROOT / "rust")]:
        if number not in known:
            raise SystemExit(f"error: {test.file} {test.name}: docs/fault-cases.toml has no case {number}")
        tests[number].add(test)
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    written = f"{head}{BEGIN}\n{table(groups, tests)}\n{END}{tail}"
    missing = sorted(known - set(tests))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(written)
        print(f"{len(known) - len(missing)} of {len(known)} fault cases have a test")
        if missing:
            print(f"without a test: {missing}")
        return 0
    if written != text:
        print("error: docs/security.md is out of date; write it with `make fault-cases`", file=sys.stderr)
        return 1
    if missing:
        print(f"error: no test names the fault cases {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
