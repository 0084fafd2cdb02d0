"""The page of agents in a browser: calls, filters, the form of an owner, hostile text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_world import ACTION, FRAUD, AgentWorld, agent_world
from browser import PHONE, WIDE, Visitor, chromium, serving

from scorer.release.agents.catalogue import TOOLS
from scorer.release.errors import NotFoundError

HOSTILE = "<script>document.title = 'owned'</script>"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[AgentWorld]:
    with agent_world(tmp_path_factory.mktemp("agents"), built_bundles) as opened:
        agents, robot = opened.service.agents, opened.actor("robot")
        agents.call(robot, "outcomes_by_feature", {"checkpoint": ACTION, "feature": "hour"}, client=HOSTILE)
        draft = {"project": "fraud", "checkpoint": FRAUD, "bundle": opened.candidate, "title": HOSTILE}
        agents.call(robot, "draft_change", draft)
        with pytest.raises(NotFoundError):
            agents.call(robot, "list_changes", {"project": HOSTILE[:1].replace("<", "other")})
        yield opened


@pytest.fixture(scope="module")
def site(world: AgentWorld) -> Iterator[tuple[Any, str]]:
    with serving(world.app()) as address, chromium() as browser:
        yield browser, address


def visit(site: Any, world: AgentWorld, user: str, **options: Any) -> Visitor:
    browser, address = site
    visitor = Visitor(browser, address, **options)
    visitor.sign_in(world.tokens[user])
    return visitor


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_members_see_what_agents_did(site: Any, world: AgentWorld, size: tuple[int, int]) -> None:
    visitor = visit(site, world, "viewer", size=size)
    visitor.open("/agents?project=fraud")
    page = visitor.page
    rows = page.locator("table tbody tr")
    assert rows.count() == 2, "a rejected call without a project is shown to the agent and to admins"
    assert "draft_change" in rows.nth(0).inner_text()
    assert page.get_by_role("link", name="cr-000001").get_attribute("href") == "/changes/cr-000001"
    assert page.title().startswith("Agents"), "text of an agent runs no script"
    assert visitor.basics() == []
    page.locator("select[name=tool]").select_option("outcomes_by_feature")
    page.get_by_role("button", name="Show").click()
    assert rows.count() == 1
    assert page.locator("fieldset input").first.is_disabled()
    visitor.check()
    visitor.close()


def test_an_agent_sees_its_rejected_calls(site: Any, world: AgentWorld) -> None:
    visitor = visit(site, world, "robot")
    visitor.open("/agents?result=not-found")
    rows = visitor.page.locator("table tbody tr")
    assert rows.count() == 1
    assert "there is no project" in rows.nth(0).inner_text()
    visitor.close()


def test_an_owner_chooses_the_tools_of_a_project(site: Any, world: AgentWorld) -> None:
    visitor = visit(site, world, "owner")
    visitor.open("/agents?project=fraud")
    page = visitor.page
    page.locator("input[name=tool-explain_decision]").uncheck()
    page.get_by_role("button", name="Save the tools").click()
    assert "The tools that agents may use are changed." in page.inner_text("main")
    assert set(world.service.access.project(world.actor("owner"), "fraud").agent_tools) == TOOLS.keys() - {
        "explain_decision"
    }
    visitor.check()
    visitor.close()
    world.service.agents.allow(world.actor("owner"), "fraud", list(TOOLS))
