"""The visitor of a page, with the service layer and helpers for forms and responses."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData, UploadFile

from scorer.release.errors import InvalidError, NotAllowedError, NotFoundError, PlatformError
from scorer.release.model import Actor, Project, Role
from scorer.release.problems import kind_of
from scorer.release.requests import read_form
from scorer.web import words
from scorer.web.identity import FIELD, check_form, is_same_origin
from scorer.web.multipart import read_form_data, uploaded
from scorer.web.rendering import query

if TYPE_CHECKING:
    from scorer.release.service import Service
    from scorer.release.settings import PlatformFile
    from scorer.web.app import Web


T = TypeVar("T")

PAGE = 50
"""Items of one page of a list. The next page has their cursor as the query parameter `before`."""

_MADE = re.compile(r"<footer.*?</footer>", re.DOTALL)


@dataclass(frozen=True)
class Visit:
    """One request of a user who is signed in."""

    request: Request
    web: Web
    actor: Actor
    csrf: str

    @property
    def service(self) -> Service:
        """Operations of the platform's service layer."""
        return self.web.service

    @property
    def settings(self) -> PlatformFile:
        """Settings of the platform, from `platform.toml`."""
        return self.web.settings

    @property
    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""
        return datetime.now(UTC)

    def ask(self, name: str, default: str = "") -> str:
        """Return a query parameter as it was sent, or the default."""
        return self.request.query_params.get(name, default).strip()

    def ask_number(self, name: str, default: float, *, low: float, high: float) -> float:
        """Return a query parameter as a number, or the default if it is not valid or out of range."""
        try:
            value = float(self.ask(name) or default)
        except ValueError:
            return default
        return value if low <= value <= high else default

    def ask_moment(self, name: str) -> datetime | None:
        """Return a query parameter as a time; None without one."""
        return moment(self.ask(name)) if self.ask(name) else None

    def address(self, **changed: str) -> str:
        """Return the address of this page with some query parameters replaced; empty ones are left out."""
        parameters = {**self.request.query_params, "said": "", **changed}
        return str(self.request.url.path) + query(**parameters)

    @staticmethod
    def paged(found: Sequence[T], key: Callable[[T], str], size: int = PAGE) -> tuple[Sequence[T], str]:
        """Split a list into one page and the cursor of the next one.

        Args:
            found: One item more than a page, if there are as many.
            key: Returns the cursor that leads to the items after this one.
            size: Items of a page.

        Returns:
            The items of the page, and the cursor of the next page; empty: there is none.
        """
        return found[:size], key(found[size - 1]) if len(found) > size else ""

    def role(self, project: str) -> Role | None:
        """Role of the visitor in a project; None: not a member."""
        return Role.ADMIN if self.actor.admin else self.actor.roles.get(project)

    def is_at_least(self, role: Role, project: str) -> bool:
        """Whether the visitor has at least a role in a project."""
        order, own = list(Role), self.role(project)
        return own is not None and order.index(own) >= order.index(role)

    def may(self, role: str, project: str = "") -> bool:
        """Whether the visitor has a role, or a higher one, in a project; empty: in any project."""
        projects = [project] if project else [*self.actor.roles]
        return self.actor.admin or any(self.is_at_least(Role(role), name) for name in projects)

    def checkpoints(self) -> list[str]:
        """Checkpoints of the visitor's projects."""
        known = list(self.settings.checkpoints)
        if self.actor.admin:
            return known
        mine = {name for one in self.projects() for name in one.checkpoints or known}
        return [name for name in known if name in mine]

    def projects(self) -> list[Project]:
        """Projects that the visitor may see."""
        return list(self.service.access.projects(self.actor))

    def page(
        self,
        template: str,
        *,
        status: int = 200,
        error: PlatformError | None = None,
        page_path: str = "",
        **values: Any,
    ) -> Response:
        """Render a page, or respond with 304 if the browser has it already.

        Args:
            template: File name below templates/.
            status: HTTP status of a page without an error.
            error: Error to show at the top. It sets the HTTP status.
            page_path: Path of the page. The response to a rejected form can have a path that only accepts
                forms; the browser then shows and refreshes this one. Empty: the path of the request.
            values: Variables of the template.
        """
        passed = self.passed_on()
        content = self.web.render(
            template,
            request=self.request,
            visit=self,
            actor=self.actor,
            csrf=self.csrf,
            now=self.now,
            said=words.SAID.get(self.ask("said"), "") if error is None and not passed else "",
            error=error or passed.get("error", ""),
            page_path="" if page_path == self.request.url.path else page_path,
            **values,
        )
        response = HTMLResponse(content, kind_of(error).status if error else status)
        if error is None and status == 200 and not passed:
            # The tag covers everything except the time of rendering.
            tag = f'W/"{hashlib.sha256(_MADE.sub("", content).encode()).hexdigest()[:32]}"'
            if self.request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers={"ETag": tag})
            response.headers["ETag"] = tag
        if passed:
            response.delete_cookie(self._passing, path="/", secure=self.web.identity.secure, httponly=True)
        return response

    def go(
        self,
        path: str,
        said: str = "",
        *,
        error: PlatformError | None = None,
        secret: str = "",
        parameters: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Redirect to another page by GET, so that reloading it repeats nothing.

        Args:
            path: Path of the page.
            said: Key of a message in `words.SAID`.
            error: Error that the page shows once.
            secret: Secret of a token that the page shows once.
            parameters: Query parameters.
        """
        response = RedirectResponse(path + query(**{**parameters, "said": said}), 303)
        if error is not None or secret:
            text = json.dumps({"error": str(error or "")[:2000], "secret": secret})
            payload = base64.urlsafe_b64encode(text.encode()).decode()
            response.set_cookie(
                self._passing,
                f"{payload}.{self.web.identity.sign(self._signed(payload))}",
                max_age=60,
                path="/",
                httponly=True,
                samesite="strict",
                secure=self.web.identity.secure,
            )
        return response

    def passed_on(self) -> Mapping[str, str]:
        """Return the `error` and `secret` that `go` passed to this page, if any."""
        payload, _, signature = self.request.cookies.get(self._passing, "").partition(".")
        if not payload or not self.web.identity.has_signed(self._signed(payload), signature):
            return {}
        passed: dict[str, str] = json.loads(base64.urlsafe_b64decode(payload))
        return passed

    @property
    def _passing(self) -> str:
        return f"{self.web.identity.cookie}-passing"

    def _signed(self, payload: str) -> str:
        return f"passing:{self.csrf}:{payload}"


class Form:
    """A form that was sent from a page of the platform."""

    def __init__(self, data: FormData) -> None:
        self._data = data

    def text(self, name: str, *, what: str = "", most: int = 4000) -> str:
        """Return a field without surrounding spaces.

        Args:
            name: Name of the field.
            what: Name in errors. If it is given, the field must not be empty.
            most: Limit on the length in characters.
        """
        value = self._data.get(name, "")
        text = value.strip() if isinstance(value, str) else ""
        if what and not text:
            raise InvalidError(f"{what} is missing; fill it in")
        if len(text) > most:
            raise InvalidError(f"{what or name} is {len(text):,} characters long; the limit is {most:,}")
        return text.replace("\r\n", "\n")

    def raw(self, name: str, *, most: int) -> str:
        """Return a field with its surrounding spaces, and line feeds as line ends.

        Args:
            name: Name of the field.
            most: Limit on the length in characters.
        """
        value = self._data.get(name, "")
        text = value.replace("\r\n", "\n") if isinstance(value, str) else ""
        if len(text) > most:
            raise InvalidError(f"{name} is {len(text):,} characters long; the limit is {most:,}")
        return text

    def chosen(self, name: str) -> list[str]:
        """Return the values of all ticked checkboxes of one name."""
        return [value for value in self._data.getlist(name) if isinstance(value, str)]

    def number(self, name: str, *, what: str, default: float | None = None) -> float:
        """Return a field as a finite number."""
        text = self.text(name, what="" if default is not None else what)
        try:
            value = float(text) if text else default
        except ValueError:
            value = math.nan
        if value is None or not math.isfinite(value):
            raise InvalidError(f'{what} "{text[:40]}" is not a number; write one such as 60 or 0.5')
        return value

    def read(self, kind: type[T], **given: Any) -> T:
        """Read the form as a request of the service layer.

        Args:
            kind: Class of the request.
            given: Values of fields that the page converts itself; None: not given.

        Raises:
            InvalidError: A field is not valid. The error names the fields and their rules.
        """
        names = [name for name in _field_names(kind) if name not in given]
        values = {name: text for name in names if (text := self.text(name, most=20_000))}
        values |= given
        return read_form(kind, {name: value for name, value in values.items() if value is not None})

    def share(self, name: str) -> float | None:
        """Return a percentage as a share; None if the field is empty."""
        return self.number(name, what=name) / 100 if self.text(name) else None

    def on(self, name: str) -> bool:
        """Whether a checkbox is ticked."""
        return self._data.get(name) is not None

    def file(self, name: str, *, what: str) -> UploadFile:
        """Return a field's uploaded file."""
        found = self.files().get(name)
        if found is None:
            raise InvalidError(f"{what} is missing; choose a file")
        return found

    def files(self) -> Mapping[str, UploadFile]:
        """Return the uploaded files by field."""
        return uploaded(self._data)

    def values(self) -> Mapping[str, str]:
        """Return the text fields as they were sent, so that the page can show them again."""
        return {name: value for name, value in self._data.items() if isinstance(value, str) and name != FIELD}


def _field_names(kind: type) -> Iterable[str]:
    names: Iterable[str] = getattr(kind, "model_fields", getattr(kind, "__dataclass_fields__", ()))
    return names


def moment(text: str, what: str = "the time") -> datetime:
    """Parse a time such as `2026-11-21T13:00`. Without an offset it is in UTC."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            f'{what} "{text[:40]}" is not a time; write one such as 2026-11-21T13:00'
        ) from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


@dataclass(frozen=True)
class UnsentForm:
    """A form of the platform's own origin whose CSRF token was not valid. The error page offers it again.

    Attributes:
        user: The visitor in whose name it would be sent.
        csrf: The CSRF token of the visitor's session.
        values: Fields of the form, as sent.
    """

    user: str
    csrf: str
    values: Mapping[str, str]


def visit(request: Request) -> Visit:
    """Authenticate the visitor. Raises NotAuthenticatedError, which leads to the sign-in page."""
    web: Web = request.app.state.web
    actor, csrf = web.identity.of(request)
    return Visit(request, web, actor, csrf)


Here = Annotated[Visit, Depends(visit)]


def posted(files: int = 1) -> Callable[[Request, Visit], AsyncIterator[Form]]:
    """Return a dependency that reads a form with at most this many files."""

    async def read(request: Request, here: Here) -> AsyncIterator[Form]:
        """Read the form after its CSRF check. Uploaded files exist as long as the request."""
        data = await read_form_data(request, max_files=files, max_fields=200, max_part_size=1 << 20)
        try:
            sent = data.get(FIELD, "")
            text = sent if isinstance(sent, str) else ""
            form = Form(data)
            try:
                check_form(request, is_known=here.web.identity.accepts(here.actor, here.csrf, text))
            except NotAllowedError:
                # A page that was opened before the visitor signed in again has the token of the old session.
                # Browsers cannot send a chosen file twice.
                if is_same_origin(request) and not form.files():
                    request.state.unsent = UnsentForm(here.actor.user, here.csrf, form.values())
                raise
            yield form
        finally:
            await data.close()

    return read


Posted = Annotated[Form, Depends(posted())]
PostedFiles = Annotated[Form, Depends(posted(files=4))]
"""A form with several files."""


def one_of(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return an entry by name. Raises NotFoundError, which lists the known names."""
    if name not in known:
        raise NotFoundError(f'there is no {what} "{name}"; there are {", ".join(sorted(known)) or "none"}')
    return known[name]
