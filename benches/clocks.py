"""Compares CPU timers with perf's `cpu-clock`, as a Markdown table: benches/clocks.py LIBRARY [SECONDS]

Needs cc and perf; `cpu-clock` also needs root, or perf_event_paranoid below 2. The threads' own clocks give the
true shares of two functions. The functions run in two threads that wait for each other, and in one thread, where one of
them reads /dev/zero and so spends its time in the kernel. The cost is the processor time of two threads on one
processor that wake each other through pipes, relative to runs without a recording; each time is the minimum of five
runs.
"""

import os
import re
import subprocess
import sys
import tempfile

SHARES = """
import sys, threading, time
def burn(count):
    return sum(number * number for number in range(count))
def first():
    burn(6000)
def second():
    burn(18000)
def kernel():
    for _ in range(6):
        zero.readinto(space)
spent, lock, zero, space = {}, threading.Lock(), open("/dev/zero", "rb", buffering=0), bytearray(1 << 20)
def timed(function):
    before = time.thread_time()
    function()
    with lock:
        spent[function.__name__] = spent.get(function.__name__, 0) + time.thread_time() - before
turns = [threading.Semaphore(1), threading.Semaphore(0)]
end = time.monotonic() + float(sys.argv[2])
def body(me):
    while time.monotonic() < end:
        if sys.argv[1] == "waits":
            turns[me].acquire()
            timed(first)
            timed(second)
            turns[1 - me].release()
        elif me == 0:
            timed(kernel)
            timed(second)
        else:
            return
threads = [threading.Thread(target=body, args=(me,)) for me in (0, 1)]
[thread.start() for thread in threads]
threads[0].join()
turns[1].release()
print(100 - 100 * spent["second"] / sum(spent.values()), flush=True)
"""

WAKE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
enum { ROUNDS = 40000 };
static int there[2], back[2];
static void turn(int from, int to) { char c; if (read(from, &c, 1) != 1 || write(to, &c, 1) != 1) _exit(1); }
static void *other(void *none) { for (int i = 0; i < ROUNDS; i++) turn(there[0], back[1]); return none; }
int main(void) {
    cpu_set_t one; CPU_ZERO(&one); CPU_SET(sched_getcpu(), &one); sched_setaffinity(0, sizeof one, &one);
    pthread_t thread;
    if (pipe(there) || pipe(back) || pthread_create(&thread, 0, other, 0)) return 1;
    usleep(100000);
    clock_t before = clock();
    if (write(there[1], "x", 1) != 1) return 1;
    for (int i = 1; i < ROUNDS; i++) turn(back[0], there[1]);
    printf("%f\n", (double)(clock() - before) / CLOCKS_PER_SEC);
    fflush(stdout);
}
"""
CLOCKS = {"timers": ",hz=199", "`cpu-clock`": ",hz=199,event=cpu-clock", "`cpu-clock:u`": ",hz=199,event=cpu-clock:u"}


def run(command, options=None):
    variables = {} if options is None else {"JITLISTEN_RECORD": f"{PLACE}/f.data{options}"}
    environment = {**os.environ, "LD_PRELOAD": LIBRARY, "JITLISTEN": "image", **variables}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def measure_share(kind, seconds, options):
    """Returns the error of a share in points, and its sigma."""
    truth = run([sys.executable, "-c", SHARES, kind, seconds], options)
    command = ["perf", "script", "--no-inline", "--max-stack", "200", "-F", "period,ip,sym", "-i", f"{PLACE}/f.data"]
    weights = {"first": [], "second": [], "kernel": []}
    for block in subprocess.run(command, capture_output=True, text=True).stdout.split("\n\n"):
        if match := re.search(r"py::(first|second|kernel):", block):
            weights[match[1]].append(int(re.match(r"\s*(\d+)", block)[1]))
    all_weights = [weight for weights_of_function in weights.values() for weight in weights_of_function]
    measured = 100 - 100 * sum(weights["second"]) / sum(all_weights)
    sigma = (truth * (100 - truth) * sum(weight**2 for weight in all_weights)) ** 0.5 / sum(all_weights)
    return f"{measured - truth:+.1f} ({sigma:.1f})"


def main():
    seconds = sys.argv[2] if len(sys.argv) > 2 else "20"
    subprocess.run(["cc", "-O1", "-pthread", "-xc", "-", "-o", f"{PLACE}/wake"], input=WAKE, text=True, check=True)
    rows = {name: [] for name in [None, *CLOCKS.values()]}
    for _ in range(5):
        for options, times in rows.items():
            times.append(run([f"{PLACE}/wake"], options))
    print("| clock | threads that wait, error in points (sigma) | reads, error in points (sigma) | cost of waking |")
    print("| --- | --- | --- | --- |")
    for name, options in CLOCKS.items():
        cells = [measure_share("waits", seconds, options), measure_share("reads", seconds, options)]
        print(f"| {name} | {' | '.join(cells)} | {min(rows[options]) / min(rows[None]):.2f} |", flush=True)


if __name__ == "__main__":
    LIBRARY = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as PLACE:
        main()
