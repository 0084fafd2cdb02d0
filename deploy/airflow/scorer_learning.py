"""The learning loop under Airflow: the very steps of `scorer learn run`, one task each.

Copy this file into the DAGs folder. The worker needs the command `scorer` (its `train` extra) and the
workspace on a file system that every task sees; Airflow itself needs nothing of the project. Set in the
environment of scheduler and workers:

    SCORER_COMMAND        default "scorer"; "/opt/scorer/bin/scorer", "docker exec learn scorer", ...
    SCORER_WORKSPACE      default "/var/lib/scorer/learning"
    SCORER_LEARN_CONFIG   default "/etc/scorer/learn.toml"
    SCORER_LEARN_CRON     default "0 3 * * mon"
    SCORER_OVERLAY_CRON   default "*/5 * * * *"

Every task names the moment of its run, so a retry, a cleared task or a run by hand does the same
generation again: what is done is kept, what was cut off is done anew (docs/schedule.md).
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, chain

COMMAND = os.environ.get("SCORER_COMMAND", "scorer")
WORKSPACE = os.environ.get("SCORER_WORKSPACE", "/var/lib/scorer/learning")
CONFIG = os.environ.get("SCORER_LEARN_CONFIG", "/etc/scorer/learn.toml")
STEPS = ("join", "train", "evaluate", "gate", "publish")
MOMENT = "{{ (dag_run.logical_date or dag_run.run_after).strftime('%Y-%m-%dT%H:%M:%S%z') }}"
DEFAULTS = {"retries": 2, "retry_delay": timedelta(minutes=1), "execution_timeout": timedelta(hours=6)}
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def task(step: str, *, moment: bool) -> BashOperator:
    """`scorer learn run --step ...`."""
    run = f"{COMMAND} learn run '{WORKSPACE}' --config '{CONFIG}' --step {step} --json"
    return BashOperator(
        task_id=step, bash_command=f"{run} --as-of '{MOMENT}'" if moment else run, append_env=True
    )


with DAG(
    "scorer_learning",
    description="Decisions with their outcomes in, a better bundle out.",
    schedule=os.environ.get("SCORER_LEARN_CRON", "0 3 * * mon"),
    start_date=BEGAN,
    catchup=False,
    # Two generations at once would judge against each other's live bundle; the lock refuses it, too.
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["scorer"],
):
    chain(*(task(step, moment=True) for step in STEPS))

with DAG(
    "scorer_overlay",
    description="What moved since the live oracle was trained, as the bundle's next revision.",
    schedule=os.environ.get("SCORER_OVERLAY_CRON", "*/5 * * * *"),
    start_date=BEGAN,
    catchup=False,
    max_active_runs=1,
    # The next run looks from later and does the same better.
    default_args={**DEFAULTS, "retries": 0, "execution_timeout": timedelta(minutes=4)},
    tags=["scorer"],
):
    task("overlay", moment=False)
