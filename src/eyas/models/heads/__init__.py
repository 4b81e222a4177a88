"""Draft heads: read, run and write EAGLE-1/2, EAGLE-3 and EAGLE-3.1 heads and MTP layers.

Promises: one `HeadSpec` and one `DraftHead` for every kind and file format; a head that does not fit
its target model is refused with the reason. Does not know: trees, sampling, training.
"""

from eyas.models.heads.load import (
    has_mtp_layers,
    has_supported_mtp,
    is_head,
    load_head,
    read_head,
    read_head_kv_scales,
)
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
    "default_taps",
    "format_gaps",
    "has_mtp_layers",
    "has_supported_mtp",
    "is_head",
    "load_head",
    "locate_head",
    "read_facts",
    "read_head",
    "read_head_kv_scales",
    "save_head",
]
