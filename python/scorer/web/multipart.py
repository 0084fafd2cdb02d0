"""Forms with files, of pages and of REST, parsed within limits."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from scorer.release.errors import InvalidError


async def read_form_data(
    request: Request, *, max_files: int, max_fields: int, max_part_size: int
) -> FormData:
    """Parse a form within limits of files, fields and bytes of a field. Raises InvalidError."""
    try:
        return await request.form(max_files=max_files, max_fields=max_fields, max_part_size=max_part_size)
    except ValueError as error:
        raise InvalidError(f"the form cannot be read ({error}); open the page again") from None
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise InvalidError(f"the form cannot be read ({error.detail}); open the page again") from None


def uploaded(data: FormData) -> Mapping[str, UploadFile]:
    """Return the files of a form by field. A field without a chosen file is left out."""
    return {name: value for name, value in data.items() if isinstance(value, UploadFile) and value.filename}
