"""The process of a build: `python -m scorer.release.builds.child FOLDER`.

It reads files that users have sent, so it limits its resources first. It ends when the platform ends
(`scorer.release.children`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """Do the job of a folder and write its result.

    Returns:
        0 if there is a result; 1 if the job failed, with the reason in one line on stderr.
    """
    from scorer.errors import ScorerError
    from scorer.release import children
    from scorer.release.builds import job, limits, making

    # Errors must contain the names of files in this folder and not their paths on the platform's machine.
    os.chdir(sys.argv[1])
    folder = Path()
    wanted = job.read_job(folder)
    children.end_with_the_platform()
    limits.confine(memory_bytes=wanted.memory_bytes, seconds=wanted.seconds, file_bytes=wanted.file_bytes)
    try:
        built = making.make(wanted, folder, lambda words: job.write_progress(folder, words))
    except ScorerError as error:
        return _failed(str(error))
    except MemoryError:
        return _failed(_memory(wanted.memory_bytes))
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        if "alloc" in first or "memory" in first.lower():
            return _failed(_memory(wanted.memory_bytes))
        return _failed(f"the files cannot be read ({type(error).__name__}: {first[:300]}); save them again")
    job.write_result(folder, built)
    return 0


def _memory(limit: int) -> str:
    return (
        f"the files need more than {limit >> 20:,} MiB of memory, which is the limit (builds.memory_mb); "
        "send a smaller table or model, or ask an operator to raise the limit"
    )


def _failed(why: str) -> int:
    sys.stderr.write(f"{why[:1000]}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
