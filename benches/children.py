"""Cost of recording child processes, and coverage of their run time: benches/children.py LIBRARY [ROUNDS]

Needs cc and perf. Measures children of a C program and of the current Python, alternately with and without recording
children, and prints medians: the processor time of a child that does nothing, and the time that a child uses before its
first instruction, which no sample can cover. The last rows show how much of a child's 20 ms of processor time its
recording covers, for each way to exit.
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORKS = """
import os, resource
for _ in range(100):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print((used.ru_utime + used.ru_stime) * 10)
"""
FIRST = """
import os, time
for _ in range(100):
    child = os.fork()
    if child == 0:
        print(time.process_time() * 1000, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
ENDS = ("exits", "executes", "terminated", "aborts", "crashes", "killed")


def main(library, rounds=5):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        program = directory / "sampled"
        source = ROOT / "tests/hosts/sampled.c"
        subprocess.run(
            ["cc", "-O1", "-g", f"-I{ROOT}/include", "-o", program, source, "-lm", "-lpthread", "-ldl"], check=True
        )
        recorded_environment = {
            **os.environ,
            "LD_PRELOAD": library,
            "JITLISTEN": "unwind",
            "JITLISTEN_RECORD": f"{directory}/f,children",
        }

        def run(environment, *command):
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

        def times(environment, *command):
            return [float(line) for line in run(environment, *command).split()]

        python = (sys.executable, "-W", "ignore", "-c")
        for label, command in [
            ("a child of fork", (program, "children", "fork")),
            ("a child of exec", (program, "children", "exec")),
            ("a child of fork in Python", (*python, FORKS)),
            ("before the first instruction after fork", (program, "first", "fork")),
            ("before the first instruction after exec", (program, "first", "exec")),
            ("before the first instruction after fork in Python", (*python, FIRST)),
        ]:
            pairs = [
                [statistics.median(times(environment, *command)) for environment in (os.environ, recorded_environment)]
                for _ in range(int(rounds))
            ]
            stock, recorded = map(statistics.median, zip(*pairs))
            print(f"{label}: {stock:.2f} ms of processor time, recorded {recorded:.2f} ms")
        for ending in ENDS:
            for file in directory.glob("f*"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
            run(recorded_environment, program, "short-lived", ending)
            kept_ns = 0
            for file in directory.glob("f.*"):
                script = ["perf", "script", "-F", "period,ip,sym", "-i", file]
                text = subprocess.run(script, capture_output=True, text=True, check=True).stdout
                blocks = [block for block in text.split("\n\n") if "burn" in block]
                kept_ns += sum(int(block.split()[0]) for block in blocks)
            print(f"children of 20 ms, {ending}: {kept_ns / 40 / 20e6:.0%} kept")


if __name__ == "__main__":
    main(*sys.argv[1:])
