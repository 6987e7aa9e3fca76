"""Programs that take all they can get."""

from __future__ import annotations

from pathlib import Path

from tests.assembler import Assembler

DATA = Path(__file__).parent.parent / "data" / "programs"
DIGITS = Path(__file__).parent.parent.parent / "examples" / "digits"
NATIVE = DIGITS / "digits.llvm-cpu.vmfb"
ONE_PROCESSOR = DATA / "digits.vmfb"
"""The same, for x86-64 only."""
VMVX = DIGITS / "digits.vmvx.vmfb"

HOSTILE = Assembler("hostile", globals_size=8)
HOSTILE.function("spin", "0v_v", """
    br ^again
    ^again:
    br ^again
""")  # fmt: skip
HOSTILE.function("count", "0i_i", """
    %i1 = const.i32 1
    %i2 = const.i32 0
    br ^again
    ^again:
    %i2 = add.i32 %i2, %i1
    %i3 = cmp.lt.i32.s %i2, %i0
    cond_br %i3, ^again, ^end
    ^end:
    return [%i2]
""")  # fmt: skip
HOSTILE.function("hoard", "0iI_i", """
    %i4 = const.i32 0
    %i5 = const.i32 1
    %i6 = const.i32 16
    %i7 = const.i32 0
    %r0 = list.alloc !vm.buffer, %i0
    list.resize %r0, %i0
    br ^again
    ^again:
    %r1 = buffer.alloc %i2, %i6
    list.set.ref %r0, %i7, %R1
    %i7 = add.i32 %i7, %i5
    %i4 = cmp.lt.i32.s %i7, %i0
    cond_br %i4, ^again, ^end
    ^end:
    return [%i7]
""")  # fmt: skip
HOSTILE.function("clone", "0iI_i", """
    %i4 = const.i64 0
    %i6 = const.i32 16
    %r0 = buffer.alloc %i2, %i6
    %r1 = buffer.clone %r0, %i4, %i2, %i6
    return [%i0]
""")  # fmt: skip
HOSTILE.function("lists", "0i_i", """
    %r0 = list.alloc i32, %i0
    return [%i0]
""")  # fmt: skip
HOSTILE.function("grow", "0i_i", """
    %i1 = const.i32 1
    %r0 = list.alloc i32, %i1
    list.resize %r0, %i0
    list.reserve %r0, %i0
    return [%i0]
""")  # fmt: skip
HOSTILE.function("down", "0i_i", """
    cond_br %i0, ^more, ^end
    ^more:
    %i1 = const.i32 1
    %i2 = sub.i32 %i0, %i1
    [%i3] = call @down [%i2]
    %i3 = add.i32 %i3, %i1
    return [%i3]
    ^end:
    return [%i0]
""")  # fmt: skip
HOSTILE.function("give", "0I_r", """
    %i6 = const.i32 16
    %r0 = buffer.alloc %i0, %i6
    return [%R0]
""")  # fmt: skip
_ONE_LIST = """
    %i1 = const.i32 2
    %i2 = const.i32 0
    %i3 = const.i32 1
    %r0 = list.alloc !vm.ref<?>, %i1
    list.resize %r0, %i1
"""
HOSTILE.function("circle", "0v_r", f"{_ONE_LIST} list.set.ref %r0, %i2, %r0\nreturn [%R0]")
for name, second in (("chain", ""), ("tree", "list.set.ref %r1, %i2, %r0")):
    HOSTILE.function(name, "0i_r", f"""
        {_ONE_LIST}
        br ^again
        ^again:
        %r1 = list.alloc !vm.ref<?>, %i1
        list.resize %r1, %i1
        {second}
        list.set.ref %r1, %i3, %R0
        br ^next {{%R1->%r0}}
        ^next:
        %i0 = sub.i32 %i0, %i3
        cond_br %i0, ^again, ^end
        ^end:
        return [%R0]
    """)  # fmt: skip
PROGRAM = HOSTILE.build()

_CHANNEL = Assembler("channel").import_function("hal.devices.get", "0i_r")
_CHANNEL.import_function("hal.channel.create", "0rIirrii_r").function("join", "0v_i", """
    %i0 = const.i32 0
    [%r0] = call @hal.devices.get [%i0]
    %i2:3 = const.i64 -1
    %i4 = const.i32 -1
    [%r1] = call @hal.channel.create [%r0, %i2:3, %i0, %r2, %r2, %i4, %i4]
    return [%i0]
""")  # fmt: skip
CHANNEL = _CHANNEL.build()
"""Joins the group that the host names."""
_DEVICE = """
    %i1 = const.i32 0
    %i2:3 = const.i64 -1
    %i4:5 = const.i64 0
    %i6 = const.i32 3
    %i7 = const.i32 1
    [%r0] = call @hal.devices.get [%i1]
"""
_REPEATED = """
    %i0 = sub.i32 %i0, %i7
    cond_br %i0, ^again, ^end
    ^end:
    return [%i0]
"""
_QUEUES = Assembler("queues").import_function("hal.devices.get", "0i_r")
for name, cconv in (
    ("hal.command_buffer.create", "0riiIi_r"),
    ("hal.command_buffer.execution_barrier", "0riiI_v"),
    ("hal.fence.create", "0rI_r"),
    ("hal.device.queue.barrier", "0rIrrI_v"),
    ("check.expect_true", "0i_v"),
):
    _QUEUES.import_function(name, cconv)
_QUEUES.function("record", "0i_i", f"""
    {_DEVICE}
    [%r1] = call @hal.command_buffer.create [%r0, %i1, %i6, %i2:3, %i1]
    br ^again
    ^again:
    call @hal.command_buffer.execution_barrier [%r1, %i7, %i7, %i4:5]
    {_REPEATED}
""")  # fmt: skip
_QUEUES.function("submit", "0i_i", f"""
    {_DEVICE}
    [%r1] = call @hal.fence.create [%r0, %i4:5]
    [%r2] = call @hal.fence.create [%r0, %i4:5]
    br ^again
    ^again:
    call @hal.device.queue.barrier [%r0, %i2:3, %r1, %r2, %i4:5]
    {_REPEATED}
""")  # fmt: skip
_QUEUES.function("expect", "0i_i", f"""
    %i7 = const.i32 1
    %i1 = const.i32 0
    br ^again
    ^again:
    call @check.expect_true [%i1]
    {_REPEATED}
""")  # fmt: skip
QUEUES = _QUEUES.build()
"""Each function has the host keep something, so many times: commands, operations, failures."""

_OLD = Assembler("old").import_function("hal.devices.get", "0i_r")
for name, cconv in (
    ("hal.command_buffer.create", "0riii_r"),
    ("hal.command_buffer.execution_barrier", "0riii_v"),
    ("hal.command_buffer.finalize", "0r_v"),
    ("hal.command_buffer.execute.commands", "0rrCrIID_v"),
    ("hal.command_buffer.push_descriptor_set", "0rriCiirIID_v"),
    ("hal.descriptor_set_layout.create", "0riCiiiD_r"),
    ("hal.pipeline_layout.create", "0riCrD_r"),
    ("hal.fence.create", "0ri_r"),
    ("hal.fence.join", "0CrD_r"),
):
    _OLD.import_function(name, cconv)
_OLD_DEVICE = """
    %i1 = const.i32 0
    %i2 = const.i32 2
    %i3 = const.i32 3
    %i7 = const.i32 1
    %i8 = const.i32 0
    %i10:11 = const.i64 0
    %r5 = list.alloc !vm.ref<?>, %i0
    list.resize %r5, %i0
    [%r0] = call @hal.devices.get [%i1]
    [%r1] = call @hal.command_buffer.create [%r0, %i2, %i3, %i1]
"""
_KEPT = f"""
    list.set.ref %r5, %i8, %r2
    %i8 = add.i32 %i8, %i7
    {_REPEATED}
"""
_OLD.function("nest", "0i_i", f"""
    {_OLD_DEVICE}
    br ^again
    ^again:
    call @hal.command_buffer.execution_barrier [%r1, %i7, %i7, %i1]
    {_REPEATED}
""")  # fmt: skip
_OLD.function("double", "0i_i", f"""
    {_OLD_DEVICE}
    call @hal.command_buffer.execution_barrier [%r1, %i7, %i7, %i1]
    call @hal.command_buffer.finalize [%r1]
    br ^again
    ^again:
    [%r2] = call @hal.command_buffer.create [%r0, %i2, %i3, %i1]
    call.variadic @hal.command_buffer.execute.commands [0xFFFF, 0xFFFF, 0] [%r2, %r1]
    call.variadic @hal.command_buffer.execute.commands [0xFFFF, 0xFFFF, 0] [%r2, %r1]
    call @hal.command_buffer.finalize [%r2]
    %r1 = assign.ref %r2
    {_REPEATED}
""")  # fmt: skip
_OLD.function("join", "0i_i", f"""
    {_OLD_DEVICE}
    [%r1] = call @hal.fence.create [%r0, %i1]
    br ^again
    ^again:
    [%r2] = call @hal.fence.create [%r0, %i1]
    [%r1] = call.variadic @hal.fence.join [2] [%r1, %r2]
    %r2 = assign.ref %r1
    {_KEPT}
""")  # fmt: skip
_OLD.import_function("hal.device.queue.barrier", "0rIrrI_v")
_OLD.function("wait", "0i_i", f"""
    %i12 = const.i32 500
    %i14:15 = const.i64 -1
    {_OLD_DEVICE}
    [%r1] = call @hal.fence.create [%r0, %i1]
    [%r3] = call @hal.fence.create [%r0, %i1]
    br ^more
    ^more:
    [%r2] = call @hal.fence.create [%r0, %i1]
    [%r1] = call.variadic @hal.fence.join [2] [%r1, %r2]
    %i12 = sub.i32 %i12, %i7
    cond_br %i12, ^more, ^again
    ^again:
    call @hal.device.queue.barrier [%r0, %i14:15, %r1, %r3, %i10:11]
    {_REPEATED}
""")  # fmt: skip
_BINDINGS = 32
_ROWS = ", ".join(f"%i{20 + index}, %i1, %i1" for index in range(_BINDINGS))
_NUMBERS = "\n".join(f"%i{20 + index} = const.i32 {index}" for index in range(_BINDINGS))
_SETS = ", ".join(["%r3"] * 32)
_OLD.function("layouts", "0i_i", f"""
    {_OLD_DEVICE}
    {_NUMBERS}
    [%r3] = call.variadic @hal.descriptor_set_layout.create [0xFFFF, 0xFFFF, {_BINDINGS}] [%r0, %i1, {_ROWS}]
    br ^again
    ^again:
    [%r2] = call.variadic @hal.pipeline_layout.create [0xFFFF, 0xFFFF, 32] [%r0, %i1, {_SETS}]
    {_KEPT}
""")  # fmt: skip
_OLD.import_function("hal.executable.create", "0rIrrr_r")
_OLD.rodata(b"vmvx-bytecode-fb")
_OLD.rodata((DATA.parent / "executables" / "vmvx_mul-3.13.0.fb").read_bytes())
_OLD.function("executables", "0i_i", f"""
    {_OLD_DEVICE}
    %i14:15 = const.i64 -1
    %r3 = const.ref.rodata 0
    %r4 = const.ref.rodata 1
    br ^again
    ^again:
    [%r2] = call @hal.executable.create [%r0, %i14:15, %r3, %r4, %r6]
    {_KEPT}
""")  # fmt: skip
OLD = _OLD.build()
"""As :data:`QUEUES`, of ABI 0.2: commands in nested buffers, those again, fences of ever more, layouts,
executables."""
GLOBALS = Assembler("globals", globals_size=1 << 20).function("f", "0v_v", "return").build()
ENDLESS_INIT = Assembler("endless").function("__init", "0v_v", "br ^again\n^again:\nbr ^again").build()
ENDLESS_END = Assembler("last").function("__deinit", "0v_v", "br ^again\n^again:\nbr ^again").build()
ENDLESS_KERNEL = DATA / "endless.vmfb"
"""Of VMVX: ``f(x, y)`` never ends where elements of x are not y."""
