"""What the errors of one request say of its body: the path of the field, and an excerpt of its value.

Promises: an error that names a field has the beginning of the value that was sent there. Does not know:
which fields there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pydantic import BaseModel

from eyas.core import RequestError
from eyas.server.http.errors import ApiError
from eyas.server.http.excerpts import excerpt_at

Rename = Callable[[str], str]
"""Converts the path of a field of the request that a body was converted to to its path in the body."""


def renamed(error: RequestError | ApiError, rename: Rename) -> ApiError:
    """Return the error about the field that was sent; messages begin with the path of the field."""
    api_error = ApiError.of(error) if isinstance(error, RequestError) else error
    old = api_error.param
    if old is None or (new := rename(old)) == old:
        return api_error
    message = api_error.message
    if message.startswith(f"{old}:"):
        message = new + message[len(old) :]
    retry_after = api_error.retry_after or 0
    return ApiError(api_error.code, message, param=new, retry_after=retry_after)


def by_prefix(path: str, renames: Iterable[tuple[str, str]]) -> str:
    """Return the path with the first of the old names that it begins with replaced by the new one."""
    for old, new in renames:
        if path == old or path.startswith((f"{old}.", f"{old}[")):
            return new + path[len(old) :]
    return path


class ErrorContext:
    """The errors of one request. rename: for bodies that are converted to requests of another route."""

    def __init__(self, body: BaseModel, rename: Rename = lambda path: path) -> None:
        self._body = body
        self._rename = rename

    def explained(self, error: RequestError | ApiError) -> ApiError:
        """Return the error with the path and an excerpt of the value that was sent."""
        api_error = renamed(error, self._rename)
        if api_error.excerpt is None:
            api_error.excerpt = excerpt_at(self._body, api_error.param)
        return api_error

    @contextmanager
    def explains(self) -> Iterator[None]:
        """Raise errors of the block as explained ApiErrors."""
        try:
            yield
        except (RequestError, ApiError) as error:
            raise self.explained(error) from error
