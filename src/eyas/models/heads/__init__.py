"""Draft heads: EAGLE-1/2, EAGLE-3, EAGLE-3.1 and MTP layers, read, run and written.

Promises: one `HeadSpec` and one `DraftHead` for every kind and file format; a head that does not fit
its target is refused with the reason. Does not know: trees, sampling, training.
"""

from eyas.models.heads.load import brings_layers, has_mtp, is_head, load_head, read_head
from eyas.models.heads.network import DraftHead
from eyas.models.heads.read import HeadFacts, read_facts
from eyas.models.heads.save import HeadFormat, format_gaps, save_head
from eyas.models.heads.spec import HeadSpec, default_taps
from eyas.models.locate import locate_head

__all__ = [
    "DraftHead",
    "HeadFacts",
    "HeadFormat",
    "HeadSpec",
    "brings_layers",
    "default_taps",
    "format_gaps",
    "has_mtp",
    "is_head",
    "load_head",
    "locate_head",
    "read_facts",
    "read_head",
    "save_head",
]
