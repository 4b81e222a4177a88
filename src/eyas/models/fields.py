"""Check the fields of a config.json that its family does not read: ignore them, or refuse the model.

Promises: an unread field is refused by name if its name suggests that the computation depends on it
and its value is not neutral; the other unread fields are logged in one line.
Does not know: families (each passes the fields that it reads).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any

from eyas.models.config_file import ConfigFile

log = logging.getLogger(__name__)

READ = frozenset(
    (
        *("architectures", "model_type", "auto_map", "quantization_config", "per_layer_config"),
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
        *("num_attention_heads", "num_key_value_heads", "hidden_act", "rms_norm_eps"),
        *("max_position_embeddings", "original_max_position_embeddings", "rope_theta"),
        *("rope_parameters", "rope_scaling", "partial_rotary_factor", "layer_types", "is_causal"),
        *("tie_word_embeddings", "bos_token_id", "eos_token_id", "num_nextn_predict_layers"),
    )
)
"""Fields that every dense family reads. num_nextn_predict_layers is here because MTP layers are found
by their tensors."""
_ARITHMETIC = re.compile(
    r"soft_?cap|multiplier|scal(e|ing)|norm|clip|clamp|limit|alpha|residual|qk_|rotary|rope|yarn|alibi"
    r"|mup|expert|router|routed|moe|logit|window|sliding|bias|parallel|lora|mamba|ssm|conv|attn"
    r"|attention|gat(e|ing)|cross|shar(ed?_|ing)|_heads?(_|$)|(^|_)dim(_|$)|pre_attn|embed|position|activation"
    r"|_act(_|$)|causal|sparse|compress|index_"
)
_HARMLESS = re.compile(
    r"dropout|_p?drop$|initiali[sz]|^init_|_loss|jitter|^output_|^return_|implementation|flash"
    r"|^use_cache|logits_to_keep|_parallel_size|_token_i(d|ndex)s?$|fp32|^problem_type$"
    r"|^is_(encoder_)?decoder$|^tie_encoder|_name_or_path|transformers|torch|unsloth|^chunk_size_feed"
    r"|^cross_attention_hidden_size$|^add_cross_attention$|^pruned_heads$|^use_bfloat16$"
)
"""Fields of training, of how a result is returned, or of a library's choice of implementation."""
_ONE_IS_NEUTRAL = re.compile(r"multiplier|scal(e|ing)|factor")


def check_unread(config: ConfigFile, read: Collection[str]) -> None:
    """Refuse a model with an unread field that may change its numbers.

    read: the family's FIELDS, in addition to `READ`. ValueError: names the field.
    """
    unread = {
        name: value
        for name, value in config.values.items()
        if name not in READ and name not in read and not _is_neutral(name, value)
    }
    changing = [name for name in unread if _ARITHMETIC.search(name) and not _HARMLESS.search(name)]
    if changing:
        name = min(changing)
        raise config.error(
            name,
            f"{_shortened(unread[name])} would change what the model computes and is not known for "
            f"{config.values['architectures'][0]} here; remove it if the model was made without it, "
            "or use a checkpoint without it",
        )
    others = sorted(name for name in unread if not _HARMLESS.search(name))
    if others:
        log.info("%s: not read: %s", config.path, ", ".join(others)[:1000])


def _is_neutral(name: str, value: Any) -> bool:
    """Whether the value means "off" or "unscaled"."""
    if value in (None, False, "", 0, [], {}):
        return True
    return value == 1 and _ONE_IS_NEUTRAL.search(name) is not None


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_BY_FIELD: Mapping[str, re.Pattern[str]] = {
    "it has layers with a state (Mamba, linear attention)": re.compile(
        r"mamba|^ssm|state_size|linear_(key|num)|conv_kernel"
    ),
    "it reads images, audio or video": re.compile(r"vision|audio|image_token|video_token"),
    "it has an encoder beside the decoder": re.compile(r"^encoder_|is_encoder_decoder"),
}
_BY_NAME: Mapping[str, re.Pattern[str]] = {
    "it has layers with a state (Mamba, linear attention)": re.compile(
        r"Mamba|Rwkv|Jamba|(?<!Llava)Next|Falcon_?H1|Zamba|Lfm"
    ),
    "it reads images, audio or video": re.compile(
        r"VL|Vision|(?<!T5For)(?<!BartFor)ConditionalGen|Omni|Audio|Llava|Image"
    ),
    "it has an encoder beside the decoder": re.compile(r"T5|Bart|Whisper|Encoder"),
    "it generates no text": re.compile(
        r"Classification|ForMaskedLM|QuestionAnswering|Reward|^Bert|Roberta|Embedding|(?<!LM)(?<!LMHead)Model$"
    ),
}


def unsupported_reason(architecture: str, config: ConfigFile) -> str:
    """Return, in parentheses, what an unsupported architecture has that few or no supported ones have.

    It is guessed from its name and its fields; "" where neither tells.
    """
    fields = [name for name, value in config.values.items() if not _is_neutral(name, value)]
    reasons = [reason for reason, pattern in _BY_NAME.items() if pattern.search(architecture)]
    reasons += [
        reason
        for reason, pattern in _BY_FIELD.items()
        if reason not in reasons and any(pattern.search(name) for name in fields)
    ]
    return f" ({', '.join(reasons)})" if reasons else ""
