"""Options, keywords and fields of SGLang and vLLM ("the peers"), and what they are in eyas.

Promises: an option of a peer has the same meaning here, or it has no effect because eyas always does
what it asks for (and a note says so), or it is refused by name with a remedy.
Does not know: command lines, engines.
"""

from eyas.peers.refused import Refused
from eyas.peers.translate import Translation, translate_options

__all__ = ["Refused", "Translation", "translate_options"]
