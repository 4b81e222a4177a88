"""Mutations of the package, each with the test that must fail for it; and the command that tries them.

`python -m tests.laws.mutations 0 2` tries the first of two shares. Each mutation runs in a forked
process that replaces the code of the mutated function and runs the test; the package is imported and
the tests are collected once, before. Each mutation must fail its test; without a mutation all tests
must pass, which a third argument `alone` leaves to the suite.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import torch

from eyas.native import steps
from eyas.native.build import build
from tests.laws.anchors import AnchorError, replace, replace_text

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "eyas"
STEPS = "native/steps.c"
NAMED = "tests/laws/test_named_laws.py::test_"
TREES = "tests/draft/test_tree_drafter.py::test_"
HEADS = "tests/draft/test_head_rows.py::test_"
GROW = "tests/draft/test_grow.py::test_"
BLEND = "tests/draft/test_blend.py::test_"
VERIFIER = "tests/engine/test_verifier.py::test_"
PROCESS = "tests/sampling/test_process.py::test_"
MANAGER = "tests/cache/test_manager_law.py::test_"
STREAM = "tests/laws/test_stream_law.py::test_"
STATES = "tests/layers/test_delta_rule.py::test_"
SNAPSHOTS = "tests/cache/test_snapshots.py::test_"
WINDOWS = "tests/cache/test_window_slots.py::test_"
ATTENTION = "tests/attention/test_reference_attention.py::test_"
NOISE = "tests/sampling/test_noise.py::test_"
FORCED = "tests/draft/test_forced.py::test_"
RUNS = "tests/engine/test_branches.py::test_"
PRUNE = "tests/engine/test_prune.py::test_"
MARKS = "tests/engine/test_stops_marks.py::test_"
BACKENDS = "tests/constraint/test_backends.py::test_"
FILLING = "tests/constraint/test_filling.py::test_"
EVENTS = "tests/dialect/test_stream_law.py::test_"
CAPTURES = "tests/laws/test_capture_law.py::test_a_model_of_two_layers_says_the_same_from_graphs"
ARGMAX = VERIFIER + "a_token_is_the_argmax_of_logits_and_the_noise_of_its_position"


@dataclass(frozen=True)
class Mutation:
    """In `function` of `file` the syntax `old`, which occurs there once, becomes `new`; then `test`
    must fail.

    function: the qualified name of a function, method or class. old, new: an expression or statements;
    of a file in C, text.
    """

    name: str
    file: str
    function: str
    old: str
    new: str
    test: str

    def apply(self, package: Path) -> str:
        """Return the text of `file` below `package` with the mutation. Raises AnchorError, or
        FileNotFoundError where the file is gone."""
        source = (package / self.file).read_text()
        replace_in = replace_text if self.is_in_c else replace
        return replace_in(source, self.function, self.old, self.new)

    @property
    def is_in_c(self) -> bool:
        return self.file.endswith(".c")


MUTATIONS = [
    Mutation(
        "noise is keyed by the next position",
        "ops/choose.py",
        "_by_native",
        "keys = (seed_B[sequence_R], position_R.contiguous(), choice_B[sequence_R])",
        "keys = (seed_B[sequence_R], position_R + 1, choice_B[sequence_R])",
        VERIFIER + "a_token_is_the_argmax_of_logits_and_the_noise_of_its_position[0.8-root]",
    ),
    Mutation(
        "all choices of a request share their noise",
        "sampling/params.py",
        "BatchParams.__init__",
        "s.choice",
        "0",
        NAMED + "choices_have_noise_of_their_own",
    ),
    Mutation(
        "noise is that of the next token id",
        STEPS,
        "eyas_gumbel",
        "noise_of(&own, ids ? ids[row * size + k] : k)",
        "noise_of(&own, ids ? ids[row * size + k] : k + 1)",
        NOISE + "the_noise_of_a_token_is_the_gumbel_of_its_own_lane",
    ),
    Mutation(
        "a sibling's token is penalised",
        "runner/rows.py",
        "_sampling_rows",
        "ancestors(tree.parents_BW)[sequence_R, node_R]",
        "(tree.parents_BW >= 0)[sequence_R]",
        NAMED + "penalties_are_those_of_a_nodes_own_path[oracle tree]",
    ),
    Mutation(
        "a chain's later tokens are penalised",
        "runner/rows.py",
        "_sampling_rows",
        "(columns_W <= node_R.unsqueeze(1)) & (columns_W > 0)",
        "(columns_W <= node_R.unsqueeze(1) + 1) & (columns_W > 0)",
        NAMED + "penalties_are_those_of_a_nodes_own_path[oracle chain]",
    ),
    Mutation(
        "penalties forget the ancestors",
        "sampling/process.py",
        "_penalise",
        "rows.is_ancestor_RD[picked].to(torch.float32)",
        "0 * rows.is_ancestor_RD[picked].to(torch.float32)",
        PROCESS + "penalties_count_the_ancestors_and_no_other_node",
    ),
    Mutation(
        "every branch has the root's mask",
        "engine/branches.py",
        "Branch.put",
        "mask_WK[list(self.nodes[begin:num])] = rows_RK[first + begin : first + num]",
        "mask_WK[list(self.nodes[begin:num])] = rows_RK[first]",
        NAMED + "each_node_has_its_own_mask[oracle tree]",
    ),
    Mutation(
        "mask rows of branches stay in the order they were filled",
        "engine/branches.py",
        "Branch.put",
        "mask_WK[list(self.nodes[begin:num])] = rows_RK[first + begin : first + num]",
        "mask_WK[begin:num] = rows_RK[first + begin : first + num]",
        RUNS + "rows_of_branches_go_where_their_nodes_are",
    ),
    Mutation(
        "a branch starts at the root",
        "engine/branches.py",
        "requested",
        "MaskRequest(state, row, tokens, path, repeats_first=bool(branches))",
        "MaskRequest(state, row, tokens, (), repeats_first=bool(branches))",
        RUNS + "requests_lead_from_the_root_and_have_rows_one_after_the_other",
    ),
    Mutation(
        "an automaton advances by the first chosen token only",
        "engine/commit.py",
        "Committer._move",
        "automaton.advance(tokens)",
        "automaton.advance(tokens[:1])",
        NAMED + "each_node_has_its_own_mask[oracle chain]",
    ),
    Mutation(
        "the first slots are committed, not the accepted ones",
        "engine/commit.py",
        "_at",
        "node_slots[nodes]",
        "node_slots[:num]",
        NAMED + "accepted_nodes_are_stored_where_later_requests_look",
    ),
    Mutation(
        "a window loses its first token",
        "cache/manager.py",
        "CacheManager.commit",
        "self._leave_windows(lease, end - self.windows.reach)",
        "self._leave_windows(lease, end - self.windows.reach + 1)",
        WINDOWS + "what_the_next_query_sees_is_held_and_no_more",
    ),
    Mutation(
        "a prefix is shared without all that its window shows",
        "cache/windows.py",
        "WindowSlots.usable",
        "seen = np.minimum(places + 1, self.reach)",
        "seen = np.minimum(places + 1, self.reach - 1)",
        WINDOWS + "a_prefix_can_be_continued_where_all_is_left_that_a_query_sees",
    ),
    Mutation(
        "slots of accepted nodes are not reordered",
        STEPS,
        "eyas_advance",
        "of->node_slots_stride + nodes[i]]",
        "of->node_slots_stride + i]",
        NAMED + "a_walk_goes_to_the_child_that_was_chosen_and_no_other[oracle tree]",
    ),
    Mutation(
        "positions of a tree's nodes are one too high",
        STEPS,
        "eyas_node_rows",
        "depths[w] = depths[parent < 0 ? 0 : parent >= w ? 0 : parent] + 1;",
        "depths[w] = depths[parent < 0 ? 0 : parent >= w ? 0 : parent] + 2;",
        VERIFIER
        + "a_token_is_the_argmax_of_logits_and_the_noise_of_its_position[0.8-random trees]",
    ),
    Mutation(
        "the walk follows the first child",
        STEPS,
        "eyas_walk",
        "== node && drafted[next] == own[node])",
        "== node)",
        NAMED + "a_walk_goes_to_the_child_that_was_chosen_and_no_other[oracle tree]",
    ),
    Mutation(
        "the walk of a chain continues after a rejected token",
        STEPS,
        "eyas_walk",
        "is_walking = next < size && (parents || drafted[next] == own[node]);",
        "is_walking = next < size;",
        NAMED + "a_walk_goes_to_the_child_that_was_chosen_and_no_other[oracle chain]",
    ),
    Mutation(
        "sequences share the scratch slots of their inner nodes",
        STEPS,
        "eyas_level_rows",
        "first_scratch + seat * per_seat",
        "first_scratch + 0 * seat * per_seat",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-1]",
    ),
    Mutation(
        "a drafter reads the noise one position early",
        "draft/tree.py",
        "TreeDrafter._sampling_rows",
        "sequence_R, position_R = growth.places_R",
        "sequence_R, position_R = growth.places_R[0], growth.places_R[1] - 1",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-1]",
    ),
    Mutation(
        "positions of inner nodes are one too low",
        STEPS,
        "eyas_level_rows",
        "least(position, of->last_position)",
        "least(position - 1, of->last_position)",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-1]",
    ),
    Mutation(
        "a node is expanded below its neighbour's parent",
        STEPS,
        "eyas_level_rows",
        "above[b * topk + w - before]",
        "above[b * topk + width - 1 - w]",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-3]",
    ),
    Mutation(
        "a head reads the feature of its own position",
        STEPS,
        "eyas_tail_rows",
        "own_slots[position ? position - 1 : 0]",
        "own_slots[position]",
        HEADS + "a_head_in_the_engine_is_the_head_on_the_whole_text[eagle3-1-roomy]",
    ),
    Mutation(
        "the draft row of the first accepted token is skipped",
        "draft/catch_up.py",
        "RowTracker.step",
        "span.root_low + 1",
        "span.root_low + 2",
        HEADS + "a_head_in_the_engine_is_the_head_on_the_whole_text[eagle-1-roomy]",
    ),
    Mutation(
        "a latent row's values are its last numbers",
        "attention/tiles.py",
        "Tiles.run",
        "out[..., : self._output_dim]",
        "out[..., -self._output_dim :]",
        ATTENTION + "values_may_be_a_part_of_keys[float32 by torch-latent-True]",
    ),
    Mutation(
        "a head attends to position 0",
        "attention/reference.py",
        "_kernel",
        "store.first_position",
        "0",
        HEADS + "a_head_in_the_engine_is_the_head_on_the_whole_text[mtp-1-roomy]",
    ),
    Mutation(
        "reused slots still count as filled",
        "draft/catch_up.py",
        "RowTracker.forget",
        "self._is_made_S[np.concatenate(written)] = False",
        "self._is_made_S[np.concatenate(written)] = True",
        TREES + "what_it_shares_is_right_to_the_last_slot[0]",
    ),
    Mutation(
        "a grown node gets its parent's left neighbour as parent",
        STEPS,
        "eyas_keep_best",
        """                    parent++;
                parent++;""",
        "                    parent++;",
        GROW + "a_tree_is_what_eagle_2_defines[5-4-16-False]",
    ),
    Mutation(
        "scores are not summed along a path",
        STEPS,
        "eyas_add_level",
        "depth ? above[q] + scores[b * level + e] :",
        "depth ? 0 * above[q] + scores[b * level + e] :",
        GROW + "a_tree_is_what_eagle_2_defines[5-4-8-False]",
    ),
    Mutation(
        "a blend makes every node a child of the root",
        "ops/merge_trees.py",
        "merge_trees",
        "parents_BW.scatter_(1, at_B1, above_B1.clamp(min=0))",
        "parents_BW.scatter_(1, at_B1, 0 * above_B1)",
        BLEND + "a_blend_is_the_union_of_its_trees",
    ),
    Mutation(
        "a prefix match includes the root",
        "cache/manager.py",
        "CacheManager.admit",
        "np.asarray(tokens[:-1] if shares else [], dtype=np.int64)",
        "np.asarray(tokens if shares else [], dtype=np.int64)",
        MANAGER + "a_match_stops_short_of_the_root",
    ),
    Mutation(
        "rejected slots are not returned",
        "cache/manager.py",
        "CacheManager.commit",
        "part.give(_rejected(reserved, kept))",
        "part.give(reserved[len(kept) :])",
        MANAGER + "kept_slots_stay_where_they_are_and_the_others_return",
    ),
    Mutation(
        "a locked prefix may be evicted",
        "cache/radix.py",
        "RadixTree.evict",
        "parent is None or node.num_locks or node.children or node.last_used != last_used",
        "parent is None or node.children or node.last_used != last_used",
        "tests/cache/test_radix_law.py::test_a_locked_leaf_is_passed_over_however_old_it_is",
    ),
    Mutation(
        "min_tokens bars the end one token too long",
        "sampling/process.py",
        "_bar",
        "rows.position_R - params.num_prompt_B[b] + 1 < min_tokens",
        "rows.position_R - params.num_prompt_B[b] + 1 <= min_tokens",
        PROCESS + "no_end_before_min_tokens_and_none_barred_after[3]",
    ),
    Mutation(
        "filters run before the temperature",
        "ops/scale_and_filter.py",
        "scale_and_filter",
        "logits = x_RV[picked]",
        "logits = logits_RV[picked].clone()",
        PROCESS + "filters_see_the_temperature",
    ),
    Mutation(
        "a tie at the top-k threshold is cut",
        "ops/scale_and_filter.py",
        "scale_and_filter",
        "(logits < threshold) & (top_k_R1 > 0)",
        "(logits <= threshold) & (top_k_R1 > 0)",
        PROCESS + "ties_at_the_top_k_threshold_are_all_kept",
    ),
    Mutation(
        "the text is cut after the stop string, not before",
        "engine/stops.py",
        "StopChecker._append",
        "start + len(text) if self._params.include_stop_str_in_output else start",
        "start if self._params.include_stop_str_in_output else start + len(text)",
        NAMED + "a_stop_inside_a_draft_ends_the_text_there",
    ),
    Mutation(
        "the beginning of a stop string is shown",
        "engine/stops.py",
        "StopChecker._show",
        "end -= self._held_back()",
        "end -= 0",
        STREAM + "the_stop_that_completes_first_wins",
    ),
    Mutation(
        "a stop string across two tokens is missed",
        "engine/stops.py",
        "StopChecker._find_stop",
        "max(0, self._num_searched - len(stop) + 1)",
        "self._num_searched",
        STREAM + "the_stop_that_completes_first_wins",
    ),
    Mutation(
        "a query does not see itself",
        "attention/tiles.py",
        "Tiles.__init__",
        "columns_L <= positions_YQ1",
        "columns_L < positions_YQ1",
        ATTENTION + "trees_see_their_own_path[(4, 2)-None-float32 by torch]",
    ),
    Mutation(
        "a row competes with the sink of another head of its group",
        "attention/tiles.py",
        "attend_tiles",
        "sinks_GJ.repeat_interleave(num_queries, dim=1)",
        "sinks_GJ.repeat(1, num_queries)",
        ATTENTION + "sinks_take_their_part[(6, 2)-16-float32 by torch]",
    ),
    Mutation(
        "rows of gate and up stay mixed",
        "layers/mlp.py",
        "set_apart",
        "each.unflatten(0, (-1, 2))",
        "each.unflatten(0, (2, -1))",
        "tests/models/test_gpt_oss.py::test_shards_that_part_a_layer_give_the_same_logits",
    ),
    Mutation(
        "later rows of a packed weight get the scales of the first",
        "models/formats/scaled.py",
        "Scaled.pack",
        "torch.arange(start, stop, layout.rows)",
        "torch.arange(0, stop - start, layout.rows)",
        "tests/models/test_packing.py::test_rows_that_come_in_parts_keep_their_scales",
    ),
    Mutation(
        "a step is planned without the one in flight",
        "engine/scheduler.py",
        "Scheduler._add_span",
        "num_tokens + sequence.num_in_flight_tokens + 1",
        "num_tokens + 1",
        NAMED + "a_flight_ahead_sees_what_the_one_before_it_chose[1]",
    ),
    Mutation(
        "a resource limit in a draft ends the step",
        "constraint/automaton.py",
        "Automaton._num_legal",
        "Exception",
        "ZeroDivisionError",
        FORCED + "a_draft_that_breaks_the_library_is_not_legal[after:1]",
    ),
    Mutation(
        "forks share one list of tokens",
        "constraint/automaton.py",
        "Automaton.fork",
        "fork.root, fork._tokens = root, list(self._tokens)",
        "fork.root, fork._tokens = root, self._tokens",
        FORCED + "a_fork_goes_its_own_way",
    ),
    Mutation(
        "a replay skips a token",
        "constraint/automaton.py",
        "Automaton.replay",
        "self._tokens",
        "self._tokens[1:]",
        FORCED + "a_replay_stands_at_the_same_place",
    ),
    Mutation(
        "a draft exceeds its budget",
        "constraint/automaton.py",
        "Automaton._close",
        "closing[above] and tokens_W[node] != due[above]",
        "closing[above] and tokens_W[node] == -1",
        FORCED + "a_budget_closes_whatever_the_grammar_would_take",
    ),
    Mutation(
        "a budget closes one token late",
        "constraint/budget.py",
        "BudgetCount.must_follow",
        "self.num_tokens < self.budget.max_tokens",
        "self.num_tokens <= self.budget.max_tokens",
        FORCED + "a_closing_that_was_begun_goes_on",
    ),
    Mutation(
        "an end marker that spans two tokens is missed",
        "constraint/budget.py",
        "BudgetCount.after",
        "self.tail + self.token_bytes(token)",
        "self.token_bytes(token)",
        FORCED + "an_end_in_time_leaves_the_budget_out",
    ),
    Mutation(
        "a mask that failed counts as filled",
        "constraint/mask_batch.py",
        "MaskRequest.note",
        "filled or (0, 0)",
        "filled or (0, 1)",
        FORCED + "a_state_that_fails_has_no_mask_and_its_neighbours_have_theirs",
    ),
    Mutation(
        "a failure in a batch of masks fails the others",
        "constraint/mask_batch.py",
        "MaskBatch._settled",
        "[_fill_alone(each, self.mask_RK) for each in self.requests]",
        "[None for each in self.requests]",
        FORCED + "a_state_that_fails_has_no_mask_and_its_neighbours_have_theirs[True]",
    ),
    Mutation(
        "the deadline of masks is ignored",
        "constraint/filling.py",
        "Filling._run_later",
        "now > self._deadline",
        "now < 0",
        FILLING + "roots_are_filled_first_and_the_rest_while_there_is_time[here]",
    ),
    Mutation(
        "a matcher keeps its cached mask after a rollback",
        "constraint/llguidance_draft.py",
        "DraftMatcher.is_astray",
        "return self.is_fit and place[:num] != self._asked[:num]",
        "return False",
        "tests/constraint/test_draft_matchers.py::test_a_mask_of_a_draft_is_not_taken_for_another_texts",
    ),
    Mutation(
        "masks of roots obey the deadline",
        "constraint/filling.py",
        "Filling._run",
        "self._first.run()",
        "time.perf_counter() > self._deadline or self._first.run()",
        FORCED + "a_step_out_of_time_has_the_roots_branches_and_no_others",
    ),
    Mutation(
        "branches are begun after the forward has ended",
        "constraint/filling.py",
        "Filling._run_later",
        "is_over or self._is_awaited()",
        "is_over",
        FILLING + "branches_are_filled_until_what_runs_beside_them_is_about_to_end",
    ),
    Mutation(
        "a shared expert's parts follow the others'",
        "layers/experts.py",
        "MixtureOfExperts.__call__",
        "[shared, parts]",
        "[parts, shared]",
        "tests/layers/test_experts.py::test_a_shared_expert_may_add_its_parts_itself[False]",
    ),
    Mutation(
        "the features of a wide shared expert stay as they were filled in",
        "layers/stacked_experts.py",
        "StackedExperts.seal",
        "self._num_shared > 1",
        "self._num_shared > 9",
        "tests/layers/test_experts.py::"
        "test_a_shared_expert_is_run_as_one_or_several_of_the_others[3-False]",
    ),
    Mutation(
        "all experts of a row have the first one's weight",
        "ops/apply_experts.py",
        "by_expert",
        "result_nD * weights_TK[row_n, rank_n].unsqueeze(1)",
        "result_nD * weights_TK[row_n, 0].unsqueeze(1)",
        "tests/models/test_model_law.py::test_a_whole_prompt_matches_transformers[mixtral]",
    ),
    Mutation(
        "the correction of scores counts in weights",
        "ops/route.py",
        "route",
        "weights_TK = scores_TE.gather(1, experts_TK)",
        "weights_TK = choice_TE.gather(1, experts_TK)",
        "tests/models/test_model_law.py::test_a_whole_prompt_matches_transformers[glm4 moe]",
    ),
    Mutation(
        "masks that are late are read",
        "engine/branches.py",
        "Branch.put",
        "not self.request.is_late",
        "self.request.num_masks",
        RUNS + "rows_of_branches_go_where_their_nodes_are",
    ),
    Mutation(
        "parents are not renumbered after pruning",
        "engine/prune.py",
        "_kept",
        "[number[parents[b][node]] for node in left[1:]]",
        "[parents[b][node] for node in left[1:]]",
        PRUNE + "a_branch_goes_and_its_neighbours_move_up",
    ),
    Mutation(
        "sources are not reordered after pruning",
        "engine/prune.py",
        "_kept",
        "tree.source_BW.gather(1, order_BW)",
        "tree.source_BW[:, : order_BW.shape[1]]",
        PRUNE + "a_branch_goes_and_its_neighbours_move_up",
    ),
    Mutation(
        "a drafter is credited with forced nodes",
        "draft/forced.py",
        "ForcedDrafter.learn",
        "1 + sum(source != forced for source in path)",
        "1 + sum(source >= 0 for source in path)",
        FORCED + "the_inner_drafter_hears_of_its_own_nodes_alone",
    ),
    Mutation(
        "forced nodes have no limit",
        "draft/forced.py",
        "_extend",
        "min(batch.width, size + most)",
        "batch.width",
        FORCED + "room_is_kept_to[2-32-4]",
    ),
    Mutation(
        "forced nodes are counted as another drafter's",
        "draft/forced.py",
        "_extend",
        "columns_W < tree.sizes_B.unsqueeze(1)",
        "columns_W < width",
        FORCED + "chains_with_spans_stay_chains",
    ),
    Mutation(
        "the first move takes the shared start matcher",
        "constraint/llguidance_states.py",
        "LlguidanceState.become",
        "self.copy if self.is_shared else self._give_up",
        "self._give_up",
        FILLING + "a_state_that_is_given_up_leads_where_it_would_have_led[llguidance-regex]",
    ),
    Mutation(
        "forks move the shared state in place",
        "constraint/llguidance_states.py",
        "LlguidanceState.after_all",
        "self.is_shared = True",
        "self.is_shared = False",
        FILLING + "forks_do_not_move_each_other[0]",
    ),
    Mutation(
        "draft rows behind a lazy root are not cleared",
        "constraint/mask_batch.py",
        "MaskRequest.wipe",
        "max(len(self.tokens), self.has_spare_row)",
        "len(self.tokens)",
        FILLING + "what_a_broken_call_leaves_behind_a_root_is_wiped[here]",
    ),
    Mutation(
        "a text may end where the grammar cannot stop",
        "constraint/llguidance_states.py",
        "LlguidanceState.after",
        "token in backend.eos_token_ids and matcher.is_accepting()",
        "token in backend.eos_token_ids",
        BACKENDS + "the_end_comes_once_and_nothing_after_it[llguidance]",
    ),
    Mutation(
        "a draft moves the state it was copied from",
        "constraint/llguidance_states.py",
        "LlguidanceState.copy",
        "return when_free(matcher.deep_copy)",
        "return matcher",
        BACKENDS + "what_is_walked_through_is_allowed_by_the_mask_before[llguidance-schema]",
    ),
    Mutation(
        "two drafts share a matcher",
        "constraint/llguidance_masks.py",
        "LlguidanceMasks._draft_matcher",
        "drafts in lent",
        "drafts is None",
        "tests/constraint/test_draft_matchers.py::test_drafts_of_one_state_in_one_call_do_not_meet",
    ),
    Mutation(
        "a matcher is used after a failure",
        "constraint/llguidance_masks.py",
        "LlguidanceMasks.run",
        "drafts.is_fit = False",
        "drafts.is_fit = True",
        "tests/constraint/test_draft_matchers.py::test_a_matcher_that_breaks_in_one_call_is_copied_anew_for_the_next",
    ),
    Mutation(
        "the beginning of a marker is shown",
        "dialect/segment.py",
        "_length_of_beginning",
        "marker.text.startswith(tail[place:])",
        "marker.text == tail[place:]",
        EVENTS + "one_character_a_push_gives_the_same_events[generic]",
    ),
    Mutation(
        "text before a half received control token is lost",
        "dialect/segment.py",
        "StreamReader.feed",
        "self._add_control(token_id, shown + text[:begin], num_missing - begin)",
        "self._add_control(token_id, shown, num_missing - begin)",
        EVENTS + "any_cut_gives_the_same_events[qwen3]",
    ),
    Mutation(
        "text is shown before its mark",
        "engine/stops.py",
        "StopChecker._show",
        "min(end, self._marks[0].offset)",
        "max(end, self._num_shown)",
        MARKS + "a_marks_text_is_never_shown_without_it",
    ),
    Mutation(
        "marks do not move when shown text is dropped",
        "engine/stops.py",
        "StopChecker._drop_shown",
        "Mark(m.offset - num_dropped, m.token_id, m.length)",
        "Mark(m.offset, m.token_id, m.length)",
        MARKS + "a_mark_that_waits_moves_with_the_text_that_is_forgotten",
    ),
    Mutation(
        "a graph keeps the prompt chunks that it was captured with",
        "runner/batch.py",
        "PlannedBatch.begin",
        "graphs.to_static_array('prompt chunks', self._chunks_C4)",
        "send(self._chunks_C4, table.device)",
        "tests/laws/test_capture_law.py"
        "::test_prompts_are_stored_from_graphs_beside_other_sequences[dense]",
    ),
    Mutation(
        "the time of a capture counts as that of its rows",
        "engine/launch.py",
        "Launcher.learn",
        "self._num_captured != flight.num_captured",
        "False",
        "tests/engine/test_step_graphs.py::test_the_time_of_a_capture_is_not_learnt",
    ),
    Mutation(
        "graphs of all stages share their memory",
        "runner/graphs.py",
        "Stages._capture",
        "captured = self.graphs.capture(name, stage)",
        'captured = self.graphs.capture("all", stage)',
        "tests/laws/test_capture_law.py::test_a_model_of_two_layers_says_the_same_from_graphs",
    ),
    Mutation(
        "graphs of greedy steps serve sampled ones",
        "runner/batch.py",
        "Batch.stage",
        "self.params.signature if reads_params else None",
        "None",
        CAPTURES,
    ),
    Mutation(
        "inputs of rejected nodes enter a state",
        "ops/state_lines.py",
        "_Planner._accepted",
        "[self._reach + own.index(slot) for slot in slots]",
        "[self._reach for slot in slots]",
        STATES + "trees_and_what_is_accepted_of_them_do_not_matter",
    ),
    Mutation(
        "the state of a seat is that of a node",
        "ops/delta_rule.py",
        "_Sorter._add",
        "self._kept[len(trunk) - 1].append((place, seat))",
        "self._kept[len(trunk) - 2].append((place, seat))",
        STATES + "chunks_and_neighbours_do_not_matter",
    ),
    Mutation(
        "a convolution reads the inputs of other branches",
        "ops/state_lines.py",
        "_Planner._add_tree",
        "paths[parent]",
        "paths[-1]",
        STATES + "trees_and_what_is_accepted_of_them_do_not_matter",
    ),
    Mutation(
        "a half-updated state is used",
        "ops/state_lines.py",
        "_Planner._add_trunk",
        "self._positions_A[seat] = ABSENT",
        "pass",
        STATES + "a_forward_pass_that_fails_between_layers_leaves_no_state",
    ),
    Mutation(
        "a prefix is shared beyond its snapshot",
        "cache/manager.py",
        "_up_to_snapshot",
        "matched[:end]",
        "matched",
        SNAPSHOTS + "a_hit_ends_at_the_deepest_snapshot",
    ),
    Mutation(
        "a prompt that was read begins one position late",
        "engine/disaggregation/engine.py",
        "DisaggregatedEngine._start",
        "lease.num_stored if is_read else len(tokens) - 1",
        "lease.num_stored + 1 if is_read else len(tokens) - 1",
        "tests/engine/test_disaggregation.py::test_a_handle_of_another_prompt_is_refused_and_stays_good",
    ),
    Mutation(
        "what a window shows moves from the beginning of a prompt",
        "engine/disaggregation/memory.py",
        "SlotMemory.places",
        "slots[max(0, len(slots) - windows.reach) :]",
        "slots[: windows.reach]",
        "tests/laws/test_disaggregation_law.py::test_what_a_window_shows_of_a_long_prompt_moves_alone",
    ),
    Mutation(
        "the state after a prompt stays where it was computed",
        "engine/disaggregation/memory.py",
        "SlotMemory.places",
        "snapshot is not None and len(slots)",
        "snapshot is None and len(slots)",
        "tests/laws/test_disaggregation_law.py::"
        "test_a_pair_answers_as_one_engine_over_other_layers[state-mtp tree]",
    ),
    Mutation(
        "what a head reads of the target stays where the prompt was computed",
        "draft/network.py",
        "HeadNetwork.slot_tensors",
        "(*self._backend.kv.layers, self._stored_SX)",
        "(*self._backend.kv.layers,)",
        "tests/laws/test_disaggregation_law.py::"
        "test_a_drafting_network_continues_where_it_was[eagle3 tree]",
    ),
]


def misplaced() -> list[str]:
    """Return the names of the mutations whose `old` does not occur exactly once in its function, or
    whose `new` reads a name that the function does not."""
    return [mutation.name for mutation in MUTATIONS if not _is_placed(mutation)]


def _is_placed(mutation: Mutation) -> bool:
    try:
        mutation.apply(PACKAGE)
    except (AnchorError, FileNotFoundError):
        return False
    return True


def _functions_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions and methods that the code of a module or class defines."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_OPTIMIZED:
                yield each
            else:
                yield from _functions_of(each)


def _function_named(module: ModuleType, name: str) -> FunctionType:
    """Return the function, below its decorators. Raises ValueError if there is none of this name."""
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    for attribute in ("fget", "func", "__func__"):  # of properties and class methods
        found = getattr(found, attribute, found)
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType) or found.__code__.co_qualname != name:
        raise ValueError(f"{name} of {module.__name__} is no function")
    return found


def mutate(mutation: Mutation) -> None:
    """Replace the code of the mutated function in the imported package.

    Raises ValueError where that would not change what runs, such as in the body of a class.
    """
    if mutation.is_in_c:
        _load(mutation)
        return
    source = (PACKAGE / mutation.file).read_text()
    before, after = (
        {code.co_qualname: code for code in _functions_of(InspectLoader.source_to_code(text))}
        for text in (ast.unparse(ast.parse(source)), mutation.apply(PACKAGE))
    )
    name = next((n for n in before if f"{mutation.function}.".startswith(f"{n}.")), None)
    if name is None or before[name] == after[name]:
        raise ValueError(f"{mutation.function} of {mutation.file} has the same code")
    module = "eyas." + mutation.file.removesuffix(".py").replace("/", ".")
    _function_named(importlib.import_module(module), name).__code__ = after[name]


def _load(mutation: Mutation) -> None:
    """Compile the mutated file, and let what was loaded of it call the functions of that."""
    assert mutation.file == STEPS
    of = steps.compiled_steps(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        source = Path(folder) / "steps.c"
        source.write_text(mutation.apply(PACKAGE))
        library = build(source).library
        assert of is not None and library is not None
        steps._declare(library)
        of._library = library


def prepare(tests: list[str]) -> None:
    """Import the files of these tests, and with them what they test; and load the models that most of
    them share."""
    import hypothesis

    first_failure_only = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "the same examples",
        derandomize=True,
        phases=first_failure_only,  # nobody reads the smallest example
        report_multiple_bugs=False,
    )
    hypothesis.settings.load_profile("the same examples")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ["pytest_timeout", "tests.conftest", *(test.split("::")[0] for test in tests)]:
        importlib.import_module(name.removesuffix(".py").replace("/", "."))
    from tests.laws import world

    world.tokenizer()
    for dtype in world.dtypes():
        world.weights(dtype)
    gc.freeze()  # so that forked processes share its memory


class Trials:
    """A plugin of pytest that runs the collected tests in forked processes: all of them once as the
    package is, unless the mutations are to be run alone, then each mutation's test with the mutation.

    problems: a message for each mutation that did not fail its test.
    """

    def __init__(self, mutations: list[Mutation], *, alone: bool) -> None:
        self._mutations, self._alone = mutations, alone
        self.problems: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not self._alone and (status := self._run(session, session.items)):
            self.problems.append(f"the package as it is does not pass (status {status})")
        for mutation in self._mutations:
            items = [item for item in session.items if _is_of(item.nodeid, mutation.test)]
            status = self._run(session, items, mutation) if items else "not collected"
            if status != 1:
                self.problems.append(f"{mutation.name}: {mutation.test} ended with status {status}")
        return True

    def _run(
        self, session: pytest.Session, items: list[pytest.Item], mutation: Mutation | None = None
    ) -> int:
        """Return 1 where one of the tests fails, 0 where all pass, another status where neither can
        be said."""
        sys.stdout.flush()
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status, output = 70, io.StringIO()
        try:
            if mutation is not None:
                mutate(mutation)
                session.config.option.tbstyle = "no"  # nobody reads why it fails
            reporter = session.config.pluginmanager.getplugin("terminalreporter")
            assert reporter is not None
            reporter._tw._file = output
            for item, next_item in zip(items, [*items[1:], None], strict=True):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=next_item)
                if session.testsfailed:
                    break
            status = int(bool(session.testsfailed))
            if status != (mutation is not None):
                reporter.summary_failures()
        except BaseException:
            traceback.print_exc(file=output)
        finally:
            if status != (mutation is not None):
                os.write(1, output.getvalue()[-4000:].encode())
            os._exit(status)


def _is_of(item: str, test: str) -> bool:
    """Whether an item is the test, or one of its cases."""
    return item == test or item.startswith(f"{test}[")


def survivors(share: int, num_shares: int, *, alone: bool = False) -> list[str]:
    """Return a message for each mutation of this share that did not fail its test."""
    tests = sorted({mutation.test for mutation in MUTATIONS})[share::num_shares]
    os.chdir(ROOT)
    prepare(tests)
    mutations = [mutation for mutation in MUTATIONS if mutation.test in tests]
    if steps.compiled().library is None:
        mutations = [mutation for mutation in mutations if not mutation.is_in_c]
    trials = Trials(mutations, alone=alone)
    options = ["-q", "--assert=plain", "--no-header", "-p", "pytest_timeout"]
    options += ["-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    status = pytest.main([*options, *tests], plugins=[trials])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        trials.problems.append(f"the tests could not be collected (status {status})")
    return trials.problems


if __name__ == "__main__":
    found = survivors(int(sys.argv[1]), int(sys.argv[2]), alone=sys.argv[3:] == ["alone"])
    print("\n".join(found) or "every mutation failed its test")
    sys.exit(bool(found))
