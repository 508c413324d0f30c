#!/usr/bin/env python3
"""Writes small valid files for the fuzzers to start from: seeds.py FOLDER makes FOLDER/{npy,npz,...}/."""
import gzip
import io
import json
import os
import struct
import sys
import zipfile
import zlib

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
put("cifar", "0", bytes([7]) + bytes(3072))
put("cifar", "1", bytes([19, 99]) + bytes(3072))


def png(kind, depth, data, *chunks, interlaced=0):
    def chunk(name, contents):
        return struct.pack(">I", len(contents)) + name + contents + struct.pack(">I", zlib.crc32(name + contents))
    header = struct.pack(">IIBBBBB", 3, 2, depth, kind, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunk(*c) for c in chunks) +
            chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


put("image", "0", png(2, 8, (b"\1" + bytes(range(9))) * 2))
put("image", "1", png(3, 2, b"\0\x18\0\x24", (b"PLTE", bytes(range(9))), (b"tRNS", b"\7")))
put("image", "2", png(6, 16, b"\0" * 60, interlaced=1))
# 8 x 8 pixels of JPEG, grey: all of one brightness; and, progressive, the same.
tables = bytes.fromhex("ffc4 0014 00 01 000000000000000000000000000000 00 ffc4 0014 10 01 000000000000000000000000000000 00")
for number, (start, spectrum) in enumerate((("c0", "003f00"), ("c2", "000000"))):
    put("image", str(3 + number), bytes.fromhex("ffd8 ffdb 0043 00") + bytes([1]) * 64 + bytes.fromhex(
        f"ff{start} 000b 08 0008 0008 01 01 11 00") + tables + bytes.fromhex(f"ffda 0008 01 01 00 {spectrum} 3f ffd9"))
for number, text in enumerate(("a,b\n1,2.5\n-3,\n", "1;2\r\n3;4", '"x ""y""","z\n"\n"1",2e3\n')):
    put("csv", str(number), text.encode())
for number, text in enumerate((
        "# by hand\nschedule mine\ns0 F0-1 B0 B1 U\n\ns1 F0 I0W0F1 I1 W1 U\nsum (1 0)\nrings 2,2\n",
        "d0 F0.0-2 F2.0-2 B2.0 B2.1 B2.2 B0.0-2\nd1 F1.0 F1.1 F1.2 R1.0 B1.0 R1.1 B1.1 R1.2 B1.2\nsum ((0 1) 2)\n"
        "tied 0.weight 0 2 (0 1)\ntied v 1 (0)\n",
        "s0 F0-3 I0 W0 I1 W1 I2 W2 I3 W3\ns1 F0 B0 F1 B1 F2 B2 F3 B3\nfree 4,7 1,3\n",
        "s0 F0-60000 B0-60000 U\n")):
    put("schedule", str(number), text.encode())
