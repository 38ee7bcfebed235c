#!/usr/bin/env python3
"""safetensors_folder: a .safetensors file as a folder of .npy files, and back.

    safetensors_folder.py unpack MODEL.safetensors WEIGHTS    WEIGHTS must be new or empty
    safetensors_folder.py pack WEIGHTS MODEL.safetensors
    safetensors_folder.py test                                judges itself

The tensor NAME is WEIGHTS/NAME.npy, with its shape and its bits; only BF16, which NumPy has not,
becomes float32, of which it is the upper half, so that no number changes. It is packed as F32
again.

The format: 8 bytes, the length of the header, little-endian; the header, a JSON object

    {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
     "__metadata__": {...}}

maybe with spaces behind it; then the numbers, little-endian, row by row. Offsets count bytes from
the end of the header. The tensors fill the file one behind the other, in any order, without holes.
__metadata__ is texts by name, and is not kept. Files may be larger than memory: no more than a
tensor of them is in it.
"""
import json
import math
import os
import struct
import sys
import tempfile

import numpy as np

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
         "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
         "BOOL": "|b1"}
NAMES = {np.dtype(code): name for name, code in TYPES.items() if name != "BF16"}
LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


class Damaged(Exception):
    """The file or the folder is not what it must be; the text says where."""


# ---- Reading ----


def unique(pairs):
    """A JSON object as a dictionary; Damaged if a name stands in it twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Damaged(f"{twice!r} stands there twice")
    return result


def is_count(value):
    return type(value) is int and value >= 0


def check_name(name):
    """Damaged unless the name can be that of a file in the folder: it must not lead out of it."""
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > 250:
        raise Damaged(f"{name[:250]!r} cannot be the name of a file")


def check_tensor(name, entry):
    """The type, the shape and the offsets of a tensor; Damaged if they contradict each other."""
    check_name(name)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Damaged(f"{name!r} must have dtype, shape and data_offsets, and nothing else")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise Damaged(f"{name!r} has the type {kind!r}; known are {', '.join(TYPES)}")
    if not isinstance(shape, list) or not all(map(is_count, shape)) or len(shape) > 32:
        raise Damaged(f"{name!r} has the shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise Damaged(f"{name!r} has the offsets {offsets!r}")
    needed = math.prod(shape) * np.dtype(TYPES[kind]).itemsize
    if offsets[1] - offsets[0] != needed:
        raise Damaged(f"{name!r} has {offsets[1] - offsets[0]} bytes, but {kind} {shape} needs "
                      f"{needed}")
    return kind, shape, offsets


def read_header(data):
    """The tensors of a file, whose bytes are data: name: (type, shape, begin and end in data)."""
    if len(data) < 8:
        raise Damaged(f"has {len(data)} bytes, and the length of the header alone needs 8")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > min(len(data) - 8, LONGEST_HEADER):
        raise Damaged(f"the header has {length} bytes, but the file {len(data)}, and no header "
                      f"may have more than {LONGEST_HEADER}")
    try:
        header = json.loads(data[8:8 + length].tobytes().decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the header is no JSON: {error}")
    if not isinstance(header, dict):
        raise Damaged("the header is no JSON object")
    header.pop("__metadata__", None)
    tensors = {name: check_tensor(name, entry) for name, entry in header.items()}

    # In the order of their bytes every tensor begins where the one before it ends.
    reached = 0
    for name, (_, _, (begin, end)) in sorted(tensors.items(), key=lambda item: item[1][2]):
        if begin != reached:
            raise Damaged(f"{name!r} begins at byte {begin}, but what is before it ends at "
                          f"{reached}")
        reached = end
    if reached != len(data) - 8 - length:
        raise Damaged(f"the tensors have {reached} bytes, but {len(data) - 8 - length} are there")
    return {name: (kind, shape, 8 + length + begin, 8 + length + end)
            for name, (kind, shape, (begin, end)) in tensors.items()}


def unpack(path, folder):
    """Writes every tensor of the file into the folder. A damaged file leaves no folder behind."""
    if os.path.getsize(path) == 0:
        raise Damaged("is empty")  # which cannot be mapped
    data = np.memmap(path, np.uint8, "r")
    tensors = read_header(data)
    for name, (kind, _, begin, end) in tensors.items():
        if kind == "BOOL" and (data[begin:end] > 1).any():
            raise Damaged(f"{name!r} is BOOL and has a byte that is neither 0 nor 1")
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise Damaged(f"the folder {folder} is not empty: old weights would lie among the new")
    for name, (kind, shape, begin, end) in tensors.items():
        array = data[begin:end].view(TYPES[kind])
        if kind == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        np.save(os.path.join(folder, name + ".npy"), array.reshape(shape))


# ---- Writing ----


def pack(folder, path):
    """Writes every .npy of the folder into one file, which appears whole or not at all."""
    arrays = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".npy"):
            raise Damaged(f"{file} in {folder} is no .npy file")
        try:
            array = np.load(os.path.join(folder, file), mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise Damaged(f"{file} cannot be read: {error}")
        if array.dtype.newbyteorder("<") not in NAMES:
            raise Damaged(f"{file} is {array.dtype}; known are {', '.join(map(str, NAMES))}")
        if file == "__metadata__.npy":
            raise Damaged(f"{file}: no tensor may have this name")
        arrays[file[:-4]] = array

    # The largest numbers come first, and the header is filled up to a multiple of 8 bytes, so that
    # every number lies at a multiple of its size.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header, reached = {}, 0
    for name in order:
        kind = NAMES[arrays[name].dtype.newbyteorder("<")]
        header[name] = {"dtype": kind, "shape": list(arrays[name].shape),
                        "data_offsets": [reached, reached + arrays[name].nbytes]}
        reached += arrays[name].nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    number, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".")
    try:
        with open(number, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name in order:
                little = arrays[name].dtype.newbyteorder("<")
                out.write(np.asarray(arrays[name], little, order="C").tobytes())
            out.flush()
            os.fsync(out.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(out.fileno(), 0o666 & ~mask)  # mkstemp lets nobody else read
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


# ---- The test ----


def file_of(header, data=b"", length=None):
    """A file with this header, JSON or bytes, that says that its header is this long."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(kind, shape, begin, end):
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def damaged_files():
    """Name, the bytes of a file that must be refused, and a text that the error must have."""
    good = entry("F32", [2], 0, 8)
    return (
        ("an empty file", b"", "empty"),
        ("four bytes", b"\4\0\0\0", "needs 8"),
        ("a header longer than the file", file_of({"a": good}, bytes(8), 1000),
         "header has 1000 bytes"),
        ("a header of 2^63 bytes", file_of({"a": good}, bytes(8), 2**63), "header has"),
        ("a header cut off", file_of({"a": good}, bytes(8), 20), "no JSON"),
        ("a header that is no text", file_of(b"\xff\xfe\xfd{}"), "no JSON"),
        ("a header of brackets without end", file_of(b"[" * 100000), "no JSON"),
        ("a list for a header", file_of([1]), "no JSON object"),
        ("a name twice", file_of(b'{"a":' + json.dumps(good).encode() + b',"a":' +
                                 json.dumps(good).encode() + b"}", bytes(8)), "twice"),
        ("a number for a tensor", file_of({"a": 3}), "must have dtype"),
        ("no shape", file_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)),
         "must have"),
        ("an unknown type", file_of({"a": entry("F8_E4M3", [8], 0, 8)}, bytes(8)), "known are"),
        ("a list for a type", file_of({"a": entry(["F32"], [2], 0, 8)}, bytes(8)), "known are"),
        ("a negative length", file_of({"a": entry("F32", [-2], 0, 8)}, bytes(8)), "shape"),
        ("a broken length", file_of({"a": entry("F32", [2.0], 0, 8)}, bytes(8)), "shape"),
        ("offsets backwards", file_of({"a": entry("F32", [2], 8, 0)}, bytes(8)), "-8 bytes"),
        ("negative offsets", file_of({"a": entry("F32", [2], -8, 0)}, bytes(8)), "offsets"),
        ("too few bytes for the shape", file_of({"a": entry("F32", [3], 0, 8)}, bytes(8)),
         "needs 12"),
        ("a tensor cut off", file_of({"a": good}, bytes(7)), "7 are there"),
        ("bytes left over", file_of({"a": good}, bytes(9)), "9 are there"),
        ("a hole", file_of({"a": good, "b": entry("F32", [2], 12, 20)}, bytes(20)),
         "begins at byte 12"),
        ("an overlap", file_of({"a": good, "b": entry("F32", [2], 4, 12)}, bytes(12)),
         "begins at byte 4"),
        ("a name that leads out", file_of({"../a": good}, bytes(8)), "name of a file"),
        ("a name from the root", file_of({"/tmp/a": good}, bytes(8)), "name of a file"),
        ("no name", file_of({"": good}, bytes(8)), "name of a file"),
        ("a BOOL of 2", file_of({"a": entry("BOOL", [2], 0, 2)}, b"\1\2"), "neither 0 nor 1"),
    )


def check(results, name, good, found=""):
    results.append(bool(good))
    print(f"{'passed' if good else 'FAILED'}  {name}{': ' if found else ''}{found}")


def check_known_file(results, place):
    """A file written out by hand: BF16, and a header in another order than the bytes."""
    data = bytes.fromhex("803f 00c0 807f 0100" "0000 8040 0000 40bf")
    header = {"__metadata__": {"format": "pt"}, "x.weight": entry("F32", [2, 1], 8, 16),
              "x": entry("BF16", [4], 0, 8)}
    path, folder = place("known.safetensors"), place("known")
    with open(path, "wb") as file:
        file.write(file_of(header, data))
    unpack(path, folder)
    x, weight = (np.load(os.path.join(folder, name + ".npy")) for name in ("x", "x.weight"))
    expected = np.array([1, -2, np.inf, 2.0**-133], np.float32)
    check(results, "a known file: BF16", x.dtype == np.float32 and (x == expected).all(), str(x))
    check(results, "a known file: F32", weight.shape == (2, 1) and
          weight.ravel().tolist() == [4, -0.75])
    check(results, "a known file: no more", sorted(os.listdir(folder)) == ["x.npy", "x.weight.npy"])


def check_round_trip(results, place):
    """Every type, a scalar, an empty tensor, columns first, big-endian: the same bits again."""
    folder, path, again = place("arrays"), place("arrays.safetensors"), place("again")
    os.mkdir(folder)
    random = np.random.default_rng(1)
    arrays = {}
    for dtype in NAMES:
        data = random.integers(0, 2 if dtype == bool else 256, 15 * dtype.itemsize, np.uint8)
        arrays[f"layers.0.{dtype.name}"] = data.view(dtype).reshape(3, 5)
    arrays.update({"scalar": np.array(3.5), "empty": np.zeros((0, 4), np.float32),
                   "columns first": np.asfortranarray(random.normal(size=(3, 4))),
                   "big-endian": random.normal(size=5).astype(">f4"), "größe": np.arange(3)})
    for name, array in arrays.items():
        np.save(os.path.join(folder, name + ".npy"), array)
    pack(folder, path)
    unpack(path, again)
    check(results, "round trip: all names",
          sorted(os.listdir(again)) == sorted(n + ".npy" for n in arrays))
    for name, array in arrays.items():
        back = np.load(os.path.join(again, name + ".npy"))
        little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        check(results, f"round trip: {name}",
              back.dtype == little.dtype and back.shape == array.shape and
              back.tobytes() == little.tobytes(), f"{back.dtype} {back.shape}")
    data = np.memmap(path, np.uint8, "r")
    check(results, "every number lies at a multiple of its size",
          all(begin % np.dtype(TYPES[kind]).itemsize == 0
              for kind, _, begin, _ in read_header(data).values()))


def refusal(action, *arguments):
    """What it says when it refuses, or None if it does not."""
    try:
        action(*arguments)
    except Damaged as error:
        return str(error)
    return None


def check_refusals(results, place):
    for name, data, text in damaged_files():
        path, folder = place("damaged.safetensors"), place("damaged")
        with open(path, "wb") as file:
            file.write(data)
        said = refusal(unpack, path, folder)
        check(results, f"{name} is refused", said and text in said and not os.path.exists(folder),
              said)
    said = refusal(unpack, place("known.safetensors"), place("known"))
    check(results, "a folder with old weights is refused", said and "not empty" in said, said)

    for name, write, text in (
            ("a complex array", lambda path: np.save(path, np.array([1j])), "complex128"),
            ("objects", lambda path: np.save(path, np.array([{}]), allow_pickle=True),
             "cannot be read"),
            ("a .npy cut off", lambda path: open(path, "wb").write(b"\x93NUMPY\1\0"),
             "cannot be read")):
        folder, path = place(name), place("refused.safetensors")
        os.mkdir(folder)
        write(os.path.join(folder, "a.npy"))
        said = refusal(pack, folder, path)
        check(results, f"{name} is refused", said and text in said and not os.path.exists(path),
              said)


def test():
    results = []
    with tempfile.TemporaryDirectory() as root:
        for part in (check_known_file, check_round_trip, check_refusals):
            part(results, lambda name: os.path.join(root, name))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def main():
    arguments = sys.argv[1:]
    if arguments == ["--help"]:
        print(__doc__)
        return 0
    if arguments == ["test"]:
        return test()
    if len(arguments) != 3 or arguments[0] not in ("pack", "unpack"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        (pack if arguments[0] == "pack" else unpack)(*arguments[1:])
        return 0
    except (Damaged, OSError) as error:
        place = "" if isinstance(error, OSError) else f"{arguments[1]}: "
        print(f"safetensors_folder.py: {place}{error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
