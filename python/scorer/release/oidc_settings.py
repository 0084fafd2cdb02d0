"""Settings of the sign-in at an OpenID provider."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from scorer.config.fields import OptionalPath, Section, is_loopback
from scorer.release.model import Role

_TEXTS = re.compile(r"[\x21-\x7e]{1,200}")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _as_role(value: Any) -> Any:
    try:
        return Role(value)
    except ValueError:
        raise ValueError(f'"{value}" is not one of {", ".join(Role)}') from None


class GroupGrant(Section):
    """Role that the members of a group at the provider have on the platform."""

    group: str = Field(min_length=1, max_length=200, description="Name of the group at the provider.")
    role: Annotated[Role, BeforeValidator(_as_role)] = Field(
        description="viewer, agent, modeler, approver or owner of a project, or admin of the whole platform."
    )
    project: str = Field(default="", description="Name of the project; empty for admin.")

    @model_validator(mode="after")
    def _names_a_project(self) -> GroupGrant:
        if bool(self.project) == (self.role is Role.ADMIN):
            raise ValueError("a grant must name a project, except one of the role admin, which must not")
        return self


if TYPE_CHECKING:
    Grants = tuple[GroupGrant, ...]
    Names = tuple[str, ...]
else:
    Grants = Annotated[tuple[GroupGrant, ...], BeforeValidator(_as_tuple)]
    Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class OidcSettings(Section):
    """Sign-in to the pages at an OpenID provider, by authorization code with PKCE. Programs use tokens."""

    issuer: str | None = Field(
        default=None,
        description="Issuer URL of the provider, without /.well-known/openid-configuration. Default: users "
        "sign in with tokens.",
        examples=["https://login.example.com"],
    )
    client_id: str = Field(
        default="", max_length=200, description="Client id of the platform.", examples=["scorer"]
    )
    client_secret_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File with the client secret. Default: a public client, which uses PKCE only.",
        examples=["oidc.secret"],
    )
    name: str = Field(
        default="single sign-on", min_length=1, max_length=60, description="Name shown on the sign-in page."
    )
    scopes: Names = Field(
        default=("openid", "profile", "email"), description="Requested scopes, which must include openid."
    )
    user_claim: str = Field(
        default="email",
        pattern=r"^[A-Za-z0-9_.:/-]{1,100}$",
        description="Claim with the user's name on the platform. The provider must have verified an e-mail "
        "address.",
    )
    groups_claim: str = Field(
        default="groups",
        pattern=r"^[A-Za-z0-9_.:/-]{1,100}$",
        description="Claim with the user's groups, as a list of names or one name.",
    )
    allowed_groups: Names = Field(
        default=(),
        description="Groups whose members may sign in and are added as users. Default: only existing users "
        "and members of a group with a grant may sign in.",
        examples=[["scorer-users"]],
    )
    grants: Grants = Field(
        default=(),
        description="Roles by group, applied at every sign-in. They replace the user's other roles in the "
        "projects that they name.",
        examples=[[{"group": "fraud-team", "project": "checkout", "role": "modeler"}]],
    )

    agent_audience: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]{1,500}$",
        description="Audience of the provider's access tokens with which agents call /api/mcp for a user. It "
        "is that address, if the provider supports resource indicators (RFC 8707). Default: agents use "
        "tokens of the platform.",
        examples=["https://scorer.example.com/api/mcp"],
    )

    @model_validator(mode="after")
    def _is_complete(self) -> OidcSettings:
        if self.issuer is None:
            return self
        parts = urlsplit(self.issuer)
        is_local = parts.scheme == "http" and is_loopback(f"{parts.hostname}:1")
        if not parts.hostname or parts.query or parts.fragment or not (parts.scheme == "https" or is_local):
            raise ValueError(f'issuer: "{self.issuer}" is not an https:// address of a provider')
        if not self.client_id:
            raise ValueError("client_id: required with issuer; set the platform's client id at the provider")
        if "openid" not in self.scopes or not all(_TEXTS.fullmatch(scope) for scope in self.scopes):
            raise ValueError('scopes: openid is required, for example ["openid", "email"]')
        return self
