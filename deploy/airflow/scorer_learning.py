"""The learning loop under Airflow, with one task for each step of `scorer learn run`.

Copy this file into the DAGs folder. The worker needs the command `scorer` (its `train` extra) and the
workspace on a file system that every task can access. Airflow itself needs no package of the project. Set in
the environment of scheduler and workers:

    SCORER_COMMAND        default "scorer"; "/opt/scorer/bin/scorer", "docker exec learn scorer", ...
    SCORER_WORKSPACE      default "/var/lib/scorer/learning"
    SCORER_LEARN_CONFIG   default "/etc/scorer/learn.toml"
    SCORER_LEARN_CRON     default "0 3 * * mon"
    SCORER_OVERLAY_CRON   default "*/5 * * * *"

Every task passes the time of its run, so a retry, a cleared task or a manual run continues the same
generation: completed steps are kept, and interrupted ones are repeated (docs/schedule.md).
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
    """Return the task that runs `scorer learn run --step STEP`."""
    run = f"{COMMAND} learn run '{WORKSPACE}' --config '{CONFIG}' --step {step} --json"
    return BashOperator(
        task_id=step, bash_command=f"{run} --as-of '{MOMENT}'" if moment else run, append_env=True
    )


with DAG(
    "scorer_learning",
    description="One generation: join, train, evaluate, gate and publish.",
    schedule=os.environ.get("SCORER_LEARN_CRON", "0 3 * * mon"),
    start_date=BEGAN,
    catchup=False,
    # Parallel generations would be compared with different live bundles. The lock also rejects them.
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["scorer"],
):
    chain(*(task(step, moment=True) for step in STEPS))

with DAG(
    "scorer_overlay",
    description="The overlay on decisions after the live oracle's training, as a revision of the bundle.",
    schedule=os.environ.get("SCORER_OVERLAY_CRON", "*/5 * * * *"),
    start_date=BEGAN,
    catchup=False,
    max_active_runs=1,
    # No retries: the next run uses newer decisions.
    default_args={**DEFAULTS, "retries": 0, "execution_timeout": timedelta(minutes=4)},
    tags=["scorer"],
):
    task("overlay", moment=False)
