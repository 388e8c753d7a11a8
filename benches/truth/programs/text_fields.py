"""Fields of a text: compiled code that reads digits from bytes, Python's regular expressions, and its JSON reader."""
import json
import re

import numpy as np
from numba import njit

from phases import phase, run

TEXT = ";".join(str(number * 7919 % 100_003) for number in range(3000))
BYTES = np.frombuffer(TEXT.encode(), np.uint8)
JSON = json.dumps([int(field) for field in TEXT.split(";")])
FIELD = re.compile("([0-9]+);")


@njit
def parse(text, out):
    place, number = 0, 0
    for i in range(text.size):  # parsed
        if text[i] == 59:  # parsed
            out[place] = number  # parsed
            place += 1  # parsed
            number = 0  # parsed
        else:
            number = number * 10 + (text[i] - 48)  # parsed
    out[place] = number  # parsed
    return place


@njit
def distance(a, b, row, n):
    for _ in range(n):
        for j in range(b.size + 1):  # compared
            row[j] = j  # compared
        for i in range(a.size):  # compared
            corner = row[0]  # compared
            row[0] = i + 1  # compared
            for j in range(b.size):  # compared
                changed = corner + (a[i] != b[j])  # compared
                corner = row[j + 1]  # compared
                row[j + 1] = min(changed, row[j] + 1, row[j + 1] + 1)  # compared
    return row[b.size]


@phase("parsed")
def _(n):
    out = np.empty(3000, np.int64)
    for _ in range(100 * n):
        parse(BYTES, out)


@phase("compared")
def _(n):
    distance(BYTES[:200], BYTES[300:500], np.empty(201, np.int64), n)


@phase("matched")
def _(n):
    for _ in range(n):
        FIELD.findall(TEXT)  # matched


@phase("decoded")
def _(n):
    for _ in range(n):
        json.loads(JSON)  # decoded


run()
