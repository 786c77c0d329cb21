# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the outcomes to LIBVMM_TEST_XML, where it is set, in lines as GoogleTest writes them:
./run test counts the tests in there, and names those that were skipped."""

import os
from xml.sax.saxutils import quoteattr

_NOTHING_COLLECTED = 5


class Outcomes:
    def __init__(self, path):
        self.path = path
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.skipped = []  # (file, name, reason)

    def add(self, report, outcome):
        self.counts[outcome] += 1
        if outcome == "skipped":
            file, _, name = report.nodeid.partition("::")
            words = report.longrepr
            reason = words[2] if isinstance(words, tuple) else str(words)
            reason = reason.removeprefix("Skipped: ")
            module = os.path.splitext(os.path.basename(file))[0].removeprefix("test_")
            self.skipped.append((f"python.{module}", name or "all", reason))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.add(report, report.outcome)

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self.add(report, report.outcome)

    def pytest_sessionfinish(self, exitstatus):
        # CTest counts a program that skips as a whole as skipped; what is in here comes on top.
        counted = 0 if int(exitstatus) == _NOTHING_COLLECTED else self.counts["skipped"]
        total = max(1, sum(self.counts.values()))
        lines = [
            f'<testsuites tests="{total}" failures="{self.counts["failed"]}" errors="0">',
            f'  <testsuite skipped="{counted}" disabled="0">',
        ]
        for module, name, reason in self.skipped:
            lines += [
                (
                    f'    <testcase name={quoteattr(name)} result="skipped" '
                    f"classname={quoteattr(module)}>"
                ),
                f"      <skipped message={quoteattr(' '.join(reason.split()))}/>",
                "    </testcase>",
            ]
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, "  </testsuite>", "</testsuites>", ""]))


def pytest_configure(config):
    path = os.environ.get("LIBVMM_TEST_XML")
    if path:
        config.pluginmanager.register(Outcomes(path))
