"""Complex numbers."""
import numpy as np
from numba import njit

from phases import phase, run


@njit
def mandelbrot(n):
    count = 0
    for k in range(n):  # mandelbrot
        c = complex(-0.5 + (k % 7) * 0.01, 0.3)  # mandelbrot
        z = 0j  # mandelbrot
        for _ in range(200):  # mandelbrot
            z = z * z + c  # mandelbrot
            if z.real * z.real + z.imag * z.imag > 4.0:  # mandelbrot
                break  # mandelbrot
            count += 1  # mandelbrot
    return count


@njit
def exponential(n):
    z = 0.5 + 0.1j
    for _ in range(20 * n):  # exponential
        z = np.exp(z * 0.1j) / (z + 1.5)  # exponential
    return z


@phase("mandelbrot")
def _(n):
    mandelbrot(n)


@phase("exponential")
def _(n):
    exponential(n)


run()
