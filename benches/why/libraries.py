#!/usr/bin/env python3
"""Prints the advice of `jitlisten lines` for the hot loops of 17 libraries built on Numba, and compares it with
records/advice.tsv, where engineers judged each piece of advice by reading the library's source.
`times faster` is what the change gained in a copy.

    libraries.py --requirements                  prints the packages that PYTHON needs: pip install `...`
    libraries.py JITLISTEN PYTHON [LIBRARY...]   records a program of each library; prints a row per piece of advice

The last column is the recorded verdict, or `not judged`, in which case the exit status is 1. A loop that is not hot
enough in this run has no row. `--keep DIRECTORY` keeps the recordings and reuses existing ones.
"""

import argparse
import collections
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBA = "numba==0.68.1"
# #: Code placed before each program: `spin` calls a function for some seconds of processor time.
SPIN = """\
import time
import numpy as np
random = np.random.default_rng(0)
def spin(function, seconds=0.15):
    function()
    until = time.process_time() + seconds
    while time.process_time() < until:
        function()
"""
#: Requirements and a program for each library.
PROGRAMS = {
    "pandas": (
        "pandas==3.1.1",
        """
import pandas as pd
frame = pd.DataFrame({"k": random.integers(0, 500, 400_000), "v": random.random(400_000), "w": random.random(400_000)})
for name in ("sum", "mean", "var", "max", "min"):
    spin(lambda: getattr(frame.groupby("k"), name)(engine="numba"))
    spin(lambda: getattr(frame.v.rolling(50), name)(engine="numba"))
spin(lambda: frame.v.rolling(50).apply(lambda window: (window * window).sum(), raw=True, engine="numba"))
# Compiling this for long series takes gigabytes of memory.
short = frame.v[:2000]
spin(lambda: short.ewm(alpha=0.1).mean(engine="numba"))
""",
    ),
    "numbagg": (
        "numbagg==0.9.6",
        """
import warnings
import numbagg
warnings.simplefilter("ignore")
a, labels = random.random((50, 4000)), random.integers(0, 20, 4000)
a[a < 0.1] = np.nan
for name in "mean sum var std min max argmax median count".split():
    spin(lambda: getattr(numbagg, "nan" + name)(a, axis=1))
spin(lambda: numbagg.anynan(a, axis=1))
spin(lambda: numbagg.allnan(a, axis=1))
spin(lambda: numbagg.nanquantile(a, [0.25, 0.5], axis=1))
for name in "mean sum std var".split():
    spin(lambda: getattr(numbagg, "move_" + name)(a, window=20))
for name in "mean sum var".split():
    spin(lambda: getattr(numbagg, "move_exp_nan" + name)(a, alpha=0.3))
spin(lambda: numbagg.move_corr(a, a[::-1], window=20))
spin(lambda: numbagg.move_cov(a, a[::-1], window=20))
for name in "mean sum var max first count argmin".split():
    spin(lambda: getattr(numbagg, "group_nan" + name)(a, labels, axis=1))
spin(lambda: numbagg.ffill(a))
spin(lambda: numbagg.bfill(a))
""",
    ),
    "sparse": (
        "sparse==0.19.3 scipy",
        """
import sparse
a, b = (sparse.random((2000, 2000), density=0.01, random_state=state) for state in (0, 1))
g, h, dense = sparse.GCXS(a), sparse.GCXS(b), random.random((2000, 50))
spin(lambda: a @ b)
spin(lambda: g @ h)
spin(lambda: a * b + a)
spin(lambda: a.reshape((200, 10, 2000)).sum(axis=1).max())
spin(lambda: g[100:900, 30:800].sum())
spin(lambda: sparse.dot(a, dense))
""",
    ),
    "librosa": (
        "librosa==0.11.0",
        """
import librosa
rate = 22050
t = np.arange(rate * 8) / rate
y = (np.sin(2 * np.pi * 220 * t * (1 + 0.1 * t)) + 0.1 * random.standard_normal(len(t))).astype(np.float32)
x, square, likely = random.random((12, 400)), random.random((300, 300)), random.random((20, 600))
likely /= likely.sum(0)
moves = librosa.sequence.transition_loop(20, 0.9)
spin(lambda: librosa.sequence.dtw(x, x[:, ::-1]), 0.4)
spin(lambda: librosa.sequence.viterbi(likely, moves), 0.4)
spin(lambda: librosa.sequence.rqa(square), 0.4)
spin(lambda: librosa.beat.beat_track(y=y, sr=rate), 0.4)
spin(lambda: librosa.yin(y, fmin=60, fmax=800, sr=rate), 0.4)
spin(lambda: librosa.pyin(y[: 2 * rate], fmin=60, fmax=800, sr=rate), 0.4)
spin(lambda: librosa.onset.onset_detect(y=y, sr=rate), 0.4)
spin(lambda: librosa.feature.chroma_stft(y=y, sr=rate), 0.4)
spin(lambda: librosa.util.localmax(x))
spin(lambda: librosa.zero_crossings(y))
""",
    ),
    "numba-stats": (
        "numba-stats==1.14.0",
        """
import importlib
from numba_stats import bernstein, poisson
x = 0.9 * random.random(100_000) + 0.01
parameters = {
    "norm": (0.0, 1.0), "lognorm": (0.5, 0.0, 1.0), "expon": (0.0, 1.0), "uniform": (0.0, 1.0),
    "crystalball": (1.0, 2.0, 0.0, 1.0), "t": (3.0, 0.0, 1.0), "truncnorm": (0.0, 2.0, 0.0, 1.0),
    "truncexpon": (0.0, 2.0, 0.0, 1.0), "voigt": (0.5, 0.0, 1.0), "laplace": (0.0, 1.0),
    "cruijff": (0.1, 0.1, 0.5, 0.5), "qgaussian": (1.5, 0.0, 1.0),
}
for name, given in parameters.items():
    module = importlib.import_module("numba_stats." + name)
    for function in ("pdf", "cdf", "logpdf", "ppf"):
        if hasattr(module, function):
            spin(lambda: getattr(module, function)(x, *given))
spin(lambda: bernstein.density(x, np.ones(5), 0.0, 2.0))
spin(lambda: poisson.pmf((x * 10).astype(int), 3.0))
spin(lambda: poisson.cdf((x * 10).astype(int), 3.0))
""",
    ),
    "quantecon": (
        "quantecon==0.11.4",
        """
import quantecon as qe
from numba import njit
from quantecon.markov import DiscreteDP
from quantecon.optimize import nelder_mead
from scipy import sparse
n = 300
grid = np.linspace(1e-6, 2, n)
left = grid.reshape(n, 1) ** 0.65 - grid.reshape(1, n)
reward = np.where(left > 0, np.log(np.maximum(left, 1e-300)), -np.inf)
states, actions = np.where(reward > -np.inf)
moves = sparse.lil_matrix((len(actions), n))
moves[np.arange(len(actions)), actions] = 1
problem = DiscreteDP(reward[states, actions], moves.tocsr(), 0.95, states, actions)
@njit
def rosenbrock(x):
    return -sum(100.0 * (x[1:] - x[:-1] ** 2.0) ** 2.0 + (1 - x[:-1]) ** 2.0)
spin(lambda: qe.tauchen(200, 0.9, 0.1).simulate(200_000, random_state=1), 0.4)
spin(lambda: problem.solve(method="policy_iteration"), 0.4)
spin(lambda: problem.solve(method="value_iteration"), 0.4)
spin(lambda: nelder_mead(rosenbrock, np.array([1.3, 0.7, 0.8, 1.9, 1.2, 0.5])), 0.4)
spin(lambda: qe.gini_coefficient(random.random(8000)), 0.4)
""",
    ),
    "awkward": (
        "awkward==2.14.0",
        """
import awkward as ak
from numba import njit
counts = random.integers(0, 6, 200_000)
lists = ak.unflatten(random.random(int(counts.sum())), counts)
points = ak.zip({"x": lists, "y": lists * 2})
@njit
def total(lists):
    s = 0.0
    for values in lists:
        for value in values:
            s += value
    return s
@njit
def norms(points, out):
    for i in range(len(points)):
        s = 0.0
        for point in points[i]:
            s += np.sqrt(point.x * point.x + point.y * point.y)
        out[i] = s
@njit
def large(lists, builder):
    for values in lists:
        builder.begin_list()
        for value in values:
            if value > 0.5:
                builder.append(value)
        builder.end_list()
    return builder
spin(lambda: total(lists), 1)
spin(lambda: norms(points, np.zeros(len(points))), 1)
spin(lambda: large(lists, ak.ArrayBuilder()))
""",
    ),
    "umap-learn": (
        "umap-learn==0.5.12",
        """
import umap
x = random.random((5000, 20)).astype(np.float32)
umap.UMAP(n_epochs=150, random_state=1, n_neighbors=10).fit_transform(x)
umap.UMAP(n_epochs=100, random_state=1, n_neighbors=10, metric="cosine").fit_transform(x)
""",
    ),
    "datashader": (
        "datashader==0.19.1",
        """
import datashader as ds
import datashader.transfer_functions as tf
import pandas as pd
n = 1_500_000
frame = pd.DataFrame({"x": random.standard_normal(n), "y": random.standard_normal(n), "v": random.random(n)})
canvas = ds.Canvas(plot_width=800, plot_height=600)
for reduction in (ds.mean("v"), ds.count(), ds.max("v"), ds.std("v")):
    spin(lambda: canvas.points(frame, "x", "y", reduction), 0.5)
spin(lambda: canvas.line(frame.iloc[:100_000], "x", "y", ds.count()), 0.5)
spin(lambda: canvas.line(frame.iloc[:20_000], "x", "y", ds.count(), line_width=2), 0.5)
spin(lambda: canvas.area(frame.iloc[:20_000], "x", "y"), 0.5)
image = canvas.points(frame, "x", "y", ds.count())
spin(lambda: tf.shade(image, how="eq_hist"), 0.5)
spin(lambda: tf.spread(tf.shade(image), px=2), 0.5)
spin(lambda: canvas.raster(image), 0.5)
""",
    ),
    "resampy": (
        "resampy==0.4.3",
        """
import resampy
x = random.random(60_000)
spin(lambda: resampy.resample(x, 44100, 22050), 1)
spin(lambda: resampy.resample(x, 22050, 44100, filter="kaiser_fast"), 1)
spin(lambda: resampy.resample_nu(x, 22050, np.sort(random.random(20_000)) * 2), 1)
""",
    ),
    "galois": (
        "galois==0.4.11",
        """
import galois
for order in (2**8, 31, 3**5, 2**20, 2147483647):
    field = galois.GF(order)
    a, b, m = field.Random(20_000, low=1), field.Random(20_000, low=1), field.Random((40, 40))
    for function in (lambda: a * b, lambda: a / b, lambda: a**5, lambda: m @ m, lambda: np.convolve(a[:300], b[:300])):
        spin(function)
""",
    ),
    "clifford": (
        "clifford==1.5.1",
        """
import clifford
for dimensions in (4, 6):
    layout, _ = clifford.Cl(dimensions)
    a, b = layout.randomMV(), layout.randomMV()
    for function in (lambda: a * b, lambda: a ^ b, lambda: a | b, lambda: a.leftLaInv()):
        spin(function, 0.5)
""",
    ),
    "numba-celltree": (
        "numba-celltree==0.4.2",
        """
from numba_celltree import CellTree2d
n = 60
x, y = np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0))
column, row = np.meshgrid(np.arange(n), np.arange(n))
first = (row * (n + 1) + column).ravel()
faces = np.column_stack((first, first + 1, first + n + 2, first + n + 1))
tree = CellTree2d(np.column_stack((x.ravel(), y.ravel())), faces, -1)
points = random.random((20_000, 2)) * n
boxes = np.column_stack((points[:3000], points[:3000] + 2))[:, [0, 2, 1, 3]]
spin(lambda: tree.locate_points(points), 1)
spin(lambda: tree.locate_boxes(boxes), 1)
spin(lambda: tree.compute_barycentric_weights(points), 1)
""",
    ),
    "antropy": (
        "antropy==0.2.3",
        """
import antropy
x = random.standard_normal(3000)
for function in (antropy.sample_entropy, antropy.app_entropy, antropy.higuchi_fd, antropy.detrended_fluctuation):
    spin(lambda: function(x), 1)
spin(lambda: antropy.lziv_complexity(x > 0), 1)
spin(lambda: antropy.perm_entropy(x), 0.3)
""",
    ),
    "lenstronomy": (
        "lenstronomy==1.14.2",
        """
from lenstronomy.LensModel.lens_model import LensModel
model = LensModel(["EPL_NUMBA"])
x, y = random.random(20_000) * 4 - 2, random.random(20_000) * 4 - 2
given = [{"theta_E": 1.3, "gamma": 2.1, "e1": 0.1, "e2": -0.2, "center_x": 0.0, "center_y": 0.0}]
for function in (model.alpha, model.hessian, model.potential):
    spin(lambda: function(x, y, given), 0.7)
""",
    ),
    "mapclassify": (
        "mapclassify==2.10.0",
        """
import mapclassify
y = random.random(1500)
spin(lambda: mapclassify.FisherJenks(y, 5), 2)
spin(lambda: mapclassify.JenksCaspallSampled(y, 5), 0.5)
""",
    ),
    "pylops": (
        "pylops==2.8.0",
        """
import pylops
t, h, p = np.arange(200) * 0.004, np.linspace(-500, 500, 60), np.linspace(-0.0008, 0.0008, 50)
radon = pylops.signalprocessing.Radon2D(t, h, p, kind="parabolic", interp=True, engine="numba")
x, y = random.random(radon.shape[1]), random.random(radon.shape[0])
spin(lambda: radon.matvec(x), 1)
spin(lambda: radon.rmatvec(y), 1)
""",
    ),
}


def record(jitlisten, python, library, directory):
    data, program = directory / f"{library}.data", directory / f"{library}-program.py"
    if not data.exists():
        program.write_text(SPIN + PROGRAMS[library][1])
        environment = dict(os.environ, NUMBA_NUM_THREADS="1", NUMBA_CACHE_DIR=str(directory / "cache"))
        command = [jitlisten, "record", "-r", "499", "-o", data, "--", python, program]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    result = subprocess.run([jitlisten, "lines", "--json", "-", data], check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout)


def rows(library, report, judged):
    """Yields a row for each piece of advice: library, location, rule, verdict, function, facts."""
    for file in report["files"]:
        name = pathlib.Path(file["path"]).name
        for line in file["lines"]:
            for loop in line["loops"]:
                locations = {f"{name}:{number}" for number in (line["line"], *range(loop["first"], loop["last"] + 1))}
                for rule in [advice["rule"] for advice in loop["advice"]] or ["-"]:
                    judgements = [row for row in judged if row["rule"] == rule and row["line"] in locations]
                    verdict = judgements[0]["verdict"] if judgements else "" if rule == "-" else "not judged"
                    location = f"{name}:{line['line']} ({loop['first']}-{loop['last']})"
                    yield library, location, rule, verdict, loop["function"].partition("(")[0], loop["summary"]


def main(arguments):
    with open(ROOT / "records/advice.tsv", encoding="utf-8", newline="") as file:
        judged = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    counts = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="jitlisten-libraries-") as scratch:
        directory = pathlib.Path(arguments.keep or scratch)
        directory.mkdir(exist_ok=True)
        for library in arguments.libraries or PROGRAMS:
            report = record(arguments.jitlisten, arguments.python, library, directory)
            for row in rows(library, report, [row for row in judged if row["library"] == library]):
                counts[row[3] or "no advice"] += 1
                print(*row, sep="\t", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), file=sys.stderr)
    return min(counts["not judged"], 1)


if __name__ == "__main__":
    if sys.argv[1:] == ["--requirements"]:
        print(NUMBA, *(requirements for requirements, _ in PROGRAMS.values()))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jitlisten")
    parser.add_argument("python", help="with the libraries")
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(PROGRAMS))
    parser.add_argument("--keep", metavar="DIRECTORY")
    sys.exit(main(parser.parse_args()))
