"""Draft heads of the tiny world: EAGLE, EAGLE-3 and MTP, some that know its bigrams, some that know
nothing.

A lucky head carries the token's embedding to its output layer, whose rows are the target's: it guesses
the bigram as the target's last layer does. A random one is nonsense in the right shape.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from eyas.attention.reference import ReferenceAttention
from eyas.draft import HeadNetwork, TreeDrafter, TreeShape
from eyas.draft.tree import num_scratch
from eyas.layers.rope import RopeSpec
from eyas.models import ModelSpec
from eyas.models.heads import DraftHead, HeadSpec
from eyas.models.heads.hyper import head_class
from tests.laws.world import HIDDEN, MAX_BATCH, MAX_SEATS, VOCAB, weights

NUM_TARGET_LAYERS = 2
KINDS = ("eagle", "eagle3", "mtp")


def own_mtp(target: ModelSpec) -> HeadSpec:
    """An MTP layer of the kind of the target's last layer, wired as DeepSeek's and GLM's are; with
    residual streams as DeepSeek-V4's."""
    mtp = replace(head_spec("mtp"), embedding_first=True)
    if target.hyper is not None:
        assert target.window_rope is not None
        mtp = replace(
            mtp,
            compressed=target.compressed[0].without_entries,
            hyper=target.hyper,
            norm_output=False,
            zero_first_embedding=False,
        )
    return replace(
        mtp,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_target_layers=target.num_layers,
        num_query_heads=target.num_query_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        norm_epsilon=target.norm_epsilon,
        rope=target.window_rope or target.rope,
        max_position=target.max_position,
        taps=(target.num_layers + (target.hyper is None),),
        windows=(target.windows[-1],),
        qk_norm=target.qk_norm,
        latent=target.latent,
        attention_scale=target.attention_scale,
        experts=target.experts,
        traits=target.traits,
    )


def head_spec(kind: str) -> HeadSpec:
    """A head for the tiny target; the EAGLE-3 one proposes five of every six tokens."""
    shared = HeadSpec(
        kind="eagle",
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        num_target_layers=NUM_TARGET_LAYERS,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        num_layers=1,
        num_query_heads=4,
        num_kv_heads=4,
        head_dim=16,
        intermediate_size=64,
        norm_epsilon=1e-6,
        rope=RopeSpec("default", 10000.0, 16),
        max_position=2048,
        taps=(NUM_TARGET_LAYERS + 1,),
        windows=(None,),
        own_embedding=False,
        own_head=True,
        fc_bias=True,
    )
    match kind:
        case "eagle":
            return shared
        case "eagle3":
            return replace(
                shared,
                kind="eagle3",
                taps=(0, 1, 2),
                draft_vocab_size=len(draft_ids()),
                fc_bias=False,
                fc_norm=True,
                entry_norms=True,
                final_norm=True,
                norm_output=True,
                calibration={0.7: 0.6, 1.3: 0.4},
            )
        case "mtp":
            return replace(
                shared,
                kind="mtp",
                fc_bias=False,
                embedding_first=False,
                entry_norms=True,
                first_attention_norm=True,
                final_norm=True,
                norm_output=True,
                zero_first_embedding=True,
                qk_norm=True,
            )
    raise AssertionError(kind)


def draft_ids() -> torch.Tensor:
    """The tokens that the EAGLE-3 head may propose."""
    ids = torch.arange(VOCAB)
    return ids[ids % 6 != 3]


def new_head(kind: str, dtype: torch.dtype, *, is_lucky: bool, layers: str = "dense") -> DraftHead:
    """A head ready to run beside the tiny target, whose layers are of the kind `layers`."""
    loaded = weights(dtype, layers)
    target = loaded.target
    spec = head_spec(kind) if layers == "dense" else own_mtp(target.spec)
    ids = draft_ids() if spec.draft_vocab_size < VOCAB else None
    head = head_class(spec)(
        spec,
        dtype=dtype,
        device="cpu",
        max_model_len=target.max_model_len,
        order=loaded.order.order,
        embedding=target.embedding,
        target_ids_V=ids,
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, blocks in head.parameters().items():
            for block in blocks:
                noise = torch.randn(block.shape, generator=generator)
                is_norm = "norm" in name
                norm = 1 - spec.traits.norm_offset + 0.1 * noise
                block.copy_(norm if is_norm else noise * block.shape[-1] ** -0.5)
        if is_lucky:
            _teach(head, spec, target.embedding.weight_VD.float())
        head.seal()
    return head


def _teach(head: DraftHead, spec: HeadSpec, embedding_VD: torch.Tensor) -> None:
    """Carry the embedding of a row's token to the output layer."""
    parameters = {name: blocks[0] for name, blocks in head.parameters().items()}
    hidden = spec.hidden_size
    identity = torch.eye(64, hidden)
    for name, parameter in parameters.items():
        if name.endswith(("fc.weight", ".down.weight", ".down.bias", "o.weight", "o_b.weight")):
            parameter.mul_(0.05)
    if spec.kind == "eagle3":  # attention finds the row's own token and brings its embedding
        for part, scale in (("q", 3.0), ("k", 3.0), ("v", 1.0)):
            weight = parameters[f"layers.0.attention.{part}.weight"]
            weight.zero_()
            weight[:, :hidden] = scale * identity
        parameters["layers.0.attention.o.weight"].copy_(identity.T)
    elif spec.hyper is not None:
        parameters["embedding_fc.weight"] += torch.eye(hidden)
    else:
        first = 0 if spec.embedding_first else hidden
        parameters["fc.weight"][:, first : first + hidden] += torch.eye(hidden)
    output_VD = _target_output(embedding_VD)
    ids = draft_ids() if spec.draft_vocab_size < VOCAB else torch.arange(VOCAB)
    parameters["head.weight"].copy_(output_VD[ids])


def _target_output(embedding_VD: torch.Tensor) -> torch.Tensor:
    """What the target's output layer says of the bigrams."""
    from tests.laws.world import bigrams

    pairs, output_VD = bigrams(), torch.zeros_like(embedding_VD)
    for token in range(VOCAB):
        output_VD[pairs.first[token]] += 2.0 * embedding_VD[token]
        output_VD[pairs.second[token]] += 1.6 * embedding_VD[token]
    return output_VD


def head_network(
    kind: str, dtype: torch.dtype, num_slots: int, *, is_lucky: bool, layers: str = "dense"
) -> HeadNetwork:
    """The head over a store of its own, with room for scratch behind it."""
    from tests.laws.world import new_store

    head = new_head(kind, dtype, is_lucky=is_lucky, layers=layers)
    scratch = MAX_SEATS * num_scratch(TreeShape(8, 4, 33))
    kv = new_store(head.spec.stores, num_slots + scratch, dtype, layers)
    return HeadNetwork(head, ReferenceAttention(kv), num_slots)


def head_drafter(
    kind: str,
    dtype: torch.dtype,
    num_slots: int,
    num_tokens: int,
    *,
    topk: int,
    is_lucky: bool = True,
    layers: str = "dense",
) -> TreeDrafter:
    """A head that grows chains, or trees where topk is above 1."""
    network = head_network(kind, dtype, num_slots, is_lucky=is_lucky, layers=layers)
    steps = num_tokens if topk == 1 else 4
    shape = TreeShape(steps, topk, num_tokens + 1).within(num_tokens + 1)
    return TreeDrafter(
        network, shape, first_scratch=num_slots + 1, max_rows=MAX_BATCH, trust=network.beta
    )
