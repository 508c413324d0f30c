#!/usr/bin/env python3
"""NumPy's side of numpy_files_test.cc: numpy_files.py write|check FOLDER.

FOLDER/expected.txt has a line for each array: FILE MEMBER DTYPE SHAPE HEX, where MEMBER and SHAPE may be "-" and HEX is
the elements row-major and little-endian, with an "x" in front.
"""
import sys
import numpy as np

TYPES = {"f16": "f2", "f32": "f4", "f64": "f8", "i8": "i1", "u8": "u1", "i32": "i4", "i64": "i8", "bool": "b1"}
SHAPES = [(), (0,), (1,), (7,), (3, 4), (5, 0, 2), (2, 3, 4), (2, 1, 3, 1, 2, 1, 2, 3)]
mode, folder = sys.argv[1:]


def arrays():
    random = np.random.RandomState(1)
    for name, code in TYPES.items():
        for shape in SHAPES:
            x = random.randint(0, 2 if name == "bool" else 100, shape)
            for order in "<>":
                yield name, np.asarray(x, np.dtype(order + code))


def line(file, member, name, x):
    little = np.ascontiguousarray(x).astype("<" + TYPES[name]).tobytes().hex()
    return f"{file} {member} {name} {','.join(map(str, x.shape)) or '-'} x{little}\n"


if mode == "write":
    with open(folder + "/expected.txt", "w") as expected:
        every = {}
        for number, (name, x) in enumerate(arrays()):
            x = np.asfortranarray(x) if number % 3 == 1 else x
            with open(f"{folder}/{number}.npy", "wb") as file:
                np.lib.format.write_array(file, x, version=((1, 0), (2, 0), (3, 0))[number % 3])
            expected.write(line(f"{number}.npy", "-", name, x))
            every[f"array_{number}"] = x
            expected.write(line("stored.npz", f"array_{number}", name, x))
            expected.write(line("packed.npz", f"array_{number}", name, x))
        np.savez(folder + "/stored.npz", **every)
        np.savez_compressed(folder + "/packed.npz", **every)
else:
    count = 0
    for text in open(folder + "/expected.txt"):
        file, member, name = text.split()[:3]
        x = np.load(f"{folder}/{file}")
        if member != "-":
            x = x[member]
        assert x.dtype == np.dtype("<" + TYPES[name]), (text, x.dtype)
        assert line(file, member, name, x) == text, (line(file, member, name, x), text)
        count += 1
    assert count > 50, count
