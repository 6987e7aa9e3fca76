"""The host module ``check``: expectations of self-checking programs."""

from jitree.modules.check.module import CheckModule, FailureSink

__all__ = ["CheckModule", "FailureSink"]
