#!/usr/bin/env python3
"""Writes small valid files for the fuzzers to start from: seeds.py FOLDER makes FOLDER/{npy,npz,safetensors,idx,schedule}/."""
import gzip
import io
import json
import os
import struct
import sys
import zipfile

root = sys.argv[1]


def put(kind, name, contents):
    os.makedirs(f"{root}/{kind}", exist_ok=True)
    with open(f"{root}/{kind}/{name}", "wb") as file:
        file.write(contents)


def npy(descr, fortran, shape, data, version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


files = [npy("<f4", False, (2, 3), bytes(24)), npy(">i8", True, (2, 2), bytes(32), 2), npy("|b1", False, (), b"\1", 3),
         npy("<f2", False, (0, 5), b"")]
for number, contents in enumerate(files):
    put("npy", str(number), contents)
for number, method in enumerate((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for i, contents in enumerate(files):
            with archive.open(f"a{i}.npy", "w", force_zip64=i == 1) as member:
                member.write(contents)
    put("npz", str(number), buffer.getvalue())
header = {"__metadata__": {"k": "v"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
          "b": {"dtype": "U16", "shape": [1, 3], "data_offsets": [8, 14]},
          "c": {"dtype": "BOOL", "shape": [2], "data_offsets": [14, 16]}}
for number, entries in enumerate((header, {})):
    text = json.dumps(entries).encode()
    put("safetensors", str(number), struct.pack("<Q", len(text)) + text + bytes(16 if entries else 0))
idx = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6))
put("idx", "0", idx)
put("idx", "1", gzip.compress(idx, mtime=0))
put("idx", "2", bytes([0, 0, 13, 1, 0, 0, 0, 1, 63, 128, 0, 0]))
for number, text in enumerate((
        "# by hand\nschedule mine\ns0 F0-1 B0 B1 U\n\ns1 F0 I0W0F1 I1 W1 U\nsum (1 0)\nrings 2,2\n",
        "d0 F0.0-2 F2.0-2 B2.0 B2.1 B2.2 B0.0-2\nd1 F1.0 F1.1 F1.2 R1.0 B1.0 R1.1 B1.1 R1.2 B1.2\nsum ((0 1) 2)\n"
        "tied 0.weight 0 2 (0 1)\ntied v 1 (0)\n",
        "s0 F0-3 I0 W0 I1 W1 I2 W2 I3 W3\ns1 F0 B0 F1 B1 F2 B2 F3 B3\nfree 4,7 1,3\n",
        "s0 F0-60000 B0-60000 U\n")):
    put("schedule", str(number), text.encode())
