"""The program that `make demo` profiles: a small simulation, as varied as real Numba programs.

The bodies of a galaxy attract each other (`simulate` calls `advance`, which calls `accelerations`). Heat spreads over a
grid in parallel (`diffuse`). Distances are sorted by a recursive `quicksort` and counted in a histogram. The program
contains no code for profilers.

    program.py [FRACTION OF THE WORK, default 1.0]
"""

import math
import sys

import numpy as np
from numba import njit, prange


@njit
def accelerations(position, mass, out):
    """Computes each body's acceleration due to all others."""
    count = position.shape[0]
    for i in range(count):
        x, y, z = 0.0, 0.0, 0.0
        for j in range(count):
            dx = position[j, 0] - position[i, 0]
            dy = position[j, 1] - position[i, 1]
            dz = position[j, 2] - position[i, 2]
            square = dx * dx + dy * dy + dz * dz + 0.01
            pull = mass[j] / (square * math.sqrt(square))
            x += dx * pull
            y += dy * pull
            z += dz * pull
        out[i, 0], out[i, 1], out[i, 2] = x, y, z


@njit
def advance(position, velocity, mass, force, step):
    """Performs one leapfrog step."""
    accelerations(position, mass, force)
    for i in range(position.shape[0]):
        for axis in range(3):
            velocity[i, axis] += step * force[i, axis]
            position[i, axis] += step * velocity[i, axis]


@njit
def energy(position, velocity, mass):
    total = 0.0
    for i in range(position.shape[0]):
        speed = velocity[i, 0] ** 2 + velocity[i, 1] ** 2 + velocity[i, 2] ** 2
        total += 0.5 * mass[i] * speed
        for j in range(i):
            dx = position[j, 0] - position[i, 0]
            dy = position[j, 1] - position[i, 1]
            dz = position[j, 2] - position[i, 2]
            total -= mass[i] * mass[j] / math.sqrt(dx * dx + dy * dy + dz * dz + 0.01)
    return total


@njit
def simulate(position, velocity, mass, steps):
    force = np.zeros_like(position)
    before = energy(position, velocity, mass)
    for _ in range(steps):
        advance(position, velocity, mass, force, 1e-4)
    return energy(position, velocity, mass) - before


@njit(parallel=True)
def diffuse(grid, steps):
    """Spreads heat on a plate with cold edges."""
    rows, columns = grid.shape
    for _ in range(steps):
        after = grid.copy()
        for i in prange(1, rows - 1):
            for j in range(1, columns - 1):
                neighbours = grid[i - 1, j] + grid[i + 1, j] + grid[i, j - 1] + grid[i, j + 1]
                after[i, j] = grid[i, j] + 0.2 * (neighbours - 4.0 * grid[i, j])
        grid = after
    return grid.sum()


@njit
def partition(values, low, high):
    pivot = values[(low + high) // 2]
    while True:
        while values[low] < pivot:
            low += 1
        while values[high] > pivot:
            high -= 1
        if low >= high:
            return high
        values[low], values[high] = values[high], values[low]
        low += 1
        high -= 1


@njit
def quicksort(values, low, high):
    if low < high:
        middle = partition(values, low, high)
        quicksort(values, low, middle)
        quicksort(values, middle + 1, high)


@njit
def histogram(values, buckets):
    counts = np.zeros(buckets, np.int64)
    largest = values.max()
    for value in values:
        counts[min(int(value / largest * buckets), buckets - 1)] += 1
    return counts


def galaxy(bodies, fraction):
    random = np.random.default_rng(1)
    position = random.normal(size=(bodies, 3))
    velocity = random.normal(size=(bodies, 3)) * 0.1
    mass = random.uniform(0.5, 1.5, size=bodies) / bodies
    drift = simulate(position, velocity, mass, max(1, int(500 * fraction)))
    print(f"energy drift of {bodies} bodies: {drift:.3e}")
    return np.sqrt((position**2).sum(axis=1))


def plate(size, fraction):
    grid = np.zeros((size, size))
    grid[size // 4 : size // 2, size // 4 : size // 2] = 100.0
    print(f"heat left on the plate: {diffuse(grid, max(1, int(600 * fraction))):.3f}")


def sorting(radii, fraction):
    for seed in range(max(1, int(30 * fraction))):
        values = np.random.default_rng(seed).permutation(np.repeat(radii, 500))
        quicksort(values, 0, values.size - 1)
    print(f"distances: {histogram(values, 8)}")


def main():
    fraction = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    radii = galaxy(1500, fraction)
    plate(1000, fraction)
    sorting(radii, fraction)


main()
