"""The number of checks of the battery, printed at the end."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sum of the property ``checks`` of all tests."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    found = [
        value
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == "checks"
    ]
    if found:
        terminalreporter.write_line(f"battery: {sum(found):,} checks of {len(found)} structures")
