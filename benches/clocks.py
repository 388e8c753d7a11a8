"""Compares CPU timers with perf's `cpu-clock`, and measures what recordings cost, as two Markdown tables.

    benches/clocks.py LIBRARY [SECONDS] [ROUNDS]

Needs cc and perf; `cpu-clock` also needs root, or perf_event_paranoid below 2. The threads' own clocks give the
true shares of two functions. The functions run in two threads that wait for each other, and in one thread, where one of
them reads /dev/zero and so spends its time in the kernel.

The costs are the processor time of one process, which turns recordings on and off: each ratio is the median over all
rounds, with its quartiles. A round has one turn without a recording, one turn with each recording, and one without
again (A/A). Threads are one that computes; two on one processor that wake each other through pipes and
do nothing else; and two that work for 50 us before each turn.
"""

import os
import pathlib
import re
import statistics
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

COST = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "jitlisten.h"
static int there[2], back[2], turns;
static long work;
static volatile double sink;
static void compute(long count) {
    double x = 1;
    for (long i = 0; i < count; i++) x = x * 0.999 + 1 / (x + 1);
    sink = x;
}
static void turn(int from, int to) {
    char c;
    if (read(from, &c, 1) != 1) _exit(1);
    compute(work);
    if (write(to, &c, 1) != 1) _exit(1);
}
static void *other(void *none) { for (;;) turn(there[0], back[1]); return none; }
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}
static void print_turn(void) {
    /* The start of a recording is not measured. A processor is slower after a pause, so each turn begins with one. */
    usleep(200000);
    double before = seconds();
    if (!turns) compute(work);
    else if (write(there[1], "x", 1) != 1) _exit(1);
    for (int i = 1; i < turns; i++) turn(back[0], there[1]);
    char c;
    if (turns && read(back[0], &c, 1) != 1) _exit(1);
    printf("%f ", seconds() - before);
}
int main(int count, char **arguments) {
    (void)count;
    jitlisten_status (*start)(const char *, const struct jitlisten_record_options *) =
        dlsym(RTLD_DEFAULT, "jitlisten_record_start");
    jitlisten_status (*stop)(void) = dlsym(RTLD_DEFAULT, "jitlisten_record_stop");
    turns = atoi(arguments[2]), work = atol(arguments[3]);
    cpu_set_t one; CPU_ZERO(&one); CPU_SET(sched_getcpu(), &one); sched_setaffinity(0, sizeof one, &one);
    pthread_t thread;
    if (pipe(there) || pipe(back) || pthread_create(&thread, 0, other, 0)) return 1;
    struct jitlisten_record_options options[] = {
        {.size = sizeof *options, .hz = 199}, {.size = sizeof *options, .hz = 199, .flags = JITLISTEN_RECORD_WALL},
        {.size = sizeof *options, .hz = 1000}, {.size = sizeof *options, .hz = 1000, .flags = JITLISTEN_RECORD_WALL},
        {.size = sizeof *options, .hz = 199, .event = "cpu-clock"},
    };
    for (int round = -1; round < atoi(arguments[4]); round++) {
        print_turn();
        for (int i = 0; i < 5; i++) {
            if (start(arguments[1], &options[i])) return 2;
            print_turn();
            stop();
        }
        print_turn();
        puts("");
    }
    fflush(stdout);
    _exit(0);
}
"""
RECORDINGS = ("199 Hz", "199 Hz, wall", "1,000 Hz", "1,000 Hz, wall", "199 Hz, `-e cpu-clock`", "A/A")
#: Name of a program, its turns, and its computing in each.
COSTS = (("compute", "0", "100000000"), ("wake each other", "60000", "0"), ("work for 50 us", "8000", "12000"))

CLOCKS = {"timers": ",hz=199", "`cpu-clock`": ",hz=199,event=cpu-clock", "`cpu-clock:u`": ",hz=199,event=cpu-clock:u"}


def run(command, options=None):
    variables = {} if options is None else {"JITLISTEN_RECORD": f"{PLACE}/f.data{options}"}
    environment = {**os.environ, "LD_PRELOAD": LIBRARY, "JITLISTEN": "image", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def measure_share(kind, seconds, options):
    """Returns the error of a share in points, and its sigma."""
    truth = float(run([sys.executable, "-c", SHARES, kind, seconds], options))
    command = ["perf", "script", "--no-inline", "--max-stack", "200", "-F", "period,ip,sym", "-i", f"{PLACE}/f.data"]
    weights = {"first": [], "second": [], "kernel": []}
    for block in subprocess.run(command, capture_output=True, text=True).stdout.split("\n\n"):
        if match := re.search(r"py::(first|second|kernel):", block):
            weights[match[1]].append(int(re.match(r"\s*(\d+)", block)[1]))
    all_weights = [weight for weights_of_function in weights.values() for weight in weights_of_function]
    measured = 100 - 100 * sum(weights["second"]) / sum(all_weights)
    sigma = (truth * (100 - truth) * sum(weight**2 for weight in all_weights)) ** 0.5 / sum(all_weights)
    return f"{measured - truth:+.1f} ({sigma:.1f})"


def print_shares(seconds):
    print(
        "| clock | threads that wait, error in points (sigma) | reads, error in points (sigma) |\n| --- | --- | --- |"
    )
    for name, options in CLOCKS.items():
        cells = [measure_share("waits", seconds, options), measure_share("reads", seconds, options)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def print_costs(rounds):
    flags = ["-O1", "-pthread", f"-I{ROOT}/include", "-ldl"]
    subprocess.run(["cc", "-xc", "-", "-o", f"{PLACE}/cost", *flags], input=COST, text=True, check=True)
    print("| threads | " + " | ".join(RECORDINGS) + " |")
    print("| --- |" + " --- |" * len(RECORDINGS))
    for name, *arguments in COSTS:
        lines = run([f"{PLACE}/cost", f"{PLACE}/cost.data", *arguments, str(rounds)]).splitlines()[1:]
        rows = [[float(word) for word in line.split()] for line in lines]
        cells = []
        for column in range(1, len(RECORDINGS) + 1):
            ratios = [row[column] / row[0] for row in rows]
            low, _, high = statistics.quantiles(ratios, n=4)
            cells.append(f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main():
    seconds = sys.argv[2] if len(sys.argv) > 2 else "20"
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    print_shares(seconds)
    print()
    print_costs(rounds)


if __name__ == "__main__":
    LIBRARY = os.path.abspath(sys.argv[1])
    ROOT = pathlib.Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as PLACE:
        main()
