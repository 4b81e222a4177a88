"""The web page at `/`: a chat with the draft trees of its answers.

Promises: a fixed set of small files, read once; nothing is written into them, so they are the same for
everybody. The page's scripts reach the model as any client does, over the API.
Does not know: the API, models, keys.
"""

from eyas.server.playground.files import PATHS, PageFile, page_files

__all__ = ["PATHS", "PageFile", "page_files"]
