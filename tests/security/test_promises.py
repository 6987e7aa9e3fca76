"""Each line of SECURITY.md has tests, and what docs/sandbox.md shows works as it stands there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.pages import run

ROOT = Path(__file__).resolve().parent.parent.parent
PROMISES = (ROOT / "SECURITY.md").read_text()
GUIDE = (ROOT / "docs" / "sandbox.md").read_text()

TESTS = {
    "damaged or hostile module file": [
        "fuzz/test_fuzz.py::test_damaged_modules_load_or_are_refused",
        "vmfb/test_flatbuffer.py::test_many_damaged_words",
        "security/test_mutants.py::test_mutants_end_in_a_status",
        "security/test_hostile_files.py::test_a_file_that_is_cut_off_after_it_was_loaded",
    ],
    "program of bytecode reads or writes outside": [
        "dispatch/test_buffers.py::test_load_outside",
        "fuzz/test_campaigns.py::test_a_short_campaign_finds_nothing",
    ],
    "VMVX kernel reads or writes outside": [
        "loaders/vmvx/test_executables.py::test_bindings_end_where_they_say",
        "loaders/vmvx/test_bindings.py::test_positions_that_do_not_fit_beyond_the_last_element",
        "loaders/vmvx/test_bindings.py::test_the_last_lane_of_narrowed_numbers",
        "security/test_kept_memory.py::test_memory_goes_with_its_dispatch",
        "security/test_read_only_memory.py::test_what_is_bound_on_a_device",
        "security/test_read_only_memory.py::test_constants_without_a_device",
        "security/test_read_only_memory.py::test_machine_code_leaves_what_may_not_be_written",
        "security/test_mutants.py::test_mutants_end_in_a_status",
    ],
    "call from Python with wrong arguments": ["api/test_odd_arguments.py::test_odd_arguments_give_a_status"],
    "runs in a sandbox": [
        "security/test_limits.py::test_native_code_is_refused_with_what_to_do",
        "security/test_limits.py::test_files_that_make_modules_are_refused",
        "security/test_limits.py::test_what_runs_or_opens_anything_is_refused",
    ],
    "reaches anything outside of that process": [
        "security/test_process.py::test_a_confined_process_has_nothing",
        "security/test_process.py::test_kernels_that_crash_or_never_end",
        "security/test_process.py::test_mutants_of_native_modules_never_harm_the_parent",
    ],
    "An answer of that process": [
        "security/test_process.py::test_hostile_answers_are_refused",
        "security/test_process.py::test_hostile_values_are_refused",
    ],
    "file that is opened": [
        "security/test_limits.py::test_what_runs_or_opens_anything_is_refused",
        "security/test_hostile.py::test_programs_open_no_files",
        "security/test_hostile.py::test_programs_join_no_group",
        "security/test_random_imports.py::test_programs_reach_nothing_outside",
    ],
    "others left in memory": [
        "hal/test_limited_memory.py::test_memory_is_zero_where_it_is_to_be",
        "security/test_hostile.py::test_nothing_shows_that_was_in_memory",
        "security/test_kept_memory.py::test_nothing_is_left_in_local_memory",
    ],
    "what kernels of other sessions had left in workgroup-local memory": [
        "security/test_kept_memory.py::test_nothing_is_left_in_local_memory"
    ],
    "what pinned memory held before": [
        "cuda/test_order_failures.py::test_looking_for_memory_makes_no_submission_done",
        "cuda/test_order_failures.py::test_a_call_that_fails_while_the_device_works_makes_no_work_done",
        "cuda/test_order_failures.py::test_memory_that_comes_back_hands_no_submission_over",
    ],
    "`Session.to_device` of an array of a new type or rank": [
        "cuda/test_direct_calls.py::test_arrays_of_a_new_type_are_placed_while_a_call_passes_its_own"
    ],
    "workgroup-local memory that kernels declare": ["security/test_kept_memory.py::test_local_memory_counts"],
    "did not hold for calls that were submitted": ["security/test_limits.py::test_output_of_submitted_calls"],
    "with instructions for pairs of bfloat16 numbers": [
        "dispatch/native/nests/test_pairs.py::test_the_look_at_numbers_looks_after_signals",
        "modules/test_vmvx_long.py::test_pieces_of_tiles_give_the_same_bits",
    ],
    "than the limits of its sandbox say": [
        "security/test_limits.py::test_memory",
        "hal/test_limited_memory.py::test_what_a_limit_does_not_count_goes_back",
        "security/test_exact_memory.py::test_the_least_memory_is_the_same_in_every_call",
        "loaders/vmvx/test_lease.py::test_the_least_memory",
        "security/test_limits.py::test_instructions",
        "security/test_limits.py::test_instructions_of_kernels_count",
        "security/test_limits.py::test_recursion",
        "security/test_limits.py::test_handles",
        "security/test_limits.py::test_output",
        "security/test_hostile.py::test_bombs_end_in_a_status",
        "security/test_hostile.py::test_what_the_host_keeps_for_a_program_is_memory_of_it",
        "security/test_kept_memory.py::test_local_memory_counts",
    ],
    "goes on when the time of its limits is over": [
        "dispatch/test_long_ranges.py::test_they_end_between_parts",
        "security/test_hostile.py::test_endless_programs_end_in_time",
        "security/test_hostile.py::test_endless_kernels_end_in_time",
        "security/test_hostile_files.py::test_what_takes_long_to_load_ends_in_time",
        "security/test_process.py::test_nothing_goes_on_between_calls",
        "security/test_process_surroundings.py::test_a_call_that_cannot_be_sent_leaves_the_process_stopped",
        "security/test_process_surroundings.py::test_the_process_ends_with_its_parent",
    ],
    "process that builds machine code": [
        "security/test_builders.py::test_a_builder_is_limited_and_ends_with_the_load",
        "security/test_builders.py::test_a_builder_ends_with_the_session",
        "security/test_builders.py::test_what_cannot_be_built_within_the_limits",
        "security/test_builders.py::test_kernels_are_built_within_the_limits",
    ],
    "more bytes than the limit": ["security/test_limits.py::test_load_size"],
    "another user could write it into the cache": [
        "codegen/test_image_trust.py::test_an_image_that_others_can_write_is_a_miss",
        "codegen/test_image_trust.py::test_a_folder_that_others_can_write_is_refused",
        "base/test_private_files.py::test_what_belongs_to_another_user_is_a_miss",
        "base/test_start.py::test_only_its_user_may_write_it",
    ],
    "current folder": [
        "codegen/test_image_isolation.py::test_files_of_the_current_folder_are_not_run",
        "codegen/test_image_isolation.py::test_packages_of_the_current_folder",
        "codegen/test_image_trust.py::test_no_cache_is_in_the_current_folder",
        "codegen/test_image_trust.py::test_no_cache_is_in_the_current_folder_where_no_other_can_be_written",
    ],
    "wrong result, or one that depends": [
        "dispatch/test_random_programs.py",
        "loaders/vmvx/test_executables.py::test_product",
        "security/test_limits.py::test_programs_for_vmvx_run_as_they_do_elsewhere",
    ],
    "no `jitree.errors.StatusError`": ["api/test_odd_arguments.py::test_odd_arguments_give_a_status"],
    "limit that stops a program which stays": [
        "security/test_limits.py::test_each_limit_has_the_status_that_the_guide_says",
        "security/test_limits.py::test_memory",
        "security/test_limits.py::test_recursion",
        "security/test_limits.py::test_instructions",
    ],
    "Native code of a module outside": ["loaders/test_bad_elf.py"],
    "Machine code that you name by": [
        "tools/test_cache_pack.py::test_a_sandbox_refuses_it",
        "tools/test_cache_pack.py::test_a_process_of_a_sandbox_refuses_it",
        "tools/test_cache_pack.py::test_a_sandbox_takes_no_code_that_another_session_was_given",
    ],
    "Host modules, parameters and providers": [
        "security/test_hostile.py::test_host_modules_are_called_with_anything"
    ],
    "port of a group": [
        "hal/groups/test_presence.py::test_strangers_are_no_members",
        "hal/groups/test_presence.py::test_strangers_take_neither_room_nor_the_place_of_members",
        "hal/groups/test_presence.py::test_the_token_never_goes_over_the_port_and_a_proof_serves_once",
    ],
    "called between two instructions of Python": ["api/test_traced_lines.py"],
    "Python loads a second time": ["base/test_reload.py"],
    "What dies at the very last levels": [
        "base/test_finalizers.py::test_what_dies_where_the_stack_is_full_ends"
    ],
    "Time, and what kernels and programs need": ["loaders/vmvx/test_interrupt.py"],
    "how long something takes": [],
    "The file:": ["vmfb/test_flatbuffer.py", "vmfb/test_streams.py"],
    "The bytecode:": ["dispatch/test_buffers.py", "dispatch/test_lists.py", "dispatch/test_control.py"],
    "Machine code made of it:": ["dispatch/test_random_programs.py", "dispatch/test_native_random.py"],
    "Kernels:": ["loaders/vmvx/test_executables.py::test_bindings_end_where_they_say"],
    "Commands:": [
        "hal/test_command_buffer.py::test_fill_errors",
        "hal/test_command_buffer.py::test_dispatch_errors",
    ],
    "Libraries:": ["loaders/test_bad_elf.py"],
    "The process of a sandbox:": ["security/test_process.py::test_a_confined_process_has_nothing"],
    "Compiled loops took numbers that wrap": [
        "dispatch/native/nests/test_wrapping.py::test_all_tiers_agree",
        "fuzz/test_campaigns.py::test_a_short_campaign_finds_nothing",
    ],
    "Packs:": [
        "tools/test_cache_pack.py::test_damage_is_a_line_and_the_usual_way",
        "tools/test_cache_pack.py::test_a_sparse_file_and_what_is_no_file",
    ],
    "While the caller tracked a device's memory": [
        "api/test_device_memory.py::test_limits_go_on_counting_what_a_program_has_elsewhere"
    ],
    "The cache:": [
        "codegen/test_image.py::test_damaged_file_is_a_miss",
        "codegen/test_image_damage.py::test_lying_lengths_are_a_miss",
        "codegen/test_image.py::test_file_of_another_user_is_a_miss",
    ],
    "Where the system's text says less than the processor": [
        "loaders/vmvx/test_bindings.py::test_llvm_makes_code_for_the_processor_that_nests_are_written_for"
    ],
    "On processors with AVX-512 for which LLVM prefers": [
        "codegen/test_pipelines.py::test_llvm_makes_no_masks_for_the_rest_of_short_loops"
    ],
    "With AVX-512, a VMVX kernel that stores 17": [
        "loaders/vmvx/test_bindings.py::test_the_last_lane_of_narrowed_numbers"
    ],
    "A VMVX kernel could write up to 15 elements beyond": [
        "loaders/vmvx/test_bindings.py::test_positions_that_do_not_fit_beyond_the_last_element"
    ],
    "A VMVX kernel could read what another kernel of its executable": [
        "loaders/vmvx/test_filled_scratch.py::test_what_a_failed_guard_leaves_is_cleared"
    ],
    "An interrupt while machine code got memory": [
        "modules/test_hal_refilling.py::test_an_interrupt_while_arenas_are_made"
    ],
    "as one instruction fills, copies or compares": [
        "loaders/vmvx/test_long_ranges.py::test_they_end_between_parts",
        "modules/test_vmvx_long.py::test_products_of_nothing_are_zeros_in_parts",
    ],
    "A parameter archive (irpa) of a megabyte": [
        "params/test_irpa.py::test_small_files_that_claim_much",
        "params/test_formats.py::test_bad_safetensors",
    ],
    "A numpy archive (npz)": [
        "params/test_formats.py::test_compressions_that_numpy_does_not_write",
        "params/test_formats.py::test_members_that_share_bytes",
        "params/test_formats.py::test_members_that_share_bytes_by_the_size_of_what_they_hold",
        "params/test_formats.py::test_arrays_of_more_dimensions_than_there_can_be",
    ],
    "A finalizer of the caller's that called a session": [
        "regs/test_handles.py::test_a_finalizer_that_drops_references_while_some_are_dropped"
    ],
    "A long list of numbers that another thread": [
        "api/test_sequences.py::test_lists_that_another_thread_shortens"
    ],
    "A full table of handles gave": [
        "regs/test_handles.py::test_a_full_table_takes_what_machine_code_has_left"
    ],
    "A function that traces lines": [
        "api/test_traced_lines.py::test_a_debugger_calls_the_session",
        "api/test_traced_lines.py::test_a_debugger_calls_the_session_at_every_line",
        "api/test_traced_lines.py::test_a_debugger_ends_the_call",
    ],
    "On a GPU, memory that went back to the driver": [
        "cuda/test_suballocator.py::test_a_handler_takes_pieces_as_regions_leave"
    ],
    "A Numba function in place of a dispatch that stored": [
        "kernels/test_changed_constants.py::test_compiled_kernels_store_to_no_parameter_of_a_file"
    ],
    "A module of 1 MB whose VMVX kernels call": [
        "security/test_hostile_files.py::test_kernels_that_call_anything_share_what_they_depend_on",
        "security/test_hostile_files.py::test_a_module_of_many_functions_is_shown",
    ],
    "A DLPack capsule of a narrow type": ["api/test_dlpack.py::test_capsules_that_no_array_has"],
    "A DLPack capsule whose offset wraps": [
        "api/test_dlpack.py::test_offsets_that_wrap_in_machine_code",
        "api/test_dlpack.py::test_capsules_that_no_array_has",
    ],
    "To show a module of 240 kB": ["dispatch/test_ssa.py::test_loops_in_hundreds_of_others_are_refused"],
    "A DLPack capsule that states a rank": [
        "api/test_dlpack.py::test_capsules_that_no_array_has",
        "cuda/test_exchange_functions.py::test_a_tensor_of_sizes_that_no_array_has_is_given_back",
    ],
    "A gguf file that is sparse": ["params/test_formats.py::test_gguf_of_zeros"],
    "the rest of which is a hole": [
        "params/test_formats.py::test_gguf_of_one_long_text",
        "params/test_irpa.py::test_sparse_texts",
    ],
    "when a function was looked up whose declaration": ["api/test_declaration.py::test_long_declarations"],
    "(npz) that is sparse": [
        "params/test_formats.py::test_npz_whose_list_is_sparse",
        "params/test_irpa.py::test_a_type_whose_name_is_a_megabyte",
    ],
    "states an integer of billions of bits": ["api/test_declaration.py::test_widths_that_no_register_has"],
    "A module of 5 MB for a separate process": ["loaders/test_bad_elf.py::test_failed_precondition"],
    "To tap, profile or replace dispatches": [
        "api/test_observed_types.py::test_names_of_many_dispatches",
        "api/test_observed_types.py::test_names_with_loops_that_nothing_has",
    ],
    "A tap, or another onlooker, that ended": [
        "api/test_observed_types.py::test_the_last_one_leaves_as_the_call_is_cancelled"
    ],
    "A module of 5 MB could take minutes": [
        "loaders/test_bad_elf.py::test_failed_precondition",
        "loaders/test_processor_needs.py::test_code_that_is_in_several_constants_is_looked_through_once",
    ],
    "Files that others change or cut short": [
        "params/test_provider.py::test_a_preloaded_file_that_is_cut_short",
        "security/test_hostile_files.py::test_a_file_that_is_cut_off_after_it_was_loaded",
    ],
}
"""By a part of the line."""


def lines() -> list[str]:
    return [" ".join(item.split()) for item in re.findall(r"^\* (.*(?:\n  .*)*)", PROMISES, re.MULTILINE)]


@pytest.mark.parametrize("line", lines())
def test_every_line_has_tests(line: str) -> None:
    keys = [key for key in TESTS if key in line]
    assert len(keys) == 1, "one key of TESTS is part of it"
    for place in TESTS[keys[0]]:
        file, _, name = place.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert any(found.startswith("test_") for found in names) and (not name or name in names), place


def test_every_test_is_of_a_line() -> None:
    assert all(any(key in line for line in lines()) for key in TESTS)


def test_reports_are_private_and_versions_are_named() -> None:
    assert "in private to the maintainers" in PROMISES
    assert "newest release" in PROMISES


@pytest.mark.parametrize("snippet", re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
def test_snippets_of_the_guide(snippet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    imports = "import jitree\nimport numpy as np\n"
    exec(compile(imports + snippet, "docs/sandbox.md", "exec"), {})


@pytest.mark.parametrize("command", re.findall(r"^\$ (.*)$", GUIDE, re.MULTILINE))
def test_commands_of_the_guide(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    run(command, tmp_path)
