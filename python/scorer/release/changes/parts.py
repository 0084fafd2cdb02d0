"""The dependencies of operations on change requests and of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from scorer.release.store import utcnow

if TYPE_CHECKING:
    from scorer.events import EventLog
    from scorer.release.access import Access
    from scorer.release.audit import Audit
    from scorer.release.backtest.running import Backtests
    from scorer.release.bundles import Bundles
    from scorer.release.calendar import Calendar
    from scorer.release.lanes.reconcile import Reconciler
    from scorer.release.notify import Notifications
    from scorer.release.permissions import Permissions
    from scorer.release.readout import Readouts
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store


@dataclass
class Parts:
    """The parts of the service layer that operations and the pipeline share."""

    store: Store
    settings: PlatformFile
    access: Access
    audit: Audit
    notifications: Notifications
    bundles: Bundles
    calendar: Calendar
    reconciler: Reconciler
    permissions: Permissions
    readouts: Readouts
    backtests: Backtests | None = None
    """Runs backtests in processes; None: changes are not backtested."""
    events: EventLog | None = None
    """Event log for transitions and internal errors; None: no events are written."""
    now: Callable[[], datetime] = utcnow
