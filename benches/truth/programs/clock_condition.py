"""Two threads work in turns, for 0.2 to 2 ms, and tell each other by a condition variable."""
import random
import threading

from phases import per_second, run_threads, timed, write


def ping(n):
    s = 0
    for i in range(n):  # ping
        s ^= i  # ping


def pong(n):
    s = 1
    for i in range(n):  # pong
        s = (s * i) & 255  # pong


def main(seconds, seed):
    functions = (ping, pong)
    totals = {function.__name__: [0.0, 0] for function in functions}
    lengths = [per_second(function, totals[function.__name__]) for function in functions]
    condition, random_source, turn = threading.Condition(), random.Random(seed), 0

    def play(player):
        nonlocal turn
        while min(spent for spent, _ in totals.values()) < seconds:
            with condition:
                condition.wait_for(lambda: turn == player)
            with timed(totals[functions[player].__name__]):
                functions[player](int(lengths[player] * random_source.uniform(0.0002, 0.002)))
            with condition:
                turn = 1 - player
                condition.notify_all()

    run_threads(play, range(2))
    return totals


write(main)
