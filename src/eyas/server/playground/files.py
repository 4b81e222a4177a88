"""The files of the page and their responses.

Promises: browsers run and load nothing but these files, and ask the server whether they have changed.
Does not know: what is in them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).with_name("page")
MEDIA_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(
        (
            "main.js",
            "answer.js",
            "api.js",
            "conversation.js",
            "elements.js",
            "settings.js",
            "tree.js",
        ),
        "text/javascript; charset=utf-8",
    ),
}
PATHS = {name: "/" if name == "index.html" else f"/playground/{name}" for name in MEDIA_TYPES}
"""The path of each file."""
SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""No inline scripts or styles, nothing of other origins, and no text is ever parsed as HTML."""
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page. etag: of its content, in quotes."""

    path: str
    media_type: str
    content: bytes
    etag: str

    async def respond(self, http: Request) -> Response:
        """Return the file, or 304 if the client has it."""
        headers = HEADERS | {"etag": self.etag}
        known = http.headers.get("if-none-match", "")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def page_files() -> list[PageFile]:
    """Read the files of the page."""
    files = []
    for name, media_type in MEDIA_TYPES.items():
        content = (FOLDER / name).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        files.append(PageFile(PATHS[name], media_type, content, etag))
    return files
