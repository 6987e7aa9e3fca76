"""Imports of the newest ABI family, 0.7 as releases 3.12.0 and 3.13.0 have it: one row each.

Families are told apart by calling conventions only: whatever an older family shares with this one needs no
row of its own.
"""

# ruff: noqa: E501 - one import, one line where it fits

from __future__ import annotations

from typing import Final

from jitree.modules.hal import (
    allocator,
    buffer,
    buffer_view,
    channel,
    command_buffer,
    devices,
    executable,
    fence,
    file,
    queue,
)
from jitree.modules.hal.references import BINDINGS, COMMANDS, QUEUE, ImportRow

ROWS: Final = (
    # Devices.
    ImportRow("devices.count", "0v_i", "", devices.devices_count),
    ImportRow("devices.get", "0i_r", "index", devices.devices_get),
    ImportRow("device.allocator", "0r_r", "device: hal.device", devices.device_allocator),
    ImportRow("device.query.i64", "0rrr_iI", "device: hal.device, category: vm.buffer, key: vm.buffer",
        devices.device_query_i64),
    # Allocators.
    ImportRow("allocator.allocate", "0rIiiI_r",
        "allocator: hal.allocator, queue_affinity, memory_types, buffer_usage, allocation_size",
        allocator.allocate),
    ImportRow("allocator.import", "0riIiirII_r",
        "allocator: hal.allocator, try, queue_affinity, memory_types, buffer_usage, source: vm.buffer, offset, length",
        allocator.import_),
    ImportRow("allocator.select", "0iiICrID_rI",
        "memory_types, buffer_usage, flags, [device: hal.device, queue_affinity]", allocator.select),
    # Buffers.
    ImportRow("buffer.assert", "0rrrIii_v",
        "buffer: hal.buffer, message: vm.buffer, allocator: hal.allocator, minimum_length, memory_types, buffer_usage",
        buffer.assert_),
    ImportRow("buffer.subspan", "0rII_r", "source_buffer: hal.buffer, source_offset, length", buffer.subspan),
    ImportRow("buffer.length", "0r_I", "buffer: hal.buffer", buffer.length),
    ImportRow("buffer.load", "0rIi_i", "source_buffer: hal.buffer, source_offset, length", buffer.load),
    ImportRow("buffer.store", "0irIi_v", "value, target_buffer: hal.buffer, target_offset, length", buffer.store),
    ImportRow("buffer.allocation.preserve", "0r_v", "buffer: hal.buffer", buffer.allocation_preserve),
    ImportRow("buffer.allocation.discard", "0r_i", "buffer: hal.buffer", buffer.allocation_discard),
    ImportRow("buffer.allocation.is_terminal", "0r_i", "buffer: hal.buffer", buffer.allocation_is_terminal),
    # Buffer views.
    ImportRow("buffer_view.create", "0rIIiiCID_r",
        "buffer: hal.buffer, source_offset, source_length, element_type, encoding_type, [dim]", buffer_view.create),
    ImportRow("buffer_view.assert", "0rriiCID_v",
        "buffer_view: hal.buffer_view, message: vm.buffer, element_type, encoding_type, [dim]", buffer_view.assert_),
    ImportRow("buffer_view.buffer", "0r_r", "buffer_view: hal.buffer_view", buffer_view.buffer),
    ImportRow("buffer_view.element_type", "0r_i", "buffer_view: hal.buffer_view", buffer_view.element_type_),
    ImportRow("buffer_view.encoding_type", "0r_i", "buffer_view: hal.buffer_view", buffer_view.encoding_type),
    ImportRow("buffer_view.rank", "0r_i", "buffer_view: hal.buffer_view", buffer_view.rank),
    ImportRow("buffer_view.dim", "0ri_I", "buffer_view: hal.buffer_view, index", buffer_view.dim),
    ImportRow("buffer_view.trace", "0rCrD_v", "key: vm.buffer, [buffer_view: hal.buffer_view]", buffer_view.trace),
    # Fences.
    ImportRow("fence.create", "0rI_r", "device: hal.device, flags", fence.create),
    ImportRow("fence.join", "0ICrD_r", "flags, [fence: hal.fence?]", fence.join),
    ImportRow("fence.query", "0r_i", "fence: hal.fence", fence.query),
    ImportRow("fence.signal", "0r_v", "fence: hal.fence", fence.signal),
    ImportRow("fence.fail", "0ri_v", "fence: hal.fence, status", fence.fail),
    ImportRow("fence.await", "0iICrD_i", "timeout_millis, flags, [fence: hal.fence?]", fence.await_),
    # Command buffers.
    ImportRow("command_buffer.create", "0riiIi_r",
        "device: hal.device, modes, command_categories, queue_affinity, binding_capacity", command_buffer.create),
    ImportRow("command_buffer.finalize", "0r_v", COMMANDS, command_buffer.finalize),
    ImportRow("command_buffer.begin_debug_group", "0rr_v", f"{COMMANDS}, label: vm.buffer",
        command_buffer.begin_debug_group),
    ImportRow("command_buffer.end_debug_group", "0r_v", COMMANDS, command_buffer.end_debug_group),
    ImportRow("command_buffer.execution_barrier", "0riiI_v", f"{COMMANDS}, source_stage_mask, target_stage_mask, flags",
        command_buffer.execution_barrier),
    ImportRow("command_buffer.advise_buffer", "0rrIIIi_v", f"{COMMANDS}, buffer: hal.buffer?, flags, arg0, arg1, buffer_slot",
        command_buffer.advise_buffer),
    ImportRow("command_buffer.flush_buffer", "0rirII_v",
        f"{COMMANDS}, target_buffer_slot, target_buffer: hal.buffer?, target_offset, length",
        command_buffer.flush_buffer),
    ImportRow("command_buffer.invalidate_buffer", "0rirII_v",
        f"{COMMANDS}, target_buffer_slot, target_buffer: hal.buffer?, target_offset, length",
        command_buffer.invalidate_buffer),
    ImportRow("command_buffer.fill_buffer", "0rrIIiIiI_v",
        f"{COMMANDS}, target_buffer: hal.buffer?, target_offset, length, target_buffer_slot, pattern, pattern_length, "
        "flags", command_buffer.fill_buffer),
    ImportRow("command_buffer.update_buffer", "0rrIrIIiI_v",
        f"{COMMANDS}, source_buffer: vm.buffer, source_offset, target_buffer: hal.buffer?, target_offset, length, "
        "target_buffer_slot, flags", command_buffer.update_buffer),
    ImportRow("command_buffer.copy_buffer", "0riirIrIII_v",
        f"{COMMANDS}, source_buffer_slot, target_buffer_slot, source_buffer: hal.buffer?, source_offset, "
        "target_buffer: hal.buffer?, target_offset, length, flags", command_buffer.copy_buffer),
    ImportRow("command_buffer.collective", "0rriiiirrIIIII_v",
        f"{COMMANDS}, channel: hal.channel, op, param, send_buffer_slot, recv_buffer_slot, send_buffer: hal.buffer?, "
        "recv_buffer: hal.buffer?, send_offset, send_length, recv_offset, recv_length, element_count",
        command_buffer.collective),
    ImportRow("command_buffer.dispatch", "0rrIiiiICiDCiirIID_v",
        f"{COMMANDS}, executable: hal.executable, function_id, workgroup_x, workgroup_y, workgroup_z, flags, [value], "
        f"{BINDINGS}", command_buffer.dispatch),
    ImportRow("command_buffer.dispatch.indirect", "0rrIirIICiDCiirIID_v",
        f"{COMMANDS}, executable: hal.executable, function_id, workgroups_buffer_slot, workgroups_buffer: hal.buffer?, "
        f"workgroups_offset, flags, [value], {BINDINGS}", command_buffer.dispatch_indirect),
    # Executables.
    ImportRow("executable.create", "0rIrrr_r",
        "device: hal.device, queue_affinity, executable_format: vm.buffer, executable_data: vm.buffer, "
        "constants: vm.buffer?", executable.create),
    ImportRow("executable.lookup.function", "0rr_I", "executable: hal.executable, function_name: vm.buffer",
        executable.lookup_function),
    # Queues.
    ImportRow("device.queue.alloca", "0rIrrIiiII_r", f"{QUEUE}, pool, memory_types, buffer_usage, allocation_size, flags",
        queue.alloca),
    ImportRow("device.queue.dealloca", "0rIrrrI_v", f"{QUEUE}, buffer: hal.buffer, flags", queue.dealloca),
    ImportRow("device.queue.fill", "0rIrrrIIIiI_v",
        f"{QUEUE}, target_buffer: hal.buffer, target_offset, length, pattern, pattern_length, flags", queue.fill),
    ImportRow("device.queue.update", "0rIrrrIrIII_v",
        f"{QUEUE}, source_buffer: vm.buffer, source_offset, target_buffer: hal.buffer, target_offset, length, flags",
        queue.update),
    ImportRow("device.queue.copy", "0rIrrrIrIII_v",
        f"{QUEUE}, source_buffer: hal.buffer, source_offset, target_buffer: hal.buffer, target_offset, length, flags",
        queue.copy),
    ImportRow("device.queue.read", "0rIrrrIrIII_v",
        f"{QUEUE}, source_file: hal.file, source_offset, target_buffer: hal.buffer, target_offset, length, flags",
        queue.read),
    ImportRow("device.queue.write", "0rIrrrIrIII_v",
        f"{QUEUE}, source_buffer: hal.buffer, source_offset, target_file: hal.file, target_offset, length, flags",
        queue.write),
    ImportRow("device.queue.barrier", "0rIrrI_v", f"{QUEUE}, flags", queue.barrier),
    ImportRow("device.queue.execute", "0rIrrrI_v", f"{QUEUE}, {COMMANDS}, flags", queue.execute),
    ImportRow("device.queue.execute.indirect", "0rIrrrICrIID_v",
        f"{QUEUE}, {COMMANDS}, flags, [buffer: hal.buffer?, offset, length]", queue.execute),
    ImportRow("device.queue.flush", "0rI_v", "device: hal.device, queue_affinity", queue.flush),
    # Files and channels.
    ImportRow("ex.file.from_memory", "0rIirIIi_r",
        "device: hal.device, queue_affinity, access, buffer: vm.buffer, offset, length, flags", file.from_memory),
    ImportRow("channel.create", "0rIIrrii_r",
        "device: hal.device, queue_affinity, flags, id: vm.buffer?, group: vm.buffer?, rank, count", channel.create),
    ImportRow("channel.split", "0riiI_r", "channel: hal.channel, color, key, flags", channel.split),
    ImportRow("channel.rank_and_count", "0r_ii", "channel: hal.channel", channel.rank_and_count),
)  # fmt: skip
