"""Conformance suites that plugin authors run, and exact answers by enumeration to compare with."""

from .cases import InstanceData
from .enumeration import Enumeration, nearest_point
from .law import Law
from .oracle_checks import check_oracle, oracle_laws, oracle_results
from .relaxation_checks import check_relaxation, relaxation_laws, relaxation_results
from .report import LawError, Report, Result

__all__ = [
    "Enumeration",
    "InstanceData",
    "Law",
    "LawError",
    "Report",
    "Result",
    "check_oracle",
    "check_relaxation",
    "nearest_point",
    "oracle_laws",
    "oracle_results",
    "relaxation_laws",
    "relaxation_results",
]
