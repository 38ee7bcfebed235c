"""ring_attention: libringattn for NumPy, through ctypes. Copy this file beside your program.

    with Plan(queries=1024, heads=8, dim=64, causal=1) as plan:
        o, lse = plan.forward(q, k, v)
        dq, dk, dv = plan.backward(q, k, v, o, lse, d_out)

Arrays are (B, rows, heads, D), lse is (B, heads, rows) and a mask (B, rows) of bool, of any strides
as long as the D numbers of a head lie side by side. Over MPI, Plan(comm, ...) with a communicator of
mpi4py: each rank gives and gets the rows plan.positions(...) of the whole. What fails raises Error
with the library's text. A plan of several ranks is left by all of them together.
"""
import ctypes
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

import numpy

# The enums of ra_config.h, ring_attention.h and ra_status.h.
FLOAT32, FLOAT16, BFLOAT16, BOOL = range(4)
CONTIGUOUS, STRIPED, ZIGZAG = range(3)
QUERY_SIDE, KEY_SIDE = range(2)
STATUS = ["OK", "INVALID", "OUT_OF_MEMORY", "DISAGREEMENT", "LOST", "DEVICE"]
TYPES = {"float32": FLOAT32, "float16": FLOAT16, "bool": BOOL}


class Error(Exception):
    """What the library says; error.status is the name of its status without RA_."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = STATUS[status]


class Tensor(ctypes.Structure):
    """struct ra_tensor"""
    _fields_ = [("data", c_void_p), ("type", c_int),
                ("batch", c_int64), ("row", c_int64), ("head", c_int64)]


class Arrays(ctypes.Structure):
    """struct ra_arrays"""
    _fields_ = [("size", c_size_t)] + [(name, Tensor) for name in
                                       "q k v mask o lse d_out dq dk dv".split()]


def load(name, **functions):
    """A library, and of each function the type of its result and of its arguments."""
    library = ctypes.CDLL(f"lib{name}.so.0.9")
    for function, (result, *arguments) in functions.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


lib = load("ringattn", ra_config_init=(None, c_void_p, c_size_t),
           ra_config_set=(c_int, c_void_p, c_char_p, c_double, c_char_p),
           ra_plan_create=(c_int, c_void_p, c_void_p, c_void_p, c_char_p),
           ra_plan_destroy=(None, c_void_p), ra_plan_error=(c_char_p, c_void_p),
           ra_plan_rows=(c_int64, c_void_p, c_int),
           ra_plan_positions=(None, c_void_p, c_int, c_void_p),
           ra_forward=(c_int, c_void_p, c_void_p), ra_backward=(c_int, c_void_p, c_void_p))


class Plan:
    """A plan for calls of one shape; the names of `config` are the fields of struct ra_config."""

    def __init__(self, comm=None, **config):
        self.plan, room, link = c_void_p(), (c_int64 * 64)(), None
        text = ctypes.create_string_buffer(320)
        lib.ra_config_init(room, ctypes.sizeof(room))
        for field, value in config.items():
            self._check(lib.ra_config_set(room, field.encode(), value, text), text.value)
        if comm is not None:
            mpi = load("ringattn_mpi",
                       ra_mpi_link_f=(c_int, c_void_p, c_int, c_int, c_double, c_char_p))
            link = (c_int64 * 32)()
            self._check(mpi.ra_mpi_link_f(link, comm.py2f(), config.get("ring_size", 0),
                                          config.get("timeout", 600), text), text.value)
        self._check(lib.ra_plan_create(ctypes.byref(self.plan), room, link, text), text.value)
        heads, dim = config.get("heads", 1), config["dim"]
        batch, key_heads = config.get("batch", 1), config.get("key_heads", heads)
        n, m = (lib.ra_plan_rows(self.plan, side) for side in (QUERY_SIDE, KEY_SIDE))
        queries, keys = (batch, n, heads, dim), (batch, m, key_heads, dim)
        self.shapes = dict(q=queries, k=keys, v=keys, mask=(batch, m), o=queries, d_out=queries,
                           lse=(batch, heads, n), dq=queries, dk=keys, dv=keys)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.ra_plan_destroy(self.plan)
        self.plan = c_void_p()

    def positions(self, side):
        """Which rows of the whole this rank has: whole[:, plan.positions(QUERY_SIDE)]."""
        rows = numpy.empty(lib.ra_plan_rows(self.plan, side), numpy.int64)
        lib.ra_plan_positions(self.plan, side, rows.ctypes.data)
        return rows

    def forward(self, q, k, v, mask=None):
        """Returns o, of the type of q, and lse."""
        o, lse = self._empty("o", q), self._empty("lse", numpy.float32(0))
        self._call(lib.ra_forward, q=q, k=k, v=v, mask=mask, o=o, lse=lse)
        return o, lse

    def backward(self, q, k, v, o, lse, d_out, mask=None):
        """Returns dq, dk and dv, of the types of q, k and v."""
        dq, dk, dv = self._empty("dq", q), self._empty("dk", k), self._empty("dv", v)
        self._call(lib.ra_backward, q=q, k=k, v=v, mask=mask, o=o, lse=lse, d_out=d_out,
                   dq=dq, dk=dk, dv=dv)
        return dq, dk, dv

    def _empty(self, name, like):
        return numpy.empty(self.shapes[name], like.dtype)

    def _call(self, function, **arrays):
        call = Arrays(ctypes.sizeof(Arrays))
        for name, array in arrays.items():
            if array is not None:
                setattr(call, name, self._tensor(name, array))
        status = function(self.plan, ctypes.byref(call))
        self._check(status, lib.ra_plan_error(self.plan))

    def _tensor(self, name, array):
        """The address and strides of an array, after the checks that only NumPy can make."""
        strides = [stride / array.itemsize for stride in array.strides]
        if (array.shape != self.shapes[name] or array.dtype.name not in TYPES or
                strides[3:] not in ([], [1]) or any(stride % 1 for stride in strides)):
            raise ValueError(f"{name} is {array.dtype}{array.shape}, strides {array.strides} bytes: "
                             f"give {self.shapes[name]} of {', '.join(TYPES)}, with the D "
                             "numbers of a head side by side")
        strides = [int(stride) for stride in strides[:3]]
        if name == "lse":
            strides[1:] = strides[2], strides[1]
        return Tensor(array.ctypes.data, TYPES[array.dtype.name], *strides)

    @staticmethod
    def _check(status, text):
        if status != 0:
            raise Error(status, text.decode())
