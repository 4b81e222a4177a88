"""Slips of one line, each with the test that must notice it; and how they are tried.

`python -m tests.laws.mutations 0 2` tries the first of two shares: the package is copied, one slip is
made in the copy, and its test runs against the copy in a process of its own (forked, so that torch
is loaded once). A slip must fail its test; the copy without a slip must pass them all.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import sys
import tempfile
import traceback
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "eyas"
HEAVY: list[str] = [
    *("numpy", "torch", "hypothesis", "msgspec", "tokenizers", "safetensors.torch", "psutil"),
    *("jinja2", "llguidance", "pytest", "pytest_timeout"),
    *(["tests.interpreter"] if "TRITON_INTERPRET" in os.environ else []),  # it brings triton
]
NAMED = "tests/laws/test_named_laws.py::test_"
TREES = "tests/draft/test_tree_drafter.py::test_"
HEADS = "tests/draft/test_head_rows.py::test_"
GROW = "tests/draft/test_grow.py::test_"
BLEND = "tests/draft/test_blend.py::test_"
VERIFIER = "tests/engine/test_verifier.py::test_"
PROCESS = "tests/sampling/test_process.py::test_"
MANAGER = "tests/cache/test_manager_law.py::test_"
STREAM = "tests/laws/test_stream_law.py::test_"
ATTENTION = "tests/attention/test_reference_attention.py::test_"
NOISE = "tests/sampling/test_noise.py::test_"
FORCED = "tests/draft/test_forced.py::test_"
BRANCHES = "tests/engine/test_branches.py::test_"
PRUNE = "tests/engine/test_prune.py::test_"
MARKS = "tests/engine/test_stops_marks.py::test_"
BACKENDS = "tests/constraint/test_backends.py::test_"
FILLING = "tests/constraint/test_filling.py::test_"
EVENTS = "tests/dialect/test_stream_law.py::test_"
CAPTURES = "tests/laws/test_capture_law.py::test_a_model_of_two_layers_says_the_same_from_graphs"
ARGMAX = VERIFIER + "a_token_is_the_argmax_of_logits_and_the_noise_of_its_position"


@dataclass(frozen=True)
class Mutation:
    """In `file`, `old` (which stands there once) becomes `new`; then `test` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = [
    Mutation(
        "the noise of the position after",
        "sampling/choose.py",
        "keys = (params.seed_B[sequence_R], position_R, params.choice_B[sequence_R])",
        "keys = (params.seed_B[sequence_R], position_R + 1, params.choice_B[sequence_R])",
        ARGMAX + "[0.8-root]",
    ),
    Mutation(
        "all choices share their noise",
        "sampling/params.py",
        "[_signed(s.seed), s.choice, ",
        "[_signed(s.seed), 0, ",
        NAMED + "choices_have_noise_of_their_own",
    ),
    Mutation(
        "the noise of a neighbouring token",
        "sampling/noise.py",
        "        id_RQ,\n        choices_R",
        "        id_RQ + 1,\n        choices_R",
        NOISE + "philox_is_the_published_function_of_seed_position_token_and_choice",
    ),
    Mutation(
        "a sibling's token is penalised",
        "runner/rows.py",
        "is_ancestor_RW = ancestors(tree.parents_BW)[sequence_R, node_R]",
        "is_ancestor_RW = (tree.parents_BW >= 0)[sequence_R]",
        NAMED + "penalties_are_those_of_a_nodes_own_path[oracle tree]",
    ),
    Mutation(
        "a chain's later tokens are penalised",
        "runner/rows.py",
        "(columns_W <= node_R.unsqueeze(1)) & (columns_W > 0)",
        "(columns_W <= node_R.unsqueeze(1) + 1) & (columns_W > 0)",
        NAMED + "penalties_are_those_of_a_nodes_own_path[oracle chain]",
    ),
    Mutation(
        "penalties forget the ancestors",
        "sampling/process.py",
        "rows.is_ancestor_RD[picked].to(torch.float32)",
        "0 * rows.is_ancestor_RD[picked].to(torch.float32)",
        PROCESS + "penalties_count_the_ancestors_and_no_other_node",
    ),
    Mutation(
        "every node has the root's mask",
        "engine/branches.py",
        "= rows_RK[first + begin : first + num]",
        "= rows_RK[first]",
        NAMED + "each_node_has_its_own_mask[oracle tree]",
    ),
    Mutation(
        "masks of branches stay where they were filled",
        "engine/branches.py",
        "mask_WK[list(self.nodes[begin:num])]",
        "mask_WK[begin:num]",
        BRANCHES + "rows_of_branches_go_where_their_nodes_are",
    ),
    Mutation(
        "every branch begins at the root",
        "engine/branches.py",
        "MaskRequest(state, row, tokens, path, ",
        "MaskRequest(state, row, tokens, (), ",
        BRANCHES + "requests_lead_from_the_root_and_have_rows_one_after_the_other",
    ),
    Mutation(
        "an automaton is not told what was chosen",
        "engine/commit.py",
        "advance(sequence, tokens, self._metrics.grammar)",
        "advance(sequence, tokens[:1], self._metrics.grammar)",
        NAMED + "each_node_has_its_own_mask[oracle chain]",
    ),
    Mutation(
        "the first slots are kept, not the accepted ones",
        "engine/commit.py",
        "span.node_slots[nodes]",
        "span.node_slots[: len(nodes)]",
        NAMED + "accepted_nodes_are_stored_where_later_requests_look",
    ),
    Mutation(
        "accepted nodes stay in the wrong columns",
        "runner/table.py",
        "node_slots_BW.gather(1, verdict.nodes_BW)",
        "node_slots_BW",
        NAMED + "a_walk_goes_to_the_child_that_was_chosen_and_no_other[oracle tree]",
    ),
    Mutation(
        "a tree's nodes stand one position too far",
        "runner/rows.py",
        "positions_BW = batch.roots_B.unsqueeze(1) + node_depths(tree.parents_BW)",
        "positions_BW = batch.roots_B.unsqueeze(1) + node_depths(tree.parents_BW) + 1",
        ARGMAX + "[0.8-random trees]",
    ),
    Mutation(
        "the walk follows the first child",
        "engine/verifier.py",
        "(tree.parents_BW == at_B.unsqueeze(1)) & (tree.tokens_BW == token_B1)",
        "(tree.parents_BW == at_B.unsqueeze(1))",
        NAMED + "a_walk_goes_to_the_child_that_was_chosen_and_no_other[oracle tree]",
    ),
    Mutation(
        "a chain's walk jumps over a refusal",
        "engine/verifier.py",
        "agrees.to(torch.int64).cumprod(dim=1).sum(dim=1)",
        "agrees.to(torch.int64).sum(dim=1)",
        NAMED + "a_walk_goes_to_the_child_that_was_chosen_and_no_other[oracle chain]",
    ),
    Mutation(
        "sequences share the scratch slots of their inner nodes",
        "draft/tree.py",
        "self._first_scratch + batch.seats_B.unsqueeze(1) * self._per_seat",
        "self._first_scratch + 0 * batch.seats_B.unsqueeze(1) * self._per_seat",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-1]",
    ),
    Mutation(
        "a drafter reads the noise one position early",
        "draft/tree.py",
        "position_R=(batch.roots_B + depth)",
        "position_R=(batch.roots_B + depth - 1)",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-1]",
    ),
    Mutation(
        "inner nodes stand one position early",
        "draft/tree.py",
        "positions_B = batch.roots_B + depth\n",
        "positions_B = batch.roots_B + depth - 1\n",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-1]",
    ),
    Mutation(
        "a node is expanded below its neighbour's parent",
        "draft/tree.py",
        "parents.append(inner_BK.gather(1, parent_BK))",
        "parents.append(inner_BK.gather(1, parent_BK.flip(1)))",
        TREES + "its_own_weights_draft_what_is_chosen[0.7-0-3]",
    ),
    Mutation(
        "a head reads the feature of its own position",
        "draft/catch_up.py",
        "table.slots_AC[seats_T, (positions_T - 1).clamp(min=0)]",
        "table.slots_AC[seats_T, positions_T]",
        HEADS + "a_head_in_the_engine_is_the_head_on_the_whole_text[eagle3-1-roomy]",
    ),
    Mutation(
        "the first accepted token gets no row",
        "draft/catch_up.py",
        "batch.rooted[b].root_low + 1)",
        "batch.rooted[b].root_low + 2)",
        HEADS + "a_head_in_the_engine_is_the_head_on_the_whole_text[eagle-1-roomy]",
    ),
    Mutation(
        "a head sees a row at position 0",
        "attention/reference.py",
        "seen &= (columns_L >= store.first_position)",
        "seen &= (columns_L >= 0)",
        HEADS + "a_head_in_the_engine_is_the_head_on_the_whole_text[mtp-1-roomy]",
    ),
    Mutation(
        "slots that change hands keep the rows of their last owner",
        "draft/catch_up.py",
        "                self._is_made_S[span.node_slots] = False\n",
        "                self._is_made_S[span.node_slots] = True\n",
        TREES + "what_it_shares_is_right_to_the_last_slot[0]",
    ),
    Mutation(
        "a grown node hangs below the one beside its parent",
        "draft/grow.py",
        "torch.searchsorted(kept_BW, above_BW.clamp(min=0)) + 1",
        "torch.searchsorted(kept_BW, above_BW.clamp(min=0))",
        GROW + "a_tree_is_what_eagle_2_defines[5-4-16-False]",
    ),
    Mutation(
        "scores do not add up along a path",
        "draft/grow.py",
        "(frontier.score_BK.unsqueeze(2) + scores_BKC)",
        "(0 * frontier.score_BK.unsqueeze(2) + scores_BKC)",
        GROW + "a_tree_is_what_eagle_2_defines[5-4-8-False]",
    ),
    Mutation(
        "a blend hangs every node below the root",
        "draft/blend.py",
        "parents_BW.scatter_(1, at_B1, above_B1.clamp(min=0))",
        "parents_BW.scatter_(1, at_B1, 0 * above_B1)",
        BLEND + "a_blend_is_the_union_of_its_trees",
    ),
    Mutation(
        "a prefix match takes the root too",
        "cache/manager.py",
        "known = np.asarray(tokens[:-1], dtype=np.int64)",
        "known = np.asarray(tokens, dtype=np.int64)",
        MANAGER + "a_match_stops_short_of_the_root",
    ),
    Mutation(
        "refused slots do not return",
        "cache/manager.py",
        "self._pool.give(np.array(given_up, dtype=np.int64))",
        "self._pool.give(reserved[len(kept) :])",
        MANAGER + "kept_slots_stay_where_they_are_and_the_others_return",
    ),
    Mutation(
        "a locked prefix may be evicted",
        "cache/radix.py",
        "if parent is None or node.num_locks or node.children",
        "if parent is None or node.children",
        "tests/cache/test_radix_law.py::test_a_locked_leaf_is_passed_over_however_old_it_is",
    ),
    Mutation(
        "min_tokens holds the end back once too often",
        "sampling/process.py",
        "params.num_prompt_B[b] + 1 < min_tokens",
        "params.num_prompt_B[b] + 1 <= min_tokens",
        PROCESS + "no_end_before_min_tokens_and_none_barred_after[3]",
    ),
    Mutation(
        "the filters do not see the temperature",
        "sampling/process.py",
        "        x = x / torch.where(temperature_R1 > 0, temperature_R1, 1.0)\n"
        "        if any(params.filtered):\n"
        "            _filter(x, rows, params)\n",
        "        x = x.clone()\n"
        "        if any(params.filtered):\n"
        "            _filter(x, rows, params)\n"
        "        x = x / torch.where(temperature_R1 > 0, temperature_R1, 1.0)\n",
        PROCESS + "filters_see_the_temperature",
    ),
    Mutation(
        "a tie at the top-k threshold is cut",
        "sampling/process.py",
        "(logits < threshold) & (top_k_R1 > 0)",
        "(logits <= threshold) & (top_k_R1 > 0)",
        PROCESS + "ties_at_the_top_k_threshold_are_all_kept",
    ),
    Mutation(
        "the text is cut after the stop string, not before",
        "engine/stops.py",
        "if self._params.include_stop_str_in_output else start\n",
        "if not self._params.include_stop_str_in_output else start\n",
        NAMED + "a_stop_inside_a_draft_ends_the_text_there",
    ),
    Mutation(
        "the beginning of a stop string is shown",
        "engine/stops.py",
        "end -= self._held_back()",
        "end -= 0",
        STREAM + "the_stop_that_completes_first_wins",
    ),
    Mutation(
        "a stop string across two tokens is missed",
        "engine/stops.py",
        "max(0, self._num_searched - len(stop) + 1)",
        "self._num_searched",
        STREAM + "the_stop_that_completes_first_wins",
    ),
    Mutation(
        "a query does not see itself",
        "attention/reference.py",
        "seen = columns_L <= positions_CQ1\n",
        "seen = columns_L < positions_CQ1\n",
        ATTENTION + "a_scale_of_the_layer_is_used",
    ),
    Mutation(
        "a flight ahead plans without the one before it",
        "engine/scheduler.py",
        "sequence.num_tokens + sequence.num_in_flight_tokens + 1 if has_root",
        "sequence.num_tokens + 1 if has_root",
        NAMED + "a_flight_ahead_sees_what_the_one_before_it_chose[1]",
    ),
    Mutation(
        "a limit in a draft ends the step",
        "constraint/automaton.py",
        "        except Exception:\n            return 0",
        "        except ZeroDivisionError:\n            return 0",
        FORCED + "a_draft_that_breaks_the_library_is_not_legal[after:1]",
    ),
    Mutation(
        "choices share the list of their tokens",
        "constraint/automaton.py",
        "fork.root, fork._tokens = root, list(self._tokens)",
        "fork.root, fork._tokens = root, self._tokens",
        FORCED + "a_fork_goes_its_own_way",
    ),
    Mutation(
        "a replay forgets a token",
        "constraint/automaton.py",
        "start(fresh=True).become(self._tokens)",
        "start(fresh=True).become(self._tokens[1:])",
        FORCED + "a_replay_stands_at_the_same_place",
    ),
    Mutation(
        "a draft goes past its budget",
        "constraint/automaton.py",
        "is_forced = closing[above] and tokens_W[node] != due[above]",
        "is_forced = closing[above] and tokens_W[node] == -1",
        FORCED + "a_budget_closes_whatever_the_grammar_would_take",
    ),
    Mutation(
        "a budget closes a token late",
        "constraint/budget.py",
        "self.num_tokens < self.budget.max_tokens",
        "self.num_tokens <= self.budget.max_tokens",
        FORCED + "a_closing_that_was_begun_goes_on",
    ),
    Mutation(
        "an end that two tokens spell is overlooked",
        "constraint/budget.py",
        "tail = self.tail + self.token_bytes(token)",
        "tail = self.token_bytes(token)",
        FORCED + "an_end_in_time_leaves_the_budget_out",
    ),
    Mutation(
        "a row that failed passes for a mask",
        "constraint/mask_batch.py",
        "filled or (0, 0)",
        "filled or (0, 1)",
        FORCED + "a_state_that_fails_has_no_mask_and_its_neighbours_have_theirs",
    ),
    Mutation(
        "one that fails takes the others with it",
        "constraint/mask_batch.py",
        "[_fill_alone(each, self.mask_RK) for each in self.requests]",
        "[None for each in self.requests]",
        FORCED + "a_state_that_fails_has_no_mask_and_its_neighbours_have_theirs[True]",
    ),
    Mutation(
        "nobody looks at the clock",
        "constraint/filling.py",
        "if batch is not self._first and time.perf_counter() > self._deadline:",
        "if time.perf_counter() < 0:",
        FILLING + "roots_are_filled_first_and_the_rest_while_there_is_time[here]",
    ),
    Mutation(
        "a matcher that has gone back keeps its last mask",
        "constraint/llguidance_draft.py",
        "return self.is_fit and place[:num] != self._asked[:num]",
        "return False",
        "tests/constraint/test_draft_matchers.py::test_a_mask_of_a_draft_is_not_taken_for_another_texts",
    ),
    Mutation(
        "roots do not wait for their masks",
        "constraint/filling.py",
        "if batch is not self._first and time.perf_counter() > self._deadline:",
        "if time.perf_counter() > self._deadline:",
        FORCED + "a_step_out_of_time_has_the_roots_branches_and_no_others",
    ),
    Mutation(
        "masks that are late are read",
        "engine/branches.py",
        "if not self.request.is_late:",
        "if self.request.num_masks:",
        BRANCHES + "rows_of_branches_go_where_their_nodes_are",
    ),
    Mutation(
        "pruned nodes keep their parents' old numbers",
        "engine/prune.py",
        "above = [number[parents[b][node]] for node in left[1:]]",
        "above = [parents[b][node] for node in left[1:]]",
        PRUNE + "a_branch_goes_and_its_neighbours_move_up",
    ),
    Mutation(
        "pruned nodes take over others' sources",
        "engine/prune.py",
        "tree.source_BW.gather(1, order_BW)",
        "tree.source_BW[:, : order_BW.shape[1]]",
        PRUNE + "a_branch_goes_and_its_neighbours_move_up",
    ),
    Mutation(
        "a drafter hears of nodes that it did not propose",
        "draft/forced.py",
        "1 + sum(source != forced for source in path)",
        "1 + sum(source >= 0 for source in path)",
        FORCED + "the_inner_drafter_hears_of_its_own_nodes_alone",
    ),
    Mutation(
        "forced nodes have no limit",
        "draft/forced.py",
        "min(batch.width, size + most)",
        "batch.width",
        FORCED + "room_is_kept_to[2-32-4]",
    ),
    Mutation(
        "forced nodes pass for another drafter's",
        "draft/forced.py",
        "columns_W < tree.sizes_B.unsqueeze(1), tree.source_BW",
        "columns_W < width, tree.source_BW",
        FORCED + "chains_with_spans_stay_chains",
    ),
    Mutation(
        "who starts takes the start along",
        "constraint/llguidance_states.py",
        "self.copy if self.is_shared else self._give_up",
        "self._give_up",
        FILLING + "a_state_that_is_given_up_leads_where_it_would_have_led[llguidance-regex]",
    ),
    Mutation(
        "a fork loses its place",
        "constraint/llguidance_states.py",
        "            self.is_shared = True\n",
        "            self.is_shared = False\n",
        FILLING + "forks_do_not_move_each_other[0]",
    ),
    Mutation(
        "a text may end behind a root that rests",
        "constraint/mask_batch.py",
        "max(len(self.tokens), self.has_spare_row)",
        "len(self.tokens)",
        FILLING + "what_a_broken_call_leaves_behind_a_root_is_wiped[here]",
    ),
    Mutation(
        "a text may end anywhere",
        "constraint/llguidance_states.py",
        "if token in backend.eos_token_ids and matcher.is_accepting():",
        "if token in backend.eos_token_ids:",
        BACKENDS + "the_end_comes_once_and_nothing_after_it[llguidance]",
    ),
    Mutation(
        "a state moves when one looks ahead",
        "constraint/llguidance_states.py",
        "return when_free(matcher.deep_copy)",
        "return matcher",
        BACKENDS + "what_is_walked_through_is_allowed_by_the_mask_before[llguidance-schema]",
    ),
    Mutation(
        "two drafts share a matcher",
        "constraint/llguidance_masks.py",
        "if drafts in lent:",
        "if drafts is None:",
        "tests/constraint/test_draft_matchers.py::test_drafts_of_one_state_in_one_call_do_not_meet",
    ),
    Mutation(
        "a matcher that has failed on the way goes on",
        "constraint/llguidance_masks.py",
        "drafts.is_fit = False",
        "drafts.is_fit = True",
        "tests/constraint/test_draft_matchers.py::test_a_matcher_that_breaks_in_one_call_is_copied_anew_for_the_next",
    ),
    Mutation(
        "the beginning of a marker is shown",
        "dialect/segment.py",
        "if any(marker.text.startswith(tail) for marker in spelled):",
        "if any(marker.text == tail for marker in spelled):",
        EVENTS + "one_character_a_push_gives_the_same_events[generic]",
    ),
    Mutation(
        "a control token of which half has come is lost",
        "dialect/segment.py",
        "self._add_control(token_id, shown + text[:begin], num_missing - begin)",
        "self._add_control(token_id, shown, num_missing - begin)",
        EVENTS + "any_cut_gives_the_same_events[qwen3]",
    ),
    Mutation(
        "a mark's text is shown before it",
        "engine/stops.py",
        "end = min(end, self._marks[0].offset)",
        "end = max(end, self._num_shown)",
        MARKS + "a_marks_text_is_never_shown_without_it",
    ),
    Mutation(
        "marks stay where forgotten text was",
        "engine/stops.py",
        "Mark(m.offset - gone, m.token_id, m.length)",
        "Mark(m.offset, m.token_id, m.length)",
        MARKS + "a_mark_that_waits_moves_with_the_text_that_is_forgotten",
    ),
    Mutation(
        "all stages share their memory",
        "runner/graphs.py",
        "known = self._captured[name, key] = self.graphs.capture(name, stage)",
        'known = self._captured[name, key] = self.graphs.capture("all", stage)',
        CAPTURES,
    ),
    Mutation(
        "graphs of greedy steps serve sampled ones",
        "runner/batch.py",
        "stages = self._graphs.of((num_rows, width, self._max_length, params.signature))",
        "stages = self._graphs.of((num_rows, width, self._max_length))",
        CAPTURES,
    ),
]


def misplaced() -> list[str]:
    """The mutations whose text does not stand in its file exactly once."""
    return [m.name for m in MUTATIONS if (PACKAGE / m.file).read_text().count(m.old) != 1]


def copy_package(directory: Path) -> Path:
    """The package without its model; returns what goes on the path."""
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors", "playground")
    shutil.copytree(PACKAGE, directory / "eyas", ignore=ignored)
    return directory


def run_tests(path: Path, tests: list[str], *, keeps_bytecode: bool = False) -> int:
    """pytest's exit status for these tests against the package at `path`, in a forked process.

    keeps_bytecode: what is compiled is kept for later runs.
    """
    for name in HEAVY:
        importlib.import_module(name)
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 70
    try:
        import hypothesis
        import pytest

        hypothesis.settings.register_profile("the same examples", derandomize=True)
        hypothesis.settings.load_profile("the same examples")
        sys.path[:0] = [str(path), str(ROOT)]
        sys.dont_write_bytecode = not keeps_bytecode
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        output = io.StringIO()
        options = ["-x", "-q", "--assert=plain", "--no-header"]
        options += ["-p", "pytest_timeout", "-p", "no:cacheprovider"]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = int(pytest.main([*options, f"--rootdir={ROOT}", *tests]))
        package = importlib.import_module("eyas")
        if not str(package.__file__).startswith(str(path)):
            status = 71
        if status not in (0, 1):
            sys.stdout.write(output.getvalue()[-4000:])
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    finally:
        os._exit(status)


def survivors(share: int, num_shares: int) -> list[str]:
    """What is wrong with this share of the list; empty when every slip was noticed."""
    mine = MUTATIONS[share::num_shares]
    problems = []
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as scratch:
        path = copy_package(Path(scratch))
        tests = sorted({m.test for m in mine})
        if status := run_tests(path, tests, keeps_bytecode=True):
            problems.append(f"the package as it is does not pass (status {status})")
        for mutation in mine:
            file = path / "eyas" / mutation.file
            original = file.read_text()
            file.write_text(original.replace(mutation.old, mutation.new))
            Path(cache_from_source(str(file))).unlink(missing_ok=True)
            status = run_tests(path, [mutation.test])
            if status != 1:
                problems.append(f"{mutation.name}: {mutation.test} ended with status {status}")
            file.write_text(original)
    return problems


if __name__ == "__main__":
    found = survivors(int(sys.argv[1]), int(sys.argv[2]))
    print("\n".join(found) or "every slip was noticed")
    sys.exit(bool(found))
