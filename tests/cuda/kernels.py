"""The kernels of ``tests.hal.kernels`` for the CUDA device: as PTX for a GPU, in Python for the fake
driver."""

from __future__ import annotations

from jitree.hal.device import Device
from jitree.hal.executable import Executable, ExecutableParameters
from tests.cuda.executables import executable_bytes
from tests.cuda.fake import FakeDriver, FakeKernel
from tests.cuda.fake_call import Fault
from tests.cuda.fake_results import CUresult

_INDEX = """
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ctaid.y;
	mov.u32 %r3, %ctaid.z;
	mov.u32 %r4, %nctaid.x;
	mov.u32 %r5, %nctaid.y;
	mad.lo.u32 %r6, %r3, %r5, %r2;
	mad.lo.u32 %r6, %r6, %r4, %r1;
	mul.wide.u32 %rd3, %r6, 4;
"""
"""%rd3 = byte offset of the word of this workgroup."""
PTX = f"""
.version 6.0
.target sm_60
.address_size 64

// (source, target, constant): target[i] = source[i] + constant for the i-th workgroup
.visible .entry add(.param .u64 add_0, .param .u64 add_1, .param .u32 add_2)
{{
	.reg .b32 %r<10>;
	.reg .b64 %rd<8>;
{_INDEX}
	ld.param.u64 %rd1, [add_0];
	ld.param.u64 %rd2, [add_1];
	ld.param.u32 %r7, [add_2];
	cvta.to.global.u64 %rd1, %rd1;
	cvta.to.global.u64 %rd2, %rd2;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.u32 %r8, [%rd4];
	add.s32 %r8, %r8, %r7;
	st.global.u32 [%rd5], %r8;
	ret;
}}

// (target): target[i] += 1
.visible .entry count(.param .u64 count_0)
{{
	.reg .b32 %r<10>;
	.reg .b64 %rd<8>;
{_INDEX}
	ld.param.u64 %rd1, [count_0];
	cvta.to.global.u64 %rd1, %rd1;
	add.s64 %rd4, %rd1, %rd3;
	ld.global.u32 %r8, [%rd4];
	add.s32 %r8, %r8, 1;
	st.global.u32 [%rd4], %r8;
	ret;
}}

// (constant): writes to that address
.visible .entry fail(.param .u32 fail_0)
{{
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u32 %r1, [fail_0];
	cvt.u64.u32 %rd1, %r1;
	st.global.u32 [%rd1], %r1;
	ret;
}}
"""
_ONE_THREAD = (1, 1, 1)
_EXPORTS = (("add", _ONE_THREAD, 1, 2), ("count", _ONE_THREAD, 0, 1), ("fail", _ONE_THREAD, 1, 0))


def _add(
    driver: FakeDriver, words: list[int], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    size = 4 * grid[0] * grid[1] * grid[2]
    source, target = (driver.bytes_at(address, size).view("<u4") for address in words[:2])
    target[:] = source + (words[2] & 0xFFFFFFFF)


def _count(
    driver: FakeDriver, words: list[int], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    driver.bytes_at(words[0], 4 * grid[0] * grid[1] * grid[2]).view("<u4")[:] += 1


def _fail(
    driver: FakeDriver, words: list[int], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    raise Fault(CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)


KERNELS = {"add": FakeKernel(3, _add), "count": FakeKernel(1, _count), "fail": FakeKernel(1, _fail)}


def load_executable(device: Device) -> Executable:
    """The three kernels, prepared by the device's own executable cache."""
    data = memoryview(executable_bytes(PTX.encode(), _EXPORTS))
    return device.create_executable_cache().prepare_executable(ExecutableParameters("cuda-nvptx-fb", data))
