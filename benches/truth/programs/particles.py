"""Particles in a box: records, pairs with a cut-off, steps that call compiled functions, and a histogram."""
import numpy as np
from numba import njit

from phases import phase, run

KIND = np.dtype([("x", "f8"), ("y", "f8"), ("vx", "f8"), ("vy", "f8"), ("cell", "i4")])
PARTICLES = np.zeros(400, KIND)
for field in ("x", "y", "vx", "vy"):
    PARTICLES[field] = np.random.default_rng(0).random(400)


@njit(inline="always")
def squared(a, b):
    dx, dy = a.x - b.x, a.y - b.y  # paired
    return dx * dx + dy * dy  # paired


@njit
def energy(particles):
    total = 0.0
    for i in range(particles.size):  # paired
        for j in range(i):  # paired
            r = squared(particles[i], particles[j])  # paired
            if r < 0.1:  # paired
                total += 1.0 / (r + 0.01)  # paired
    return total


@njit
def reflect(x, v):
    if x < 0.0 or x > 1.0:  # stepped
        return -v  # stepped
    return v  # stepped


@njit
def step(particles, n):
    for _ in range(n):  # stepped
        for i in range(particles.size):  # stepped
            p = particles[i]  # stepped
            p.x += 0.001 * p.vx  # stepped
            p.y += 0.001 * p.vy  # stepped
            p.vx = reflect(p.x, p.vx)  # stepped
            p.vy = reflect(p.y, p.vy)  # stepped


@njit
def fill_cells(particles, counts, n):
    for _ in range(n):  # counted
        for i in range(particles.size):  # counted
            cell = int(particles[i].x * 7.99) & 7  # counted
            particles[i].cell = cell  # counted
            counts[cell] += 1  # counted


@phase("paired")
def _(n):
    for _ in range(n):
        energy(PARTICLES)


@phase("stepped")
def _(n):
    step(PARTICLES, n)


@phase("counted")
def _(n):
    fill_cells(PARTICLES, np.zeros(8, np.int64), n)


@phase("gathered")
def _(n):
    for _ in range(10 * n):
        np.hypot(PARTICLES["x"], PARTICLES["y"]).argsort()  # gathered


run()
