"""The flags of the commands that load and call modules, one row each."""

from __future__ import annotations

from typing import Final

from jitree.tools.flags import Flag, Kind, Support

_B, _I, _F = Kind.BOOLEAN, Kind.INTEGER, Kind.FLOAT
_S, _L, _O = Kind.STRING, Kind.LIST, Kind.OPTIONAL


def _ignored(name: str, kind: Kind, default: bool | int | str) -> Flag:
    return Flag(name, kind, default, "Accepted for compatibility; has no effect.", support=Support.IGNORED)


def _refused(name: str) -> Flag:
    return Flag(name, Kind.OPTIONAL, None, "", support=Support.REFUSED)


COMMON_FLAGS: Final = (
    Flag("help", _O, None, "Prints this text."),
    Flag("verbose", _B, False, "Prints the Python traceback of an error as well."),
    Flag("flagfile", _S, "", "Reads further flags from a file, one a line; expanded where it stands."),
)

MODULE_FLAGS: Final = (
    Flag(
        "module",
        _L,
        [],
        "A compiled module (.vmfb), `-` reads standard input; or one written in Python:\n"
        "<file.py>[@<function>][?<key>=<value>&...] calls the function, `create` unless named.\n"
        "Repeat it for several; the last one is the program.",
    ),
    Flag("module_mode", _S, "mmap", "How module files are read.", ("preload", "mmap")),
    Flag("function", _S, "", "The exported function to call; may be left out when there is only one."),
    Flag(
        "tier",
        _S,
        "",
        "Which interpreter runs the bytecode; the default is JITREE_TIER or auto.",
        ("", "auto", "plain", "fast", "native"),
    ),
    Flag("trace_execution", _B, False, "Prints every VM instruction to stderr."),
)

VALUE_FLAGS: Final = (
    Flag(
        "input",
        _L,
        [],
        "An input value: a scalar `2.5`, a tensor `2x2xi32=1 2 3 4` (one element\n"
        "fills it, none zeroes it), a numpy file `@a.npy`, raw bytes `4xf32=@a.bin`,\n"
        "`+` instead of `@` to read on in a file, `*a.npy` for all arrays that remain\n"
        "in it, a buffer `&4xf32=1`, or (null).",
    ),
    Flag(
        "output",
        _L,
        [],
        "Where a result goes, one flag a result: `` drops it, `-` prints it, `@a.npy` and\n"
        "`@a.bin` write a file, `+a.npy` and `+a.bin` append to one; `@a.npz` as the last\n"
        "takes all results that remain.",
    ),
    Flag("output_max_element_count", _I, 1024, "Elements printed before the rest is elided."),
    Flag(
        "expected_output", _L, [], "The value a result must have, one flag a result; (ignored) accepts any."
    ),
    Flag("expected_f16_threshold", _F, 0.001, "Absolute tolerance of f16 elements."),
    Flag("expected_bf16_threshold", _F, 0.01, "Absolute tolerance of bf16 elements."),
    Flag("expected_f32_threshold", _F, 0.0001, "Absolute tolerance of f32 elements."),
    Flag("expected_f64_threshold", _F, 0.0001, "Absolute tolerance of f64 elements."),
    Flag(
        "expected_rtol", _F, 1e-05, "Tolerance relative to the expected element, added to the absolute one."
    ),
    Flag("equality_mode", _S, "approximate", "How results are compared.", ("approximate", "exact")),
)

DEVICE_FLAGS: Final = (
    Flag(
        "device",
        _L,
        [],
        "A device: local-sync, local-task, cuda, or <driver>://<path>?<key>=<value>.\n"
        "Repeat it to give the module several.\n"
        "Default: the first of local-task and cuda that starts.",
    ),
    Flag("print_statistics", _B, False, "Prints memory statistics of every device to stderr at the end."),
    Flag("list_drivers", _O, None, "Prints the drivers there are."),
    Flag("list_devices", _O, None, "Prints the URI of every device, or of those of one driver."),
    Flag("dump_devices", _O, None, "Prints details of every device, or of those of one driver."),
    Flag("dump_task_topologies", _O, None, "Prints the worker threads that a local-task device would have."),
    Flag("task_topology_group_count", _I, 0, "Workers of local-task; 0 chooses."),
    Flag("task_topology_max_group_count", _I, 64, "Upper bound of the number chosen."),
    Flag(
        "task_topology_cpu_ids",
        _L,
        [],
        "Processors to pin one worker each to: `0,1`.\nRepeat it for one queue each.",
    ),
    Flag(
        "task_worker_local_memory",
        _I,
        0,
        "Bytes of local memory of a workgroup;\n0 is what the program asks for.",
    ),
    Flag("task_worker_spin_us", _I, 0, "Microseconds a worker spins before it sleeps; 0 chooses."),
    _ignored("task_topology_nodes", _S, "current"),
    _ignored("task_topology_performance_level", _S, "any"),
    _ignored("task_topology_distribution", _S, "scatter"),
    _ignored("task_topology_favor", _S, ""),
    _ignored("task_topology_mode", _S, "physical_cores"),
    _ignored("task_worker_stack_size", _I, 131072),
    _ignored("task_abort_on_failure", _B, False),
    _ignored("device_allocator", _L, ""),
    _ignored("cuda_tracing", _I, 2),
    _ignored("cuda_default_index_from_mpi", _B, True),
    Flag("cuda_default_index", _I, 0, "The CUDA device that `cuda` means."),
    Flag("cuda_use_streams", _B, True, "Runs command buffers on streams instead of graphs."),
    Flag("cuda_async_allocations", _B, True, "Allocates in stream order where the device can."),
    Flag("cuda_allow_inline_execution", _B, False, "Lets command buffers run while they are recorded."),
)

PARAMETER_FLAGS: Final = (
    Flag(
        "parameters",
        _L,
        [],
        "A parameter archive: [<scope>=]<file>; .irpa, .safetensors, .gguf, .npy or .npz.\n"
        "Repeat it for several; those of one scope are joined.",
    ),
    Flag(
        "parameter_mode",
        _S,
        "file",
        "How parameter files are read: when they are used, or all at once.",
        ("file", "preload"),
    ),
)

LATER_FLAGS: Final = (
    Flag("executable_plugin", _L, [], "A library with functions that dispatches import."),
    Flag("device_profiling_mode", _S, "", "What to profile on devices."),
    Flag("device_profiling_output", _S, "", "Where the profile goes."),
    Flag("print_device_statistics", _B, False, "Prints a summary of the profile."),
)

REFUSED_FLAGS: Final = tuple(
    _refused(name)
    for name in (
        "device_lead_allocator",
        "device_profiling_counter",
        "device_profiling_flush_interval_ms",
        "task_topology_snapshot",
        "instrument_file",
        "agents_md",
    )
)
REFUSED_PREFIXES: Final = ("device_profiling_filter_", "device_replay_", "device_capture_", "hip_", "vulkan_")

BENCHMARK_FLAGS: Final = (
    Flag("batch_size", _I, 1, "Calls in one iteration; the reported time is that of one call."),
    Flag("batch_concurrency", _I, 1, "Calls of an asynchronous function that overlap within a batch."),
    Flag("time_unit", _S, "ms", "Unit of reported times.", ("ms", "us", "ns")),
    Flag("dispatch_statistics", _B, False, "Adds one row for each dispatch."),
    Flag(
        "enable_output_processing", _B, False, "Prints, stores or compares the results of the last iteration."
    ),
    Flag("benchmark_min_time", _S, "0.5s", "How long to measure: `0.5s`, or a number of iterations `10x`."),
    Flag("benchmark_min_warmup_time", _F, 0.0, "Seconds of calls before measuring."),
    Flag("benchmark_repetitions", _I, 1, "How often to measure; from 2 on, aggregates are reported too."),
    Flag("benchmark_report_aggregates_only", _B, False, "Leaves single measurements out."),
    Flag(
        "benchmark_display_aggregates_only",
        _B,
        False,
        "Leaves single measurements out of\nwhat is displayed.",
    ),
    Flag(
        "benchmark_filter",
        _S,
        "",
        "Runs the benchmarks whose name matches this regular expression;\n`-` in front negates.",
    ),
    Flag("benchmark_list_tests", _B, False, "Prints the names of the benchmarks."),
    Flag("benchmark_format", _S, "console", "Format of standard output.", ("console", "json", "csv")),
    Flag("benchmark_out", _S, "", "A file for the report."),
    Flag("benchmark_out_format", _S, "json", "Format of that file.", ("json", "console", "csv")),
    Flag("benchmark_time_unit", _S, "", "Another name for --time_unit.", ("", "ms", "us", "ns", "s")),
    Flag("benchmark_counters_tabular", _B, False, "Prints counters in columns."),
    Flag("benchmark_context", _L, [], "key=value to add to the report's context."),
)
