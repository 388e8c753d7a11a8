"""Runs the tests of one module with unittest and writes each outcome as a line of JSON: run_module.py FILE TEST...

A TEST is any name that unittest can load: a module, a class or a test. A line `started` is written before each test, so
that if the process crashes, its last line names the test.
"""

import json
import sys
import unittest

# Outcomes go to a separate file, because the tested modules may print to standard output.
outcomes_file = open(sys.argv[1], "a", buffering=1)


def write(kind, test):
    outcomes_file.write(json.dumps([kind, test.id()]) + "\n")


class Outcomes(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        write("started", test)

    def addSuccess(self, test):
        super().addSuccess(test)
        write("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        write("failed", test)

    def addError(self, test, err):
        super().addError(test, err)
        write("error", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        write("skipped", test)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        write("expected failure", test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        write("unexpected success", test)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            write("failed", test)


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:])
    unittest.TextTestRunner(stream=sys.stderr, resultclass=Outcomes, verbosity=2).run(suite)
    outcomes_file.write(json.dumps(["ended", ""]) + "\n")
