"""Measures a module with coverage.py and writes the results as JSON:  measure.py MODULE OUT [branch]

MODULE is a path without `.py`. With COVERAGE_TRUTH set, the module's functions run as Python. Otherwise, Numba compiles
them and the plugin is enabled.
"""

import gc
import importlib
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
import coverage


def main(module, out, branch=""):
    gc.disable()  # Collecting what Numba allocates would take a fifth of the time.
    target = os.path.join(HERE, module + ".py")
    sys.path[:0] = [os.path.dirname(target)]
    if sys.version_info >= (3, 14):
        # The default core takes a branch as far as the next line, even if an exception ends it before.
        os.environ.setdefault("COVERAGE_CORE", "ctrace")
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as file:
        file.write("[run]\nbranch = %s\n" % bool(branch))
        if not os.environ.get("COVERAGE_TRUTH"):
            file.write("plugins = jitlisten.coverage\n")
        file.flush()
        measurement = coverage.Coverage(data_file=None, include=[target], config_file=file.name)
        measurement.start()
        importlib.import_module(os.path.basename(module)).drive()
        measurement.stop()
        _, statements, _, missing, _ = measurement.analysis2(target)
        results = {"statements": statements, "missing": missing, "numba": "numba" in sys.modules}
        if branch:
            analysis = measurement._analyze(target)
            executed_arcs = analysis.arcs_executed() if callable(analysis.arcs_executed) else analysis.arcs_executed
            possible_arcs = (
                analysis.arc_possibilities() if callable(analysis.arc_possibilities) else analysis.arc_possibilities
            )
            results["arcs"] = sorted(set(executed_arcs) & set(possible_arcs))
            results["branches"] = {
                line: list(counts) for line, counts in measurement._analyze(target).branch_stats().items()
            }
    with open(out, "w") as file:
        json.dump(results, file)


main(*sys.argv[1:])
