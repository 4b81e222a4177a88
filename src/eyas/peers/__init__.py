"""The words of SGLang and vLLM for what eyas does: options, keywords and fields.

Promises: a peer's word does here what it does there, changes nothing because it is true here anyway
(and says why), or is refused by name with what to do instead. Does not know: command lines, engines.
"""

from eyas.peers.refused import Refused
from eyas.peers.translate import Said, in_our_words

__all__ = ["Refused", "Said", "in_our_words"]
