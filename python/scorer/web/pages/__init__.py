"""The pages, one module each. A page is a function from a `Visit` to a response."""

from __future__ import annotations

from fastapi import APIRouter


def routers() -> list[APIRouter]:
    """Return the routers of all pages."""
    from scorer.web.pages import (
        adoption,
        agents,
        audit,
        builds,
        calendar,
        cards,
        change,
        changes,
        checkpoints,
        compare,
        decisions,
        drift,
        home,
        learning,
        metrics,
        models,
        notifications,
        projects,
        readout,
        reviews,
        rules,
        settings,
        signing,
        tokens,
        trying,
        users,
        versions,
        weekly,
    )

    modules = (
        signing,
        home,
        checkpoints,
        metrics,
        drift,
        versions,
        weekly,
        adoption,
        trying,
        calendar,
        changes,
        change,
        readout,
        builds,
        models,
        rules,
        cards,
        compare,
        decisions,
        reviews,
        learning,
        notifications,
        projects,
        tokens,
        users,
        settings,
        agents,
        audit,
    )
    return [module.router for module in modules]
