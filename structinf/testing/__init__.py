"""Conformance suites that plugin authors run, and exact answers by enumeration to compare with."""

from .cases import InstanceData
from .enumeration import Enumeration, nearest_point
from .law import Law
from .oracle_checks import check_oracle, list_oracle_checks, run_oracle_checks
from .relaxation_checks import check_relaxation, list_relaxation_checks, run_relaxation_checks
from .report import CheckError, CheckReport, CheckResult

__all__ = [
    "CheckError",
    "CheckReport",
    "CheckResult",
    "Enumeration",
    "InstanceData",
    "Law",
    "check_oracle",
    "check_relaxation",
    "list_oracle_checks",
    "list_relaxation_checks",
    "nearest_point",
    "run_oracle_checks",
    "run_relaxation_checks",
]
