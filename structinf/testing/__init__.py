"""Conformance suites for authors of oracles and relaxations, and exact results by enumeration."""

from .cases import InstanceData
from .check import Check
from .enumeration import Enumeration, nearest_point
from .report import CheckError, CheckReport, CheckResult
from .suites import check_oracle, check_relaxation, list_oracle_checks, list_relaxation_checks
from .transition_checks import check_transition_system

__all__ = [
    "Check",
    "CheckError",
    "CheckReport",
    "CheckResult",
    "Enumeration",
    "InstanceData",
    "check_oracle",
    "check_relaxation",
    "check_transition_system",
    "list_oracle_checks",
    "list_relaxation_checks",
    "nearest_point",
]
