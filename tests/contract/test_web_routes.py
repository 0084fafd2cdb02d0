"""Tests of who may access each route of pages and REST. A route without a rule here fails."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import serving
from fastapi.routing import APIRoute
from platforms import World
from starlette.routing import Mount, Route

from scorer.release.model import Quotas, Role
from scorer.release.requests import NewFreeze, NewPermission

WHO = ("nobody", "stranger", "outsider", "viewer", "modeler", "approver", "owner", "admin")
"""The users. `stranger` is in no project, and `outsider` owns another project."""
RULES: dict[str, tuple[str, str, dict[str, str]]] = {}
"""A letter for each user of `WHO`, a concrete path and the form, by method and route.

`+` is allowed, `x` refused, `n` not found, `L` redirected to the sign-in page.
"""
OPEN = {
    "GET /static/{address}", "GET /favicon.ico", "GET /login", "POST /login",
    "GET /login/oidc", "GET /login/oidc/callback", "GET /login/oidc/out",
}  # fmt: skip
"""Pages without a rule by role, which a browser needs to sign in."""
UNDESCRIBED_API = {"GET /metrics", "GET /openapi.json", "GET /docs", "GET /docs.css"}
"""REST operations without a token, for probes and for the documentation. None of them shows an object."""


def rule(route: str, letters: str, path: str = "", **form: str) -> None:
    template = route.partition(" ")[2]
    given = letters.split()
    assert len(given) == len(WHO), route
    RULES[route] = ("".join(given), path or template, form)


DRAFT = {
    "project": "fraud",
    "kind": "test",
    "checkpoint": "fraud.checkout",
    "bundle": "{bundle}",
    "title": "t",
    "minutes": "10",
    "then": "draft",
}
FREEZE = {
    "name": "f-{who}",
    "kind": "deny",
    "cron": "0 0 1 1 *",
    "timezone": "UTC",
    "minutes": "1",
    "reason": "r",
}
PERMISSION = {
    "kind": "overlay",
    "checkpoint": "action.authorise",
    "user": "modeler",
    "days": "30",
    "reason": "r",
}
#                                               nobody stranger outsider viewer modeler approver owner admin
EVERYBODY = "L + + + + + + +"
SEES = "L n n + + + + +"
MODELS = "L n n x + + + +"
OWNS = "L n n x x x + +"
# The project of `outsider` may use every checkpoint, so its owners may change the checkpoint too.
AUTHOR = "L n n x + x + +"
RUNS = "L x + x x x + +"
ADMIN = "L x x x x x x +"
NONE = "L n n n n n n n"
rule("GET /", EVERYBODY)
rule("POST /logout", EVERYBODY)
rule("GET /checkpoints", EVERYBODY)
rule("GET /checkpoints/{name}", EVERYBODY, "/checkpoints/fraud.checkout")
rule("GET /checkpoints/{name}/try", EVERYBODY, "/checkpoints/fraud.checkout/try")
rule("POST /checkpoints/{name}/try", EVERYBODY, "/checkpoints/fraud.checkout/try", v0="5")
# Every server of the fleet has the checkpoint, so the request of an admin is refused for that reason.
rule("POST /checkpoints/{name}/serve", ADMIN, "/checkpoints/fraud.checkout/serve", kind="score")
rule("POST /checkpoints/{name}/sampling", RUNS, "/checkpoints/fraud.checkout/sampling", percent="10")
rule("GET /checkpoints/{name}/versions", EVERYBODY, "/checkpoints/fraud.checkout/versions")
rule("GET /checkpoints/{name}/timeline", EVERYBODY, "/checkpoints/fraud.checkout/timeline")
rule("GET /compare", SEES, "/compare?left={bundle}&right={bundle}")
rule("GET /compare/figures/{name}.csv", SEES, "/compare/figures/importance.csv?left={bundle}&right={bundle}")
rule(
    "POST /checkpoints/{name}/rollback", RUNS, "/checkpoints/fraud.checkout/rollback", reason="r", sure="yes"
)
# The project of `outsider` may use every checkpoint, so its members see their metrics too.
METRICS = "L n + + + + + +"
rule("GET /checkpoints/{name}/metrics", METRICS, "/checkpoints/fraud.checkout/metrics")
rule("GET /checkpoints/{name}/drift", METRICS, "/checkpoints/fraud.checkout/drift")
# No hour has been looked at.
rule(
    "GET /checkpoints/{name}/drift/figures/{figure}.{form}",
    "L n n n n n n n",
    "/checkpoints/fraud.checkout/drift/figures/course.csv",
)
COMPARISON = "/checkpoints/fraud.checkout/comparison"
rule("GET /checkpoints/{name}/comparison", EVERYBODY, COMPARISON)
# No version is chosen, so the form is shown again.
rule("POST /checkpoints/{name}/comparison", EVERYBODY, COMPARISON, weeks="8")
# No comparison has this id.
rule(
    "GET /checkpoints/{name}/comparison/{comparison}",
    "L n n n n n n n",
    f"{COMPARISON}/0123456789abcdef",
)
rule(
    "GET /checkpoints/{name}/comparison/{comparison}/figures/{figure}.{form}",
    "L n n n n n n n",
    f"{COMPARISON}/0123456789abcdef/figures/best.csv",
)
ADOPTION = "/checkpoints/fraud.checkout/adoption"
rule("GET /checkpoints/{name}/adoption", METRICS, ADOPTION)
# No such task is configured.
rule("POST /checkpoints/{name}/adoption", "L n n n n n n n", ADOPTION, task="optimiser")
# No analysis has this id.
rule("GET /checkpoints/{name}/adoption/{analysis}", "L n n n n n n n", f"{ADOPTION}/0123456789abcdef")
rule(
    "GET /checkpoints/{name}/adoption/{analysis}/figures/{figure}.{form}",
    "L n n n n n n n",
    f"{ADOPTION}/0123456789abcdef/figures/path.csv",
)
rule("GET /checkpoints/{name}/rules", METRICS, "/checkpoints/fraud.checkout/rules")
rule(
    "GET /checkpoints/{name}/metrics/metrics.json",
    METRICS,
    "/checkpoints/fraud.checkout/metrics/metrics.json",
)
rule(
    "GET /checkpoints/{name}/metrics/figures/{figure}.{form}",
    METRICS,
    "/checkpoints/fraud.checkout/metrics/figures/rate.csv",
)
rule("GET /calendar", EVERYBODY)
rule("POST /calendar/move", AUTHOR, change="{change}", start="2030-01-01T00:00")
rule("POST /calendar/freezes", ADMIN, **FREEZE)
rule("POST /calendar/freezes/{freeze}/remove", ADMIN, "/calendar/freezes/{freeze}/remove")
rule("GET /changes", EVERYBODY)
rule("GET /changes/new", EVERYBODY)
rule("POST /changes", MODELS, **DRAFT)
rule("GET /changes/{change}", SEES, "/changes/{change}")
rule("GET /changes/{change}/edit", SEES, "/changes/{change}/edit")
rule("POST /changes/{change}/edit", AUTHOR, "/changes/{change}/edit", version="1", **DRAFT)
rule("POST /changes/{change}/{action}", AUTHOR, "/changes/{change}/withdraw", reason="r")
rule("GET /changes/{change}/readout", SEES, "/changes/{change}/readout")
rule("GET /changes/{change}/readout/readout.json", SEES, "/changes/{change}/readout/readout.json")
rule(
    "GET /changes/{change}/readout/figures/{name}.{form}",
    "L n n n n n n n",
    "/changes/{change}/readout/figures/a.csv",
)
rule("GET /models", EVERYBODY)
rule("POST /models", MODELS, project="fraud")
rule("GET /builds", EVERYBODY)
rule("GET /builds/new", EVERYBODY)
rule("POST /builds", MODELS, project="fraud", name="fraud-checkout", version="1", bands="0 approve")
rule("GET /builds/{build}", SEES, "/builds/{build}")
rule("POST /builds/{build}/cancel", MODELS, "/builds/{build}/cancel")
rule("GET /models/{digest}", SEES, "/models/{bundle}")
rule("GET /models/{digest}/rules", SEES, "/models/{bundle}/rules")
rule("POST /models/{digest}/rules", SEES, "/models/{bundle}/rules", then="check", text="", cases="")
# The bundle has no such rule, and the page after the form shows the refusal.
rule(
    "POST /models/{digest}/rules/{rule}",
    "L x x x x x x x",
    "/models/{bundle}/rules/night",
    project="fraud",
    to="retired",
    checkpoint="fraud.checkout",
    reason="r",
)
rule("GET /models/{digest}/card", SEES, "/models/{bundle}/card")
rule("GET /models/{digest}/card/card.{form}", SEES, "/models/{bundle}/card/card.md")
rule("POST /models/{digest}/card", MODELS, "/models/{bundle}/card", project="fraud", purpose="p")
# No explanation is stored with the bundle.
EXPLAINED = "/models/{digest}/explanation"
rule(f"GET {EXPLAINED}", NONE, "/models/{bundle}/explanation")
rule(f"GET {EXPLAINED}/explanation.json", NONE, "/models/{bundle}/explanation/explanation.json")
rule(
    f"GET {EXPLAINED}/figures/{{name}}.{{form}}", NONE, "/models/{bundle}/explanation/figures/importance.csv"
)
rule("GET /decisions", EVERYBODY)
rule("GET /decisions/{decision_id:path}", "L n n n n n n n", "/decisions/unknown")
for page in ("/learning", "/learning/report", "/learning/{name}", "/learning/{name}/report"):
    rule(
        f"GET {page}",
        "L x n n n n n n" if page == "/learning/report" else "L x + + + + + +",
        page.replace("{name}", "20261102T030000Z"),
    )
rule("GET /notifications", EVERYBODY)
rule("POST /notifications", OWNS, project="fraud", url="json://127.0.0.1:9/x", severity="info")
rule("POST /notifications/{channel}/test", OWNS, "/notifications/{channel}/test?project=fraud")
rule("POST /notifications/{channel}/remove", OWNS, "/notifications/{channel}/remove?project=fraud")
rule("GET /projects", EVERYBODY)
rule("POST /projects", ADMIN, name="p-{who}", title="P")
rule("GET /projects/{name}", SEES, "/projects/fraud")
rule("POST /projects/{name}", "L n n x x x x +", "/projects/fraud", title="Fraud")
rule("POST /projects/{name}/members", OWNS, "/projects/fraud/members", user="second", role="viewer")
rule("POST /projects/{name}/permissions", OWNS, "/projects/fraud/permissions", **PERMISSION)
rule(
    "POST /projects/{name}/permissions/{permission}/revoke",
    OWNS,
    "/projects/fraud/permissions/{permission}/revoke",
    reason="r",
)
rule("POST /projects/{name}/review-reasons", "L x x x x x + +", "/projects/fraud/review-reasons", reasons="")
rule("GET /reviews", EVERYBODY)
rule("GET /reviews/{case}", SEES, "/reviews/{case}")
rule("POST /reviews/{case}/claim", MODELS, "/reviews/{case}/claim")
rule("POST /reviews/{case}/release", MODELS, "/reviews/{case}/release")
rule("POST /reviews/{case}/assign", MODELS, "/reviews/{case}/assign", user="modeler")
rule(
    "POST /reviews/{case}/decide",
    MODELS,
    "/reviews/{case}/decide",
    decision="decline",
    reason="confirmed_fraud",
)
rule("GET /tokens", EVERYBODY)
rule("POST /tokens", "L x + + + + + +", label="x", role="viewer")
rule("POST /tokens/{token}/revoke", "L n n n n n n +", "/tokens/{token}/revoke")
rule("GET /users", ADMIN)
rule("POST /users", ADMIN, name="made-{who}")
rule("POST /users/{user}/admin", ADMIN, "/users/second/admin", admin="yes")
rule("POST /users/{user}/remove", ADMIN, "/users/third/remove")
rule("GET /settings", ADMIN)
rule("POST /settings/servers", ADMIN, name="a", control="nonsense")
rule("POST /settings/servers/{server}/remove", "L x x x x x x n", "/settings/servers/none/remove")
rule("POST /settings/checkpoints", ADMIN, checkpoint="c-{who}", alias="a@live")
rule("GET /agents", EVERYBODY)
rule("POST /agents/{name}/tools", OWNS, "/agents/fraud/tools", **{"tool-live_metrics": "on"})
rule("GET /audit", EVERYBODY)
rule("POST /audit/verify", ADMIN)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("routes")
    from platforms import SETTINGS

    world = World(
        directory,
        built_bundles,
        settings=SETTINGS.replace("[platform]", '[platform]\nlearning = "learning"', 1),
    )
    access = world.service.access
    root = world.actor("admin")
    access.add_user(root, "stranger")
    access.add_user(root, "third")
    access.update_project(root, "fraud", quotas=Quotas(open_changes=1000))
    _, world.tokens["stranger"] = access.create_token(root, user="stranger", label="t", role=Role.ADMIN)
    folder = directory / "learning" / "generations" / "20261102T030000Z" / "verdict"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<h1>Report</h1>")
    yield world
    world.close()


@pytest.fixture(scope="module")
def app(world: World) -> Any:
    return world.app()


@pytest.fixture(scope="module")
def visitors(world: World, app: Any) -> Iterator[dict[str, httpx.Client]]:
    clients = {}
    with serving(app) as address:
        for who in WHO:
            clients[who] = client = httpx.Client(base_url=address, timeout=60)
            _sign_in(client, world, who)
        yield clients
        for client in clients.values():
            client.close()


def _sign_in(client: httpx.Client, world: World, who: str) -> None:
    if who != "nobody":
        form = {"csrf": _csrf(client.get("/login").text), "token": world.tokens[who]}
        assert client.post("/login", data=form).status_code == 303, who


def _csrf(text: str) -> str:
    result = re.search(r'name="csrf" value="([^"]*)"', text)
    return result[1] if result else "none"


def _routes(routes: Any) -> Iterator[str]:
    for route in routes:
        if isinstance(route, Mount):
            continue
        if (included := getattr(route, "original_router", None)) is not None:
            yield from _routes(included.routes)
            continue
        assert isinstance(route, Route | APIRoute), f"{route} has a type that this test does not handle"
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield f"{method} {route.path}"


def test_every_page_has_a_rule(app: Any) -> None:
    assert sorted(_routes(app.routes)) == sorted({*RULES, *OPEN})


def test_every_route_of_rest_has_a_rule(app: Any) -> None:
    """Described operations have a rule in test_platform_api.py, which compares them with the same routes."""
    (mount,) = (route for route in app.routes if isinstance(route, Mount))
    api: Any = mount.app
    described = {
        f"{method.upper()} {path}"
        for path, operations in api.openapi()["paths"].items()
        for method in operations
    }
    assert set(_routes(api.routes)) - described == UNDESCRIBED_API


def _fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


@pytest.mark.parametrize("route", RULES)
def test_each_role_reaches_its_pages_only(
    world: World, visitors: dict[str, httpx.Client], route: str
) -> None:
    letters, path, form = RULES[route]
    result = ""
    for who in WHO:
        values = _objects(world, route, who)
        client = visitors[who]
        where = _fill(path, values)
        if route.startswith("GET"):
            answer = client.get(where)
        else:
            data = {name: _fill(text, values) for name, text in form.items()}
            files = {"archive": ("b.tar", world.archive("score-2"))} if route == "POST /models" else None
            sent = {"csrf": _csrf(client.get("/tokens").text), **data}
            answer = client.post(where, data=sent, files=files)
        result += _letter(answer)
        if route == "POST /logout":
            _sign_in(client, world, who)
    assert result == letters, f"{route}: {' '.join(result)} for {' '.join(WHO)}"


def _objects(world: World, route: str, who: str) -> dict[str, str]:
    """Create the objects of a route for each user again, because an allowed user may change them."""
    values = {"who": who, "bundle": world.candidate}
    if "{freeze}" in route:
        freeze = NewFreeze(name=f"g-{who}", kind="deny", cron="0 0 1 1 *", timezone="UTC", minutes=1)
        values["freeze"] = str(world.service.calendar.add_freeze(world.actor("admin"), freeze).id)
    if "{change}" in route or "/move" in route:
        values["change"] = world.draft().id
    if "{build}" in route:
        values["build"] = world.build().id
    if "{permission}" in route:
        grant = NewPermission(**{**PERMISSION, "days": 30})
        values["permission"] = world.service.permissions.grant(world.actor("owner"), "fraud", grant).id
    if "{channel}" in route:
        channel = world.service.notifications.add_channel(
            world.actor("owner"), "fraud", "json://127.0.0.1:9/x"
        )
        values["channel"] = str(channel.id)
    if "{case}" in route:
        values["case"] = str(world.review())
    if "{token}" in route:
        root = world.actor("admin")
        values["token"] = world.service.access.create_token(root, user="second", label="x", role=Role.VIEWER)[
            0
        ].id
    return values


def _letter(answer: httpx.Response) -> str:
    if answer.status_code == 303:
        location = answer.headers["location"]
        if location.startswith("/login?") and "why=out" not in location:
            return "L"
        passed = answer.cookies.get("scorer-passing", "").strip('"').partition(".")[0]
        # The page after the form shows the refusal.
        return "x" if passed and json.loads(base64.urlsafe_b64decode(passed))["error"] else "+"
    assert answer.status_code < 500, answer.text
    return {401: "x", 403: "x", 404: "n"}.get(answer.status_code, "+")
