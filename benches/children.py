"""What a recorded child costs and keeps: benches/children.py LIBRARY [ROUNDS]

With cc and perf, from C and from the Python that runs this, with and without a recording of children, in turns, as
medians: processor time of a child that does nothing; and what a child has used before its own first instruction, which
is no sample's. How much of the 20 ms of a child is in its recording, by how it ends.
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
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        program = place / "sampled"
        source = ROOT / "tests/hosts/sampled.c"
        subprocess.run(
            ["cc", "-O1", "-g", f"-I{ROOT}/include", "-o", program, source, "-lm", "-lpthread", "-ldl"], check=True
        )
        recorded = {
            **os.environ, "LD_PRELOAD": library, "JITLISTEN": "unwind", "JITLISTEN_RECORD": f"{place}/f,children",
        }

        def run(environment, *command):
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

        def times(environment, *command):
            return [float(line) for line in run(environment, *command).split()]

        python = (sys.executable, "-W", "ignore", "-c")
        for what, command in [
            ("a child of fork", (program, "children", "fork")),
            ("a child of exec", (program, "children", "exec")),
            ("a child of fork in Python", (*python, FORKS)),
            ("before the first instruction after fork", (program, "first", "fork")),
            ("before the first instruction after exec", (program, "first", "exec")),
            ("before the first instruction after fork in Python", (*python, FIRST)),
        ]:
            pairs = [
                [statistics.median(times(environment, *command)) for environment in (os.environ, recorded)]
                for _ in range(int(rounds))
            ]
            stock, ours = map(statistics.median, zip(*pairs))
            print(f"{what}: {stock:.2f} ms of processor time, recorded {ours:.2f} ms")
        for end in ENDS:
            for file in place.glob("f*"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
            run(recorded, program, "short-lived", end)
            kept = 0
            for file in place.glob("f.*"):
                script = ["perf", "script", "-F", "period,ip,sym", "-i", file]
                text = subprocess.run(script, capture_output=True, text=True, check=True).stdout
                blocks = [block for block in text.split("\n\n") if "burn" in block]
                kept += sum(int(block.split()[0]) for block in blocks)
            print(f"children of 20 ms, {end}: {kept / 40 / 20e6:.0%} kept")


if __name__ == "__main__":
    main(*sys.argv[1:])
