"""Module ``vmvx``: the operations that VMVX kernels compiled with microkernels call."""

from jitree.modules.vmvx.module import VmvxModule

__all__ = ["VmvxModule"]
