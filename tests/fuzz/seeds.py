#!/usr/bin/env python3
"""Writes small valid files for the fuzzers to start from: seeds.py FOLDER makes FOLDER/{npy,npz,safetensors,idx}/."""
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
