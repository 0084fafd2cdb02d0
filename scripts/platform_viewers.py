"""Measure the CPU use of the platform for viewers of one change request, as a share of a core.

The platform serves in this process. The viewers are in another process and send the requests of the pages'
script: a long poll for events, and the page again after each event. They belong to several users with
different rights. The script prints the processor time of this process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

_VIEWERS = """
import asyncio, re, sys
import httpx

url, change, count, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]

async def viewer(place):
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        form = (await client.get("/login")).text
        csrf = re.search('name="csrf" value="([^"]*)"', form)
        fields = {"token": tokens[place % len(tokens)], **({"csrf": csrf[1]} if csrf else {})}
        signed = await client.post("/login", data=fields, headers={"Origin": url})
        if signed.status_code != 303:
            raise SystemExit(signed.text[-600:])
        page, events = f"/changes/{change}", f"/api/v1/changes/{change}/events"
        first = await client.get(page)
        tag, after = first.headers.get("etag", ""), int(re.search('data-after="([0-9]+)"', first.text)[1])
        print("open", flush=True)
        while True:
            found = await client.get(events, params={"after": after, "wait": 25})
            if found.status_code != 200:
                raise SystemExit(found.text[:300])
            if found.json()["next"] != after:
                after = found.json()["next"]
                answer = await client.get(page, headers={"If-None-Match": tag} if tag else {})
                tag = answer.headers.get("etag", "")

async def main():
    await asyncio.gather(*(viewer(place) for place in range(count)))

asyncio.run(main())
"""

_USERS = ("modeler", "approver", "owner", "viewer")
"""Users of the viewers, in turn. Each user has different rights, and each viewer has its own session."""


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=50, help="Number of open pages.")
    parser.add_argument("--seconds", type=float, default=30.0, help="Length of each measurement in seconds.")
    parser.add_argument("--every", type=float, default=10.0, help="Seconds between two events.")
    options = parser.parse_args()
    from bundles import tiny_action_bundle, tiny_score_bundle
    from platforms import SETTINGS, World

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for variant in (1, 2):
            tiny_score_bundle(root / f"score-{variant}", variant=variant)
        tiny_action_bundle(root / "action-1")
        bundles = {name: root / name for name in ("score-1", "score-2", "action-1")}
        settings = (
            SETTINGS + f"\n[web]\nstreams = {4 * options.viewers}\nstreams_per_user = {options.viewers}\n"
        )
        world = World(root / "platform", bundles, settings=settings)
        change = world.draft().id
        with world.served() as url:
            print(f"no viewer          {_share(options.seconds):6.2%} of a core", flush=True)
            arguments = [url, change, str(options.viewers), *(world.tokens[user] for user in _USERS)]
            viewers = subprocess.Popen([sys.executable, "-c", _VIEWERS, *arguments], stdout=subprocess.PIPE)
            try:
                for _ in range(options.viewers):
                    if viewers.stdout is None or not viewers.stdout.readline():
                        raise SystemExit("the viewers have ended; see above")
                time.sleep(2)
                print(
                    f"{options.viewers} viewers, no event {_share(options.seconds):6.2%} of a core",
                    flush=True,
                )
                actor, events = world.actor("modeler"), 0

                def comment() -> None:
                    nonlocal events
                    events += 1
                    world.service.discussion.comment(actor, change, text=f"comment {events}")

                share = _share(options.seconds, comment, options.every)
                print(f"{options.viewers} viewers, an event every {options.every:g} s {share:6.2%} of a core")
                if viewers.poll() is not None:
                    raise SystemExit("the viewers have ended; see above")
            finally:
                viewers.terminate()
                viewers.wait()
        world.close()


def _share(seconds: float, work: object = None, every: float = 0.0) -> float:
    """Return the CPU time of this process over the wall time, while it serves."""
    began, used = time.monotonic(), sum(os.times()[:2])
    following = began + every
    while time.monotonic() - began < seconds:
        time.sleep(0.2)
        if callable(work) and time.monotonic() >= following:
            work()
            following += every
    return (sum(os.times()[:2]) - used) / (time.monotonic() - began)


if __name__ == "__main__":
    main()
