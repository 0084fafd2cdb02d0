"""What a page says about a status of HTTP."""

from __future__ import annotations

TITLES = {
    400: "This address cannot be read",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    405: "Not that way",
    409: "Not now",
    413: "Too large",
    422: "Something is not right yet",
    423: "Frozen",
    429: "Used up",
    500: "Something failed here",
    503: "Something does not answer",
}
REMEDIES = {
    403: "Ask an owner of the project for the role that it takes, or somebody else to do it.",
    404: "It may have been removed, belong to a project that is not yours, or the link has a mistake.",
    405: "Open the page from the menu instead of by this address.",
    409: "Somebody or something else was first. Look at the present state and decide again.",
    413: "Send less, or ask an admin to raise [platform] upload_mb.",
    422: "Go back, correct it, and send it again.",
    423: "Wait for the end of the freeze that the calendar shows; rolling back always works.",
    429: "Let something end first, or ask an admin for a larger quota.",
    500: "Nothing of what was asked was half done. Try again; if it fails again, give an admin the id below.",
    503: "Try again in a moment; the platform's own state is unaffected.",
}
