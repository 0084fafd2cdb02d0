"""Write the table of tools in docs/agents.md from their definitions. With `--check`, fail if it differs.

python scripts/agent_tools.py
python scripts/agent_tools.py --check
"""

from __future__ import annotations

import sys
from pathlib import Path

from scorer.release.agents.catalogue import PRODUCTS, TOOLS

TARGET = Path(__file__).resolve().parent.parent / "docs/agents.md"
BEGIN, END = "<!-- tools: begin -->", "<!-- tools: end -->"


def table() -> str:
    """Return the table of all tools, by product."""
    lines = ["| tool | product | role | effect | what it does |", "|---|---|---|---|---|"]
    for product in PRODUCTS:
        for tool in TOOLS.values():
            if tool.product == product:
                effect = "draft" if tool.drafts else "read"
                lines.append(f"| `{tool.name}` | {product} | {tool.role} | {effect} | {tool.description} |")
    return "\n".join(lines)


def main() -> int:
    """Write or check the table."""
    text = TARGET.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--check" in sys.argv:
        if wanted != text:
            print("error: docs/agents.md is out of date; run scripts/agent_tools.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
