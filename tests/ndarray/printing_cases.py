#!/usr/bin/env python3
"""NumPy's side of printing_test.cc: prints arrays, and their texts as NumPy has them.

A case is a line "DTYPE SHAPE HEX...", where the elements are those bit patterns over and over, then the number of lines
of NumPy's text, then the text.
"""
import sys
import numpy as np

TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8,
         "i32": np.int32, "i64": np.int64, "bool": np.bool_}


def case(name, shape, pattern):
    pattern = np.asarray(pattern).astype(TYPES[name])
    if name in ("f16", "f32") and (abs(pattern) == TYPES[name](1e-4)).any():
        return  # [1.e-04] for NumPy 1, and [0.0001] for NumPy 2
    count = int(np.prod(shape, dtype=np.int64))
    x = np.resize(pattern, count).reshape(shape) if count else np.zeros(shape, TYPES[name])
    bits = [format(int.from_bytes(e.tobytes(), "little"), "x") for e in pattern.ravel()]
    text = str(x)
    print(name, ",".join(map(str, shape)) or "-", *bits)
    print(text.count("\n") + 1)
    print(text)


nan, inf = float("nan"), float("inf")
REALS = [
    [0], [-0.0], [1], [-1, 1], [0.5, 2.25, -3], [1 / 3, 2 / 3], [0.1, 0.2, 0.3], [1e-5, 1], [1e-4, 1], [9.9e-5], [1e-4],
    [1000, 1], [1001, 1], [999.5, 0.5], [1e8], [99999999.0], [123456789, 1], [1.1774743e+08], [16777216, 16777217],
    [nan], [inf], [-inf], [nan, 1], [inf, -1.5], [-inf, 12345.678], [nan, inf, -inf], [nan, 1e-10, 5], [inf, 1e20, -1],
    [-inf, 1e-7], [0, -0.0, 0.25], [3.14159265358979], [2.718281828, 100.5, -1000.25], [1e16], [1e15], [123456.789],
    [0.000123456789], [1e-8, 1e-7], [5.5e-5, -5.5e4], [65504, 0.001], [6e-8], [1e30, 1e-30], [1e38], [1.17e-38],
    [1e-45], [0.3333, 33.33, 333.3], [8.5, 9.5, 10.5], [1e2, 1e1, 1e0, 1e-1], [12345678.9], [0.1 + 0.2], [1e3, 1e-1],
]
WIDE = [[1e100, 1], [1e-300, 1e300], [5e-324], [1.7976931348623157e308], [1e10, nan, -1e-100], [1 / 3 * 1e9]]
INTEGERS = [[0], [-1, 0, 1], [127, -128], [5, 50, 100], [-7]]
SHAPES = [(), (1,), (3,), (2, 3), (2, 2, 2), (2, 1, 2, 3), (7, 12), (40,)]
EMPTY = [(0,), (2, 0), (0, 3), (2, 0, 3)]
LARGE = [(1000,), (1001,), (40, 26), (6, 7, 30), (7, 8, 7, 3), (1, 1001), (1001, 1), (2, 2, 2, 200), (8, 200, 1)]

for kind in ("f16", "f32", "f64"):
    with np.errstate(all="ignore"):
        for i, pattern in enumerate(REALS + (WIDE if kind == "f64" else [])):
            case(kind, (), pattern[:1])
            case(kind, (len(pattern),), pattern)
            case(kind, SHAPES[i % len(SHAPES)], pattern)
for kind in ("i8", "u8", "i32", "i64"):
    for pattern in INTEGERS + ([[2**31 - 1, -2**31]] if kind in ("i32", "i64") else []) + \
            ([[2**63 - 1, -2**63]] if kind == "i64" else []):
        for shape in SHAPES:
            case(kind, shape, np.array(pattern, np.int64))
for pattern in ([True], [False], [True, False], [False, True, True]):
    for shape in SHAPES:
        case("bool", shape, pattern)
for kind in TYPES:
    for shape in EMPTY:
        case(kind, shape, [1])
    for shape in LARGE:
        case(kind, shape, [1, 0, 100, 7, 33])
for kind in ("f16", "f32", "f64"):
    for shape in LARGE:
        case(kind, shape, [1.5, -2.25, 1000.125, nan, 1e-3])

random = np.random.RandomState(20)
for number in range(700):
    kind = list(TYPES)[number % len(TYPES)]
    rank = random.randint(0, 5)
    shape = tuple(int(random.randint(1, 7)) for _ in range(rank))
    n = int(random.randint(1, 24))
    if kind == "bool":
        pattern = random.randint(0, 2, n)
    elif kind[0] != "f":
        info = np.iinfo(TYPES[kind])
        bits = random.randint(1, info.bits + 1)
        pattern = random.randint(0, 256, n * 8).astype(np.uint8).view(np.int64) >> (64 - bits)
    elif number % 3 == 0:  # any bits
        size = np.dtype(TYPES[kind]).itemsize
        pattern = random.randint(0, 256, n * size).astype(np.uint8).view(TYPES[kind])
    else:  # digits of a size
        with np.errstate(all="ignore"):
            scale = 10.0 ** random.randint(-6, 7)
            pattern = np.round(random.standard_normal(n) * scale, random.randint(0, 10)).astype(TYPES[kind])
    case(kind, shape, pattern)
