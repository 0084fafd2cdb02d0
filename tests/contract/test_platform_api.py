"""REST: every operation, who may do it, how it refuses; each operation of the description has "
"its line here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from platforms import World

from scorer.release.model import Role
from scorer.release.requests import NewFreeze, NewPermission

CASES: dict[str, tuple[str, str, Any, dict[str, int]]] = {}
"""Operation: method, path, body, and the status for nobody, outsider, viewer, modeler, approver, "
"owner, admin."""

WHO = ("nobody", "outsider", "viewer", "modeler", "approver", "owner", "admin")


def case(operation: str, method: str, path: str, statuses: str, body: Any = None) -> None:
    values = [int(status) for status in statuses.split()]
    assert len(values) == len(WHO), operation
    CASES[operation] = (method, path, body, dict(zip(WHO, values, strict=True)))


WHY = {"reason": "because"}
DRAFT = {
    "project": "fraud",
    "kind": "test",
    "checkpoint": "fraud.checkout",
    "bundle": "{bundle}",
    "title": "x",
}
FREEZE = {"name": "f", "kind": "deny", "cron": "0 0 1 1 *", "timezone": "UTC", "minutes": 1}
PERMISSION = {
    "kind": "overlay",
    "checkpoint": "action.authorise",
    "user": "modeler",
    "days": 30,
    "reason": "the loop",
}
VERDICT = {"decision": "decline", "reason": "confirmed_fraud"}
CHANNEL = {"url": "json://127.0.0.1:9/x"}
#                                                                            nobody out view mod app own admin
case("health", "GET", "/health", "200 200 200 200 200 200 200")
case("whoami", "GET", "/me", "401 200 200 200 200 200 200")
case("list_projects", "GET", "/projects", "401 200 200 200 200 200 200")
case("create_project", "POST", "/projects", "401 403 403 403 403 403 201", {"name": "p-{who}", "title": "P"})
case("get_project", "GET", "/projects/fraud", "401 404 200 200 200 200 200")
case("update_project", "PATCH", "/projects/fraud", "401 403 403 403 403 403 200", {"title": "Fraud"})
case("list_members", "GET", "/projects/fraud/members", "401 404 200 200 200 200 200")
case("set_member", "PUT", "/projects/fraud/members/second", "401 404 403 403 403 200 200", {"role": "viewer"})
case("remove_member", "DELETE", "/projects/fraud/members/second", "401 404 403 403 403 204 204")
case("list_users", "GET", "/users", "401 403 403 403 403 403 200")
case("add_user", "POST", "/users", "401 403 403 403 403 403 201", {"name": "new-{who}"})
case("set_admin", "PATCH", "/users/second", "401 403 403 403 403 403 200", {"admin": True})
case("remove_user", "DELETE", "/users/third", "401 403 403 403 403 403 204")
case("list_tokens", "GET", "/tokens", "401 200 200 200 200 200 200")
case("create_token", "POST", "/tokens", "401 201 201 201 201 201 201", {"label": "t", "role": "viewer"})
case("revoke_token", "DELETE", "/tokens/{token}", "401 404 404 404 404 404 204")
case(
    "try_checkpoint",
    "POST",
    "/checkpoints/fraud.checkout/try",
    "401 404 200 200 200 200 200",
    {"bundle": "{bundle}", "features": {"amount": 5}},
)
case("upload_bundle", "POST", "/projects/fraud/bundles", "401 404 403 201 201 201 201", b"archive")
case(
    "adopt_bundle",
    "POST",
    "/projects/fraud/bundles/adopt",
    "401 404 403 201 201 201 201",
    {"bundle": "fraud-checkout@live"},
)
SERVER = {"name": "live-9", "control": "127.0.0.1:1"}
case("list_servers", "GET", "/servers", "401 403 403 403 403 403 200")
case("add_server", "POST", "/servers", "401 403 403 403 403 403 409", SERVER)
case("remove_server", "DELETE", "/servers/live-1", "401 403 403 403 403 403 409")
case(
    "serve_checkpoint",
    "POST",
    "/checkpoints/fraud.checkout/servers",
    "401 403 403 403 403 403 409",
    {"kind": "score"},
)
case(
    "add_checkpoint",
    "POST",
    "/checkpoints",
    "401 403 403 403 403 403 201",
    {"name": "added.{who}", "alias": "added@live"},
)
case("start_build", "POST", "/projects/fraud/builds", "401 404 403 202 202 202 202", b"build")
case("list_builds", "GET", "/builds", "401 200 200 200 200 200 200")
case("get_build", "GET", "/builds/{build}", "401 404 200 200 200 200 200")
case("cancel_build", "POST", "/builds/{build}/cancel", "401 404 403 200 200 200 200")
case("list_bundles", "GET", "/bundles", "401 200 200 200 200 200 200")
case("get_bundle", "GET", "/bundles/{bundle}", "401 404 200 200 200 200 200")
case(
    "explain_bundle",
    "PUT",
    "/projects/fraud/bundles/{bundle}/explanation",
    "401 404 403 422 422 422 422",
    {"document": {}},
)
case("get_explanation", "GET", "/bundles/{bundle}/explanation", "401 404 404 404 404 404 404")
case(
    "describe_bundle",
    "PUT",
    "/projects/fraud/bundles/{bundle}/card",
    "401 404 403 200 200 200 200",
    {"purpose": "Payments of web shops."},
)
case("get_card", "GET", "/bundles/{bundle}/card", "401 404 200 200 200 200 200")
NIGHT = 'name = "n"\n[[rules]]\nid = "night"\nwhen = "hour < 5.0"\nfloor = 0.5\n'
case("get_rules", "GET", "/bundles/{bundle}/rules", "401 404 200 200 200 200 200")
case("check_rules", "POST", "/bundles/{bundle}/rules/check", "401 404 200 200 200 200 200", {"text": NIGHT})
case(
    "test_rules",
    "POST",
    "/bundles/{bundle}/rules/test",
    "401 404 200 200 200 200 200",
    {"text": NIGHT, "cases": ""},
)
case(
    "bench_rules",
    "POST",
    "/bundles/{bundle}/rules/bench",
    "401 404 200 200 200 200 200",
    {"text": NIGHT, "features": {"hour": 3}},
)
case("cost_rules", "POST", "/bundles/{bundle}/rules/cost", "401 404 200 200 200 200 200", {"text": NIGHT})
case("rules_over_time", "GET", "/checkpoints/fraud.checkout/rules", "401 200 200 200 200 200 200")
# The first user who saves is followed by conflicts.
case(
    "save_rules",
    "POST",
    "/projects/fraud/bundles/{bundle}/rules",
    "401 404 403 201 409 409 409",
    {"text": NIGHT, "checkpoint": "fraud.checkout", "note": "night", "submit": False},
)
case(
    "switch_rule",
    "POST",
    "/projects/fraud/bundles/{bundle}/rules/night",
    "401 404 403 404 404 404 404",
    {"to": "retired", "checkpoint": "fraud.checkout", "reason": "noise", "submit": False},
)
case("list_checkpoints", "GET", "/checkpoints", "401 200 200 200 200 200 200")
case("get_checkpoint", "GET", "/checkpoints/fraud.checkout", "401 200 200 200 200 200 200")
case("list_tables", "GET", "/checkpoints/fraud.checkout/tables", "401 200 200 200 200 200 200")
case("list_versions", "GET", "/checkpoints/fraud.checkout/versions", "401 200 200 200 200 200 200")
case("get_timeline", "GET", "/checkpoints/fraud.checkout/timeline", "401 200 200 200 200 200 200")
case("compare", "GET", "/compare?left={change}&right={bundle}", "401 404 200 200 200 200 200")
case(
    "set_sampling",
    "PUT",
    "/checkpoints/fraud.checkout/sampling",
    "401 200 403 403 403 200 200",
    {"sample": 0.2},
)
case(
    "rollback_checkpoint", "POST", "/checkpoints/fraud.checkout/rollback", "401 409 403 403 403 409 409", WHY
)
case("last_rollback", "GET", "/checkpoints/fraud.checkout/rollback", "401 200 200 200 200 200 200")
case("next_free", "GET", "/checkpoints/fraud.checkout/next-free", "401 200 200 200 200 200 200")
case("frozen", "GET", "/checkpoints/fraud.checkout/frozen", "401 200 200 200 200 200 200")
case("recent_decisions", "GET", "/checkpoints/fraud.checkout/decisions", "401 200 200 200 200 200 200")
case(
    "search_decisions",
    "POST",
    "/checkpoints/fraud.checkout/decisions/search",
    "401 200 200 200 200 200 200",
    {"decision": "approve"},
)
case("get_decision", "GET", "/decisions/none", "401 404 404 404 404 404 404")
case(
    "get_calendar",
    "GET",
    "/calendar?start=2026-11-01T00:00:00Z&end=2026-11-02T00:00:00Z",
    "401 200 200 200 200 200 200",
)
case("list_freezes", "GET", "/freezes", "401 200 200 200 200 200 200")
case("add_freeze", "POST", "/freezes", "401 403 403 403 403 403 201", FREEZE)
case("remove_freeze", "DELETE", "/freezes/{freeze}", "401 403 403 403 403 403 204")
case("list_changes", "GET", "/changes", "401 200 200 200 200 200 200")
case("draft_change", "POST", "/changes", "401 404 403 201 201 201 201", DRAFT)
case("get_change", "GET", "/changes/{change}", "401 404 200 200 200 200 200")
case("edit_change", "PUT", "/changes/{change}", "401 404 403 200 403 200 200", {**DRAFT, "version": 1})
case("submit_change", "POST", "/changes/{change}/submit", "401 404 403 200 403 200 200", {})
case(
    "rebook_change",
    "POST",
    "/changes/{change}/rebook",
    "401 404 403 409 403 409 409",
    {"start": "2199-01-01T00:00:00Z"},
)
case("finish_change", "POST", "/changes/{change}/finish", "401 404 403 409 403 409 409")
case("approve_change", "POST", "/changes/{change}/approve", "401 404 403 403 409 409 409", {})
case("reject_change", "POST", "/changes/{change}/reject", "401 404 403 403 409 409 409", WHY)
case(
    "waive_gate",
    "POST",
    "/changes/{change}/waive",
    "401 404 403 403 409 409 409",
    {**WHY, "metric": "flip_rate"},
)
case("withdraw_change", "POST", "/changes/{change}/withdraw", "401 404 403 200 403 200 200", WHY)
case("pause_release", "POST", "/changes/{change}/pause", "401 404 403 409 403 409 409", WHY)
case("resume_release", "POST", "/changes/{change}/resume", "401 404 403 409 403 409 409", WHY)
case("promote_release", "POST", "/changes/{change}/promote", "401 404 403 403 409 409 409", WHY)
case("skip_stage", "POST", "/changes/{change}/skip", "401 404 403 403 409 409 409", {"stage": 2, **WHY})
case("comment_change", "POST", "/changes/{change}/comments", "401 404 403 200 200 200 200", {"text": "x"})
case("request_review", "PUT", "/changes/{change}/reviewers", "401 404 403 200 403 200 200", {"reviewers": []})
case("archive_change", "POST", "/changes/{change}/archive", "401 404 403 409 403 409 409", {})
case("unarchive_change", "POST", "/changes/{change}/unarchive", "401 404 403 409 403 409 409", {})
case("rollback_change", "POST", "/changes/{change}/rollback", "401 404 403 409 403 409 409", WHY)
case("list_events", "GET", "/changes/{change}/events", "401 404 200 200 200 200 200")
case("stream_events", "GET", "/changes/{withdrawn}/stream", "401 404 200 200 200 200 200")
case("get_readout", "GET", "/changes/{change}/readout", "401 404 200 200 200 200 200")
case("get_figure", "GET", "/changes/{change}/readout/figures/flips", "401 404 200 200 200 200 200")
case("get_figure_csv", "GET", "/changes/{change}/readout/figures/flips/csv", "401 404 200 200 200 200 200")
case("get_drift", "GET", "/checkpoints/fraud.checkout/drift", "401 200 200 200 200 200 200")
# No hour has been looked at.
case("get_drift_history", "GET", "/checkpoints/fraud.checkout/drift/history", "401 404 404 404 404 404 404")
# No bundle has this digest.
case(
    "start_weekly_comparison",
    "POST",
    "/checkpoints/fraud.checkout/comparisons",
    "401 404 404 404 404 404 404",
    {"versions": ["sha256:0000ffff"]},
)
case(
    "get_weekly_comparison",
    "GET",
    "/checkpoints/fraud.checkout/comparisons/0123456789abcdef",
    "401 404 404 404 404 404 404",
)
# No task is configured.
case("list_adoption_tasks", "GET", "/checkpoints/fraud.checkout/adoption", "401 200 200 200 200 200 200")
case(
    "start_adoption_analysis",
    "POST",
    "/checkpoints/fraud.checkout/adoption",
    "401 404 404 404 404 404 404",
    {"task": "optimiser"},
)
case(
    "get_adoption_analysis",
    "GET",
    "/checkpoints/fraud.checkout/adoption/0123456789abcdef",
    "401 404 404 404 404 404 404",
)
case("get_metrics", "GET", "/checkpoints/fraud.checkout/metrics", "401 200 200 200 200 200 200")
case(
    "get_metrics_figure",
    "GET",
    "/checkpoints/fraud.checkout/metrics/figures/rate",
    "401 200 200 200 200 200 200",
)
case(
    "get_metrics_csv",
    "GET",
    "/checkpoints/fraud.checkout/metrics/figures/rate/csv",
    "401 200 200 200 200 200 200",
)
case("delete_change", "DELETE", "/changes/{change}", "401 404 403 204 403 204 204")
case("list_permissions", "GET", "/projects/fraud/permissions", "401 404 200 200 200 200 200")
case(
    "grant_permission",
    "POST",
    "/projects/fraud/permissions",
    "401 404 403 403 403 201 201",
    PERMISSION,
)
case("revoke_permission", "POST", "/permissions/{permission}/revoke", "401 404 403 403 403 200 200", WHY)
case("list_reviews", "GET", "/reviews", "401 200 200 200 200 200 200")
case("get_review", "GET", "/reviews/{review}", "401 404 200 200 200 200 200")
case("claim_review", "POST", "/reviews/{review}/claim", "401 404 403 200 200 200 200", {})
case("release_review", "POST", "/reviews/{review}/release", "401 404 403 200 200 200 200", {})
case("assign_review", "POST", "/reviews/{review}/assign", "401 404 403 200 200 200 200", {"user": "modeler"})
case("decide_review", "POST", "/reviews/{review}/decide", "401 404 403 200 200 200 200", VERDICT)
case("list_review_reasons", "GET", "/projects/fraud/review-reasons", "401 404 200 200 200 200 200")
case(
    "set_review_reasons",
    "PUT",
    "/projects/fraud/review-reasons",
    "401 404 403 403 403 200 200",
    {"reasons": []},
)
case("list_channels", "GET", "/projects/fraud/channels", "401 404 200 200 200 200 200")
case("add_channel", "POST", "/projects/fraud/channels", "401 404 403 403 403 201 201", CHANNEL)
case("remove_channel", "DELETE", "/channels/{channel}", "401 404 403 403 403 204 204")
case("test_channel", "POST", "/channels/{channel}/test", "401 404 403 403 403 200 200")
case("list_deliveries", "GET", "/projects/fraud/deliveries", "401 404 200 200 200 200 200")
case("list_agent_tools", "GET", "/agents/tools", "401 200 200 200 200 200 200")
# No tool is enabled in this world; tests/unit/test_release_agents.py calls every tool.
case(
    "call_agent_tool",
    "POST",
    "/agents/tools/list_checkpoints",
    "401 403 403 403 403 403 403",
    {"arguments": {}},
)
case("list_agent_calls", "GET", "/agents/calls", "401 200 200 200 200 200 200")
case("get_agent_access", "GET", "/projects/fraud/agents", "401 404 200 200 200 200 200")
case(
    "set_agent_access",
    "PUT",
    "/projects/fraud/agents",
    "401 404 403 403 403 200 200",
    {"tools": ["list_checkpoints"]},
)
case("list_audit", "GET", "/audit", "401 200 200 200 200 200 200")
case("verify_audit", "GET", "/audit/verify", "401 403 403 403 403 403 200")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"), built_bundles)
    yield world
    world.close()


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with world.served() as address:
        yield address


@pytest.fixture(scope="module")
def schema(url: str) -> Any:
    return httpx.get(f"{url}/api/v1/openapi.json", timeout=60).json()


def operations(schema: Any) -> dict[str, tuple[str, str, Any]]:
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }


def filled(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, dict):
        return {key: filled(one, values) for key, one in value.items()}
    return value


def objects(world: World, who: str, operation: str) -> dict[str, str]:
    """Create new objects for each call, so that no call depends on an object that another one deleted."""
    objects = {"who": who, "bundle": world.candidate}
    service, admin = world.service, world.actor("admin")
    if "{change}" in CASES[operation][1]:
        objects["change"] = world.draft().id
    if "{withdrawn}" in CASES[operation][1]:
        change = world.draft().id
        service.changes.withdraw(world.actor("modeler"), change, reason="done")
        objects["withdrawn"] = change
    if "{token}" in CASES[operation][1]:
        objects["token"] = service.access.create_token(admin, label="x", role="viewer")[0].id
    if "{freeze}" in CASES[operation][1]:
        fields = {**FREEZE, "name": f"{operation}-{who}"}
        objects["freeze"] = str(service.calendar.add_freeze(admin, NewFreeze(**fields)).id)
    if "{permission}" in CASES[operation][1]:
        objects["permission"] = service.permissions.grant(admin, "fraud", NewPermission(**PERMISSION)).id
    if "{channel}" in CASES[operation][1]:
        objects["channel"] = str(service.notifications.add_channel(admin, "fraud", CHANNEL["url"]).id)
    if "{review}" in CASES[operation][1]:
        objects["review"] = str(world.review())
    if "{build}" in CASES[operation][1]:
        objects["build"] = world.build().id
    if operation == "remove_user":
        service.access.add_user(admin, "third")
    return objects


def test_the_table_names_every_operation(schema: Any) -> None:
    assert sorted(CASES) == sorted(operations(schema))


@pytest.mark.parametrize("operation", sorted(CASES))
def test_each_role_may_call_its_operations_only(world: World, url: str, schema: Any, operation: str) -> None:
    method, path, body, statuses = CASES[operation]
    described = operations(schema)[operation]
    assert described[0] == method
    with world.api(url, None) as client:
        for who, expected in statuses.items():
            values = objects(world, who, operation)
            sent: dict[str, Any] = {"headers": world.headers(None if who == "nobody" else who)}
            if body == b"archive":
                sent["content"] = world.archive("score-3")
            elif body == b"build":
                sent["data"] = {"name": "fraud-checkout", "version": "1", "bands": "0 approve"}
                sent["files"] = {"model": ("m.json", b"{}"), "table": ("t.csv", b"a\n1\n")}
            elif body is not None:
                sent["json"] = filled(body, values)
            response = client.request(method, filled(path, values), **sent)
            assert response.status_code == expected, f"{who}: {response.text[:300]}"
            assert str(response.status_code) in described[2]["responses"], (
                f"{who}: the status is not described"
            )
            if expected >= 400:
                problem = response.json()
                assert response.headers["content-type"] == "application/problem+json"
                assert problem["status"] == expected
                assert problem["type"].startswith("urn:scorer:problem:")
                assert "\n" not in problem["detail"]
            if expected == 401:
                assert response.headers["www-authenticate"].startswith("Bearer")
    world.cancel_builds()
    for change in world.service.changes.list(world.actor("admin"), limit=50):
        if not change.state.is_final:
            world.service.changes.withdraw(world.actor("admin"), change.id, reason="next")


READING = {
    "bench_rules", "call_agent_tool", "check_rules", "cost_rules", "search_decisions",
    "start_adoption_analysis", "start_weekly_comparison", "test_rules", "try_checkpoint",
}  # fmt: skip
"""Operations that are sent by POST and change nothing that is released or recorded."""


@pytest.fixture(scope="module")
def agent(world: World) -> dict[str, str]:
    """Headers of an agent: a user with the role agent in project fraud."""
    root, access = world.actor("admin"), world.service.access
    access.add_user(root, "robot")
    access.set_member(root, "fraud", "robot", Role.AGENT)
    _, secret = access.create_token(root, user="robot", label="agent", role=Role.OWNER)
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.fault_case(98)
@pytest.mark.parametrize("operation", sorted(CASES))
def test_an_agent_reads_and_drafts_and_changes_nothing_else(
    world: World, url: str, agent: dict[str, str], operation: str
) -> None:
    method, path, body, statuses = CASES[operation]
    values = objects(world, "viewer", operation)
    sent: dict[str, Any] = {"headers": agent}
    if body == b"archive":
        sent["content"] = world.archive("score-3")
    elif body == b"build":
        sent["data"] = {"name": "fraud-checkout", "version": "1", "bands": "0 approve"}
        sent["files"] = {"model": ("m.json", b"{}"), "table": ("t.csv", b"a\n1\n")}
    elif body is not None:
        sent["json"] = filled(body, values)
    with httpx.Client(base_url=f"{url}/api/v1", timeout=60) as client:
        status = client.request(method, filled(path, values), **sent).status_code
    if method == "GET" or operation in READING:
        assert status == statuses["viewer"]
    else:
        assert status == (201 if operation == "draft_change" else 403)
    for change in world.service.changes.list(world.actor("admin"), limit=50):
        if not change.state.is_final:
            world.service.changes.withdraw(world.actor("admin"), change.id, reason="next")


def test_objects_of_another_project_are_reported_as_missing(world: World, url: str) -> None:
    change = world.draft().id
    with world.api(url, "outsider") as client:
        theirs = client.get(f"/changes/{change}").json()
        missing = client.get("/changes/cr-099999").json()
        assert theirs["type"] == missing["type"]
        assert theirs["detail"].replace(change, "CR") == missing["detail"].replace("cr-099999", "CR")


# --- versions, repeats, pages ---


def test_an_outdated_version_is_refused_and_nothing_changes(world: World, url: str) -> None:
    change = world.draft().id
    body = {**filled(DRAFT, {"bundle": world.candidate}), "title": "second"}
    with world.api(url, "modeler") as client:
        etag = client.get(f"/changes/{change}").headers["etag"]
        done = client.put(f"/changes/{change}", json=body, headers={"If-Match": etag})
        assert done.status_code == 200 and done.headers["etag"] != etag
        again = client.put(f"/changes/{change}", json={**body, "title": "third"}, headers={"If-Match": etag})
        assert (again.status_code, again.json()["type"]) == (409, "urn:scorer:problem:conflict")
        assert client.get(f"/changes/{change}").json()["change"]["title"] == "second"
        assert client.put(f"/changes/{change}", json=body).status_code == 422
        both = client.put(f"/changes/{change}", json={**body, "version": 1}, headers={"If-Match": '"2"'})
        assert both.status_code == 409


def test_a_draft_with_an_idempotency_key_is_created_once(world: World, url: str) -> None:
    body = filled(DRAFT, {"bundle": world.candidate})
    headers = {"Idempotency-Key": "3f1c9f0e-once"}
    with world.api(url, "modeler") as client, world.api(url, "owner") as other:
        first = client.post("/changes", json=body, headers=headers).json()
        assert client.post("/changes", json=body, headers=headers).json()["id"] == first["id"]
        different = client.post("/changes", json={**body, "title": "else"}, headers=headers)
        assert different.status_code == 409
        assert other.post("/changes", json=body, headers=headers).json()["id"] != first["id"]


def test_lists_are_paged_without_gaps_or_repeats(world: World, url: str) -> None:
    wanted = {world.draft().id for _ in range(5)}
    with world.api(url, "viewer") as client:
        seen: list[str] = []
        cursor: str | None = None
        while True:
            query = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
            page = client.get("/changes", params=query).json()
            assert len(page["items"]) <= 2
            seen += [item["id"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) and wanted <= set(seen)
        assert seen == sorted(seen, reverse=True)
        whole = client.get("/audit", params={"limit": 1000}).json()["items"]
        first = client.get("/audit", params={"limit": 3}).json()
        second = client.get("/audit", params={"limit": 3, "cursor": first["next"]}).json()
        assert first["items"] + second["items"] == whole[:6]


# --- what is not as documented ---


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/changes", {**DRAFT, "sampling": 1}, "sampling: Extra inputs"),
        ("POST", "/changes", {**DRAFT, "minutes": "60"}, "minutes"),
        ("POST", "/changes", {**DRAFT, "sample": 0}, "sample"),
        ("POST", "/changes", {**DRAFT, "sample": 1.5}, "sample"),
        ("POST", "/changes", {**DRAFT, "kind": "yolo"}, "kind"),
        ("POST", "/changes", {**DRAFT, "title": "a\u0000b"}, "title"),
        ("POST", "/changes", {**DRAFT, "stages": [{"share": 1, "minutes": 1}]}, "stages.0.share"),
        ("PUT", "/checkpoints/fraud.checkout/sampling", {"sample": 0}, "sample"),
        ("PUT", "/checkpoints/fraud.checkout/sampling", {"sample": 0.1, "filter": "x"}, "filter is not JSON"),
        ("POST", "/changes/cr-000001/rebook", {"start": "tomorrow"}, "start"),
        ("POST", "/changes/cr-000001/rebook", {"start": "2026-11-21T10:00:00"}, "zone"),
        ("POST", "/changes/cr-000001/rebook", {"start": "0001-01-01T00:00:00+14:00"}, "1970"),
        ("GET", "/changes/17", None, "change"),
        ("GET", "/changes?limit=0", None, "limit"),
        ("GET", "/reviews?state=lost", None, "state"),
        ("GET", "/reviews?cursor=x", None, "omit the cursor"),
        ("PUT", "/projects/fraud/review-reasons", {"reasons": [{"code": "A B", "text": "x"}]}, "code"),
        ("GET", "/changes?state=flying", None, "state"),
        ("GET", "/calendar?start=2026-11-02T00:00:00Z", None, "end"),
        ("GET", "/audit/verify?sequence=3", None, "both or neither"),
    ],
)
def test_invalid_requests_are_refused(
    world: World, url: str, method: str, path: str, body: Any, message: str
) -> None:
    with world.api(url, "admin") as client:
        sent = {} if body is None else {"json": filled(body, {"bundle": world.candidate})}
        response = client.request(method, path, **sent)
    assert (response.status_code, response.json()["type"]) == (422, "urn:scorer:problem:invalid")
    assert message in response.json()["detail"]


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer wrong", "Basic YWxhZGRpbg==", "Bearer " + "x" * 5000, "x"]
)
def test_wrong_tokens_are_refused(url: str, header: str) -> None:
    response = httpx.get(f"{url}/api/v1/me", timeout=60, headers={"Authorization": header})
    assert (response.status_code, response.json()["type"]) == (401, "urn:scorer:problem:not-authenticated")


def test_a_revoked_token_is_refused_at_once(world: World, url: str) -> None:
    token, secret = world.service.access.create_token(world.actor("viewer"), label="x", role="viewer")
    headers = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{url}/api/v1/me", timeout=60, headers=headers).status_code == 200
    world.service.access.revoke_token(world.actor("viewer"), token.id)
    assert httpx.get(f"{url}/api/v1/me", timeout=60, headers=headers).status_code == 401


def test_bodies_are_bounded(world: World, url: str) -> None:
    with world.api(url, "modeler") as client:
        large = client.post("/changes", content=b'{"title": "' + b"x" * (2 << 20) + b'"}')
        assert (large.status_code, large.headers["content-type"]) == (413, "application/problem+json")
        broken = client.post("/changes", content=b'{"title": ', headers={"Content-Type": "application/json"})
        assert broken.status_code == 422
        archive = client.post("/projects/fraud/bundles", content=b"not a tar")
        assert archive.status_code == 422 and "tar" in archive.json()["detail"]


def test_an_internal_error_shows_only_its_id(
    world: World, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret inside")

    monkeypatch.setattr(type(world.service.access), "projects", broken)
    with world.api(url, "viewer") as client:
        response = client.get("/projects")
    problem = response.json()
    assert (response.status_code, problem["type"]) == (500, "urn:scorer:problem:internal")
    assert "secret" not in response.text and "ZeroDivision" not in response.text
    assert problem["id"] == response.headers["x-request-id"]
    assert any(problem["id"] in record.getMessage() for record in caplog.records)


# --- browsers ---


def test_a_session_needs_its_csrf_header_for_changes(world: World, url: str) -> None:
    cookie, session = world.service.access.open_session(world.tokens["modeler"])
    body = filled(DRAFT, {"bundle": world.candidate})
    with httpx.Client(base_url=f"{url}/api/v1", cookies={"scorer": cookie}, timeout=60) as client:
        assert client.get("/me").json()["user"] == "modeler"
        for headers in ({}, {"X-CSRF-Token": "wrong"}, {"X-CSRF-Token": ""}):
            response = client.post("/changes", json=body, headers=headers)
            assert response.status_code == 403
        assert client.post("/changes", json=body, headers={"X-CSRF-Token": session.csrf}).status_code == 201


# --- events ---


def test_events_can_be_waited_for_and_streamed(world: World, url: str) -> None:
    change = world.draft().id
    with world.api(url, "modeler") as client:
        first = client.get(f"/changes/{change}/events").json()
        assert [event["state"] for event in first["items"]] == ["draft"]
        assert client.get(f"/changes/{change}/events", params={"after": first["next"]}).json()["items"] == []
        client.post(f"/changes/{change}/withdraw", json=WHY)
        second = client.get(f"/changes/{change}/events", params={"after": first["next"], "wait": 30}).json()
        assert second["items"] and second["is_final"]
        text = client.get(f"/changes/{change}/stream").text
        data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert [event["id"] for event in data] == [e["id"] for e in first["items"] + second["items"]]
        assert text.endswith("event: end\ndata: rejected\n\n")
        rest = client.get(f"/changes/{change}/stream", headers={"Last-Event-ID": str(first["next"])}).text
        assert f"id: {data[0]['id']}\n" not in rest and f"id: {data[-1]['id']}\n" in rest


# --- the description ---


def test_every_status_and_field_is_described(schema: Any) -> None:
    for name, (_, path, operation) in operations(schema).items():
        assert operation.get("description"), name
        errors = {status for status in operation["responses"] if int(status) >= 400}
        assert {"500", "503"} <= errors, name
        if path != "/health":
            assert {"401", "403", "404", "422"} <= errors, name
            assert operation["security"] == [{"token": []}, {"session": []}], name
        for status in errors:
            assert list(operation["responses"][status]["content"]) == ["application/problem+json"], name
    assert "HTTPValidationError" not in schema["components"]["schemas"]


def test_the_description_is_unchanged(schema: Any) -> None:
    """A change of operations, parameters, bodies or responses affects every client."""
    file = Path(__file__).parent / "platform_api.json"
    now = described(schema)
    assert file.read_text() == now, f"if the change is intended, write it to {file.name}"


def described(schema: Any) -> str:
    shape = {
        name: {
            "at": f"{method} {path}",
            "parameters": sorted(
                f"{p['in']} {p['name']}{'' if p.get('required') else '?'}"
                for p in operation.get("parameters", ())
            ),
            "body": sorted(_names(operation.get("requestBody", {}))),
            "answers": {
                status: sorted(_names(answer))
                for status, answer in operation["responses"].items()
                if int(status) < 400
            },
            "refusals": sorted(status for status in operation["responses"] if int(status) >= 400),
        }
        for name, (method, path, operation) in sorted(operations(schema).items())
    }
    fields = {
        name: sorted(one.get("properties", one.get("enum", ())))
        for name, one in sorted(schema["components"]["schemas"].items())
    }
    return json.dumps({"operations": shape, "schemas": fields}, indent=1) + "\n"


def _names(answer: Any) -> set[str]:
    result = set()
    for media, content in answer.get("content", {}).items():
        text = json.dumps(content.get("schema", {}))
        references = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
        result |= {f"{media} {reference}" for reference in references} or {media}
    return result


def test_the_docs_page_loads_nothing_from_other_hosts(url: str, schema: Any) -> None:
    page = httpx.get(f"{url}/api/v1/docs", timeout=60).text
    assert "<script" not in page and "http://" not in page and "https://" not in page
    assert all(f'id="{name}"' in page for name in operations(schema))
