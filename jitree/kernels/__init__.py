"""Kernels of users, which run in place of dispatches: :meth:`jitree.Session.replace`.

``kernel`` describes one; ``describe`` shows what a dispatch gets; ``product`` is ready to be used.
"""

from __future__ import annotations

from jitree.kernels.bindings import describe as describe
from jitree.kernels.kernel import Kernel as Kernel
from jitree.kernels.kernel import KernelCall as KernelCall
from jitree.kernels.kernel import kernel as kernel
from jitree.kernels.kernel import product as product
