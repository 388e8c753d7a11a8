"""Measures `cases.py` and writes what coverage.py says of it, as JSON:  measure.py MODULE OUT [branch]

With COVERAGE_TRUTH set, its functions run as Python; otherwise Numba compiles them and the plugin is on.
"""

import importlib
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
import coverage


def main(module, out, branch=""):
    target = os.path.join(HERE, module + ".py")
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as file:
        file.write("[run]\nbranch = %s\n" % bool(branch))
        if not os.environ.get("COVERAGE_TRUTH"):
            file.write("plugins = jitlisten.coverage\n")
        file.flush()
        measured = coverage.Coverage(data_file=None, include=[target], config_file=file.name)
        measured.start()
        importlib.import_module(module).drive()
        measured.stop()
        _, statements, _, missing, _ = measured.analysis2(target)
        found = {"statements": statements, "missing": missing, "numba": "numba" in sys.modules}
        if branch:
            analysis = measured._analyze(target)
            run = analysis.arcs_executed() if callable(analysis.arcs_executed) else analysis.arcs_executed
            can = analysis.arc_possibilities() if callable(analysis.arc_possibilities) else analysis.arc_possibilities
            found["arcs"] = sorted(set(run) & set(can))
            found["branches"] = {
                line: list(counts) for line, counts in measured._analyze(target).branch_stats().items()
            }
    with open(out, "w") as file:
        json.dump(found, file)


main(*sys.argv[1:])
