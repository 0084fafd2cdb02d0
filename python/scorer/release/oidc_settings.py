"""Settings of signing in at an OpenID provider."""

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
        raise ValueError(f'"{value}" is none of {", ".join(Role)}') from None


class GroupGrant(Section):
    """What members of a group at the provider may do here."""

    group: str = Field(min_length=1, max_length=200, description="The group's name at the provider.")
    role: Annotated[Role, BeforeValidator(_as_role)] = Field(
        description="viewer, modeler, approver or owner of the project; admin of the whole platform."
    )
    project: str = Field(default="", description="The project; empty for admin.")

    @model_validator(mode="after")
    def _names_a_project(self) -> GroupGrant:
        if bool(self.project) == (self.role is Role.ADMIN):
            raise ValueError("a grant names a project, and the role admin none")
        return self


if TYPE_CHECKING:
    Grants = tuple[GroupGrant, ...]
    Names = tuple[str, ...]
else:
    Grants = Annotated[tuple[GroupGrant, ...], BeforeValidator(_as_tuple)]
    Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class OidcSettings(Section):
    """Signing in to the pages at an OpenID provider, by authorization code with PKCE. Programs use tokens."""

    issuer: str | None = Field(
        default=None,
        description="The provider's issuer, to which /.well-known/openid-configuration is added. Default: "
        "people sign in by tokens.",
        examples=["https://login.example.com"],
    )
    client_id: str = Field(
        default="", max_length=200, description="The platform's client at the provider.", examples=["scorer"]
    )
    client_secret_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="The file with the client's secret. Default: a public client, PKCE alone.",
        examples=["oidc.secret"],
    )
    name: str = Field(
        default="single sign-on", min_length=1, max_length=60, description="What the sign-in page calls it."
    )
    scopes: Names = Field(
        default=("openid", "profile", "email"), description="Scopes to ask for; openid is one of them."
    )
    user_claim: str = Field(
        default="email",
        pattern=r"^[A-Za-z0-9_.:/-]{1,100}$",
        description="The claim with the user's name here. An e-mail address must be verified by the "
        "provider.",
    )
    groups_claim: str = Field(
        default="groups",
        pattern=r"^[A-Za-z0-9_.:/-]{1,100}$",
        description="The claim with the user's groups: a list of names, or one name.",
    )
    allowed_groups: Names = Field(
        default=(),
        description="Groups whose members may sign in and are added as users. Default: users that exist "
        "here, and members of a group with a grant.",
        examples=[["scorer-users"]],
    )
    grants: Grants = Field(
        default=(),
        description="Roles by group, set anew with every sign-in. They replace other memberships of the user "
        "in the projects that they name.",
        examples=[[{"group": "fraud-team", "project": "checkout", "role": "modeler"}]],
    )

    @model_validator(mode="after")
    def _is_complete(self) -> OidcSettings:
        if self.issuer is None:
            return self
        parts = urlsplit(self.issuer)
        is_local = parts.scheme == "http" and is_loopback(f"{parts.hostname}:1")
        if not parts.hostname or parts.query or parts.fragment or not (parts.scheme == "https" or is_local):
            raise ValueError(f'issuer: "{self.issuer}" is no https:// address of a provider')
        if not self.client_id:
            raise ValueError("client_id: a provider knows the platform by one; set it")
        if "openid" not in self.scopes or not all(_TEXTS.fullmatch(scope) for scope in self.scopes):
            raise ValueError('scopes: openid is one of them, for instance ["openid", "email"]')
        return self
