"""Title and remedy of each HTTP status, for the error page."""

from __future__ import annotations

TITLES = {
    400: "Bad request",
    401: "Unauthenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    422: "Validation error",
    423: "Frozen",
    429: "Quota exceeded",
    500: "Internal error",
    503: "Service unavailable",
}
REMEDIES = {
    403: "An owner of the project can grant you the required role, or do this for you.",
    404: "It may have been removed, belong to a project that you are not a member of, or the link is wrong.",
    405: "Open the page from the menu.",
    409: "The state has changed since you opened the page. Check the current state before you repeat it.",
    413: "Send a smaller request, or ask an admin to raise [platform] upload_mb.",
    422: "Go back, correct the value and send the form again.",
    423: "Wait for the end of the freeze that the calendar shows. A rollback is always possible.",
    429: "Wait until another change ends, or ask an admin for a larger quota.",
    500: "No change was applied partially. Try again. If it fails again, send an admin the request id.",
    503: "Try again in a moment. The platform's own state is not affected.",
}
