"""ring_attention: libringattn for NumPy, through ctypes. Copy this file beside your program.

    with Plan(queries=1024, heads=8, dim=64, causal=True) as plan:
        o, lse = plan.forward(q, k, v)
        dq, dk, dv = plan.backward(q, k, v, o, lse, d_out)

Arrays are (B, rows, heads, D), lse is (B, heads, rows) and a mask (B, rows) of bool, of any strides
as long as the D numbers of a head lie side by side; sinks and slopes (ALiBi) are (heads). bfloat16 is that of ml_dtypes. A call that
fails raises Error with the library's text.

On several ranks each gives and gets the rows plan.positions(...) of the whole: over MPI,
Plan(comm, ...) with a communicator of mpi4py; on threads, see threads(); over anything else, see
Link. A plan of several ranks is left by all of them together.
"""
import contextlib
import ctypes
import numbers
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from ctypes import (CFUNCTYPE, POINTER, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t,
                    c_void_p)
from pathlib import Path

try:
    import numpy
except ImportError:  # a wheel is built without it
    numpy = None

# The version that the structs and numbers here are of, and the room for the text of an error.
SERIES, ERROR_SIZE = "0.9", 320

# The enums of ra_config.h, ring_attention.h, ra_link.h and ra_status.h.
FLOAT32, FLOAT16, BFLOAT16, BOOL = range(4)
CONTIGUOUS, STRIPED, ZIGZAG = range(3)
QUERY_SIDE, KEY_SIDE = range(2)
KEYS, GRADIENTS, GRADIENTS_RETURN = range(3)
STATUS = ["OK", "INVALID", "OUT_OF_MEMORY", "DISAGREEMENT", "LOST", "DEVICE", "CANCELLED"]
TYPES = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16, "bool": BOOL}

# Fields of a config that may be given by name, as the flags of the stage programs are.
WORDS = {"type": ["float32", "float16", "bfloat16"], "layout": ["contiguous", "striped", "zigzag"],
         "head_map": ["grouped", "interleaved"], "tile": ["vector", "plain"],
         "transport": ["any_transport", "peer_copies", "device_link", "host_link"],
         "method": ["ring", "gathered_keys", "exchanged_heads", "hybrid", "double_ring", "auto_method"]}

# Where the field `device` is in struct ra_config, in bytes.
DEVICE = 160


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
                                       "q k v mask o lse d_out dq dk dv "
                                       "d_lse sink d_sink slopes largest".split()]


# Functions of a link: send and receive; poll and close; wait; fail; error; cancel; set_timeout.
MOVE = CFUNCTYPE(c_bool, c_void_p, c_int, c_int, c_int, c_void_p, c_int64)
ASK, WAIT = CFUNCTYPE(c_bool, c_void_p), CFUNCTYPE(c_bool, c_void_p, c_int)
FAIL, ERROR = CFUNCTYPE(None, c_void_p, c_char_p), CFUNCTYPE(c_void_p, c_void_p)
CANCEL, TIME = CFUNCTYPE(None, c_void_p), CFUNCTYPE(None, c_void_p, c_double)


class LinkStruct(ctypes.Structure):
    """struct ra_link"""
    _fields_ = [("rank", c_int), ("size", c_int), ("sharing", c_int), ("bytes", c_int64),
                ("device_memory", c_bool), ("self", c_void_p), ("send", MOVE), ("receive", MOVE),
                ("poll", ASK), ("wait", WAIT), ("fail", FAIL), ("error", ERROR),
                ("arrival", c_void_p), ("set_timeout", TIME), ("close", ASK),
                ("in_call", POINTER(c_int)), ("cancel", CANCEL)]


# ---- The libraries.

def find(name):
    """The path of a library: in the folder RA_LIB, if that is set; otherwise in a wheel, in the
    prefix below which this file is installed, or where pkg-config says; otherwise its name, for
    the loader to find."""
    here = Path(__file__).resolve().parent
    if "RA_LIB" in os.environ:
        folders = [Path(os.environ["RA_LIB"])]
    else:
        folders = [here / "ringattn.libs"]
        if here.parts[-5:] == ("share", "doc", "ringattn", "examples", "languages"):
            folders += [here.parents[4] / "lib", *here.parents[4].glob("lib*/*")]
        if shutil.which("pkg-config"):
            asked = ["pkg-config", "--variable=libdir", "ringattn"]
            said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            folders += [Path(said.strip())] if said.strip() else []
    for folder in folders:
        for path in folder / f"lib{name}.so.{SERIES}", folder / f"lib{name}.so":
            if path.exists():
                return str(path)
    return f"lib{name}.so.{SERIES}"


def load(name, **functions):
    """A library, and of each function the type of its result and of its arguments."""
    path = find(name)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{error}: set RA_LIB to the folder that has lib{name}.so") from error
    for function, (result, *arguments) in functions.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


lib = load("ringattn", ra_version=(c_char_p,), ra_config_init=(None, c_void_p, c_size_t),
           ra_config_set=(c_int, c_void_p, c_char_p, c_double, c_char_p),
           ra_config_get=(c_int, c_void_p, c_char_p, c_void_p, c_char_p),
           ra_plan_config=(None, c_void_p, c_void_p, c_size_t),
           ra_plan_create=(c_int, c_void_p, c_void_p, c_void_p, c_char_p),
           ra_plan_destroy=(None, c_void_p), ra_plan_cancel=(None, c_void_p),
           ra_plan_error=(c_char_p, c_void_p), ra_plan_rank=(c_int, c_void_p),
           ra_plan_describe=(c_int64, c_void_p, c_int, c_void_p, c_size_t),
           ra_plan_rows=(c_int64, c_void_p, c_int),
           ra_plan_positions=(None, c_void_p, c_int, c_void_p),
           ra_forward=(c_int, c_void_p, c_void_p), ra_backward=(c_int, c_void_p, c_void_p),
           ra_wait=(c_int, c_void_p),
           ra_thread_links=(c_int, c_void_p, c_int, c_char_p))
if not lib.ra_version().decode().startswith(SERIES + "."):
    raise ImportError(f"{lib._name} is version {lib.ra_version().decode()}, "
                      f"this file is for {SERIES}")


def check(status, text):
    """Raises what a status says."""
    if status != 0:
        raise Error(status, text.decode(errors="replace"))


# ---- Plans.

class Plan:
    """A plan for calls of one shape. `ring` is None for one process, a communicator of mpi4py, what
    threads() gives, or a Link, which several plans may share. The names of `config` are the fields
    of struct ra_config. Enums are given as words (layout="zigzag"). None stands for the default:
    lookback=None is no limit."""

    # The functions of a call, and where its arrays lie: another class may have others.
    passes, place = {"forward": lib.ra_forward, "backward": lib.ra_backward}, "cpu"

    def __init__(self, ring=None, device=None, **config):
        self.plan, self.ring, room = c_void_p(), ring, (c_int64 * 64)()
        # An RLock: a signal handler may cancel while close has it.
        self.lock, self.calls = threading.RLock(), 0
        self.wakes, link = None, None
        text = ctypes.create_string_buffer(ERROR_SIZE)
        lib.ra_config_init(room, ctypes.sizeof(room))
        room[DEVICE // 8] = device or 0
        config = {field: value for field, value in config.items() if value is not None}
        for field, value in config.items():
            check(lib.ra_config_set(room, field.encode(), number(field, value), text), text.value)
        if hasattr(ring, "py2f"):
            mpi = load("ringattn_mpi",
                       ra_mpi_link_f=(c_int, c_void_p, c_int, c_int, c_double, c_char_p))
            link = LinkStruct()
            check(mpi.ra_mpi_link_f(ctypes.byref(link), ring.py2f(), config.get("ring_size", 0),
                                    config.get("timeout", 600), text), text.value)
        elif ring is not None:  # a copy without close: what is behind the link stays whose it is
            struct = getattr(ring, "struct", ring)
            if not isinstance(struct, LinkStruct):
                raise TypeError(f"ring = {ring!r}: give None, a communicator of mpi4py, what "
                                "threads() "
                                "passes to its function, or a Link")
            link = LinkStruct.from_buffer_copy(struct)
            link.close = ASK()
            vars(ring).setdefault("plans", []).append(self)
        status = lib.ra_plan_create(ctypes.byref(self.plan), room, link and ctypes.byref(link),
                                    text)
        self.check(status, text.value)
        lib.ra_plan_config(self.plan, room, ctypes.sizeof(room))  # with what was left open
        batch, heads, key_heads, dim, dim_value = (
            field_of(room, name) for name in ("batch", "heads", "key_heads", "dim", "dim_value"))
        n, m = (lib.ra_plan_rows(self.plan, side) for side in (QUERY_SIDE, KEY_SIDE))
        queries, keys = (batch, n, heads, dim), (batch, m, key_heads, dim)
        out, values = (*queries[:3], dim_value), (*keys[:3], dim_value)
        self.shapes = dict(q=queries, k=keys, v=values, mask=(batch, m), o=out, d_out=out,
                           lse=(batch, heads, n), dq=queries, dk=keys, dv=values)
        self.shapes.update(d_lse=self.shapes["lse"], sink=(heads,), d_sink=(heads,),
                           slopes=(heads,), largest=(heads,))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if error and isinstance(self.ring, Link):  # the others would wait for this rank
            self.ring.fail(f"ring rank {self.ring.rank}: {kind.__name__}: {error}")
        self.close()

    def close(self):
        """Ends the plan, on all ranks together; not while another thread is in a call of it."""
        with self.lock:
            if self.calls:
                raise ValueError("a call of this plan is not over: cancel() ends it")
            plan, self.plan = self.plan, c_void_p()
        lib.ra_plan_destroy(plan)
        if self.wakes:
            self.wakes.close()

    def cancel(self):
        """Ends the call that is under way, from any thread: it raises Error, on the other ranks as
        well. Then the plan can only be closed. Ctrl-C does this for a call of the main thread."""
        with self.lock:
            lib.ra_plan_cancel(self.plan)

    def positions(self, side):
        """Which rows of the whole this rank has: whole[:, plan.positions(QUERY_SIDE)]."""
        rows = numpy.empty(lib.ra_plan_rows(self.plan, side), numpy.int64)
        lib.ra_plan_positions(self.plan, side, rows.ctypes.data)
        return rows

    def describe(self):
        """What the plan does on this rank, as lines of text: rows, hops, bytes, and on a GPU how
        messages pass, and why not in a better way."""
        rank = lib.ra_plan_rank(self.plan)
        text = ctypes.create_string_buffer(lib.ra_plan_describe(self.plan, rank, None, 0) + 1)
        lib.ra_plan_describe(self.plan, rank, text, len(text))
        return text.value.decode()

    def forward(self, q, k, v, mask=None, **optional):
        """Returns o, of the type of q, and lse. Optional are the inputs sink and slopes, and
        largest, an array that is written."""
        o = numpy.empty(self.shapes["o"], q.dtype)
        lse = numpy.empty(self.shapes["lse"], numpy.float32)
        self.call("forward", q=q, k=k, v=v, mask=mask, o=o, lse=lse, **optional)
        return o, lse

    def backward(self, q, k, v, o, lse, d_out, mask=None, **optional):
        """Returns dq, dk and dv, of the types of q, k and v. Optional are the inputs d_lse, sink and
        slopes, and d_sink, an array that is written."""
        dq, dk, dv = (numpy.empty(self.shapes[name], like.dtype) for name, like in
                      (("dq", q), ("dk", k), ("dv", v)))
        self.call("backward", q=q, k=k, v=v, mask=mask, o=o, lse=lse, d_out=d_out,
                  dq=dq, dk=dk, dv=dv, **optional)
        return dq, dk, dv

    def wait(self):
        """Returns when all calls are done, and raises what came of them: on a GPU they enqueue."""
        with self.stays_open(), self.ctrl_c_cancels():
            status = lib.ra_wait(self.plan)
            text = lib.ra_plan_error(self.plan)
        self.check(status, text)

    def stream(self):
        """What a call is given beyond plan and arrays."""
        return ()

    def call(self, which, **arrays):
        """The call "forward" or "backward" with these inputs and outputs, arrays of NumPy or of
        PyTorch where the plan computes. None of them is copied."""
        call = Arrays(ctypes.sizeof(Arrays))
        for name, array in arrays.items():
            if array is not None:
                setattr(call, name, self.tensor(name, array))
        with self.stays_open(), self.ctrl_c_cancels():
            status = self.passes[which](self.plan, ctypes.byref(call), *self.stream())
            text = lib.ra_plan_error(self.plan)
        self.check(status, text)

    @contextlib.contextmanager
    def stays_open(self):
        """Keeps other threads from closing the plan, whose memory a call uses."""
        with self.lock:
            if not self.plan:
                raise ValueError("this plan is closed")
            self.calls += 1
        try:
            yield
        finally:
            with self.lock:
                self.calls -= 1

    @contextlib.contextmanager
    def ctrl_c_cancels(self):
        """Lets Ctrl-C end a call of the main thread. Python handles the signal only after C has
        returned, but it wakes a thread, which cancels. A handler of your own is left alone."""
        if (threading.current_thread() is not threading.main_thread() or
                signal.getsignal(signal.SIGINT) is not signal.default_int_handler):
            yield
            return
        if not self.wakes:
            hears, self.wakes = socket.socketpair()
            self.wakes.setblocking(False)
            threading.Thread(target=self.watch, args=(hears,), daemon=True).start()
        before = signal.set_wakeup_fd(self.wakes.fileno())
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def watch(self, hears):
        """Cancels at every SIGINT, until the plan is closed."""
        with hears:
            while came := hears.recv(1):
                if came[0] == signal.SIGINT:
                    self.cancel()

    def check(self, status, text):
        """Raises what a status says, or the Ctrl-C that came while a Link waited."""
        if status != 0 and isinstance(getattr(self.ring, "raised", None), KeyboardInterrupt):
            raise self.ring.raised
        check(status, text)

    def tensor(self, name, array):
        """The address and strides of an array, after the checks that the library cannot make."""
        if hasattr(array, "data_ptr"):
            kind, place = str(array.dtype).split(".")[-1], str(array.device)
            item = array.element_size()
            address, strides = array.data_ptr(), [stride * item for stride in array.stride()]
        else:
            kind = array.dtype.name if array.dtype.isnative else f"byte-swapped {array.dtype.name}"
            place, item = "cpu", array.itemsize
            address, strides = array.ctypes.data, list(array.strides)
        shape = tuple(array.shape)
        of_heads = len(self.shapes[name]) == 1
        kinds = (["bool"] if name == "mask" else ["float32"] if of_heads or "lse" in name
                 else list(TYPES)[:3])
        apart = len(shape) == 4 and shape[3] > 1 and strides[3] != item
        if (shape != self.shapes[name] or kind not in kinds or place != self.place or apart or
                any(way % item for way in (address, *strides))):
            raise ValueError(f"{name} is {kind} {shape} at {address:#x} on {place}, strides "
                             f"{strides} bytes: give {self.shapes[name]} of {', '.join(kinds)} "
                             "in this machine's byte order, aligned, on "
                             f"{self.place}, the D numbers of a head side by side")
        batch, row, head = ([stride // item for stride in strides] + [0, 0])[:3]
        if "lse" in name:
            row, head = head, row
        if of_heads:
            batch, head = 0, batch
        return Tensor(address, TYPES[kind], batch, row, head)


def field_of(config, name):
    """A whole number of a config."""
    value, text = c_double(), ctypes.create_string_buffer(ERROR_SIZE)
    check(lib.ra_config_get(config, name.encode(), ctypes.byref(value), text), text.value)
    return int(value.value)


def number(field, value):
    """What ra_config_set takes for a value: of a word its place in its enum."""
    if isinstance(value, numbers.Real):
        return float(value)
    words = WORDS.get(field, [])
    if value not in words:
        raise Error(STATUS.index("INVALID"), f"config.{field} = {value!r}: give " +
                    (f"one of {', '.join(words)}" if words else "a number"))
    return words.index(value)


# ---- Rings without MPI.

def threads(ranks, work):
    """Calls work(ring) on this many threads, the ranks of a ring, which make their plans with
    Plan(ring, ...), and returns their results in the order of ranks. If one raises, all end, and
    its exception is raised here."""
    links, text = (LinkStruct * ranks)(), ctypes.create_string_buffer(ERROR_SIZE)
    check(lib.ra_thread_links(links, ranks, text), text.value)

    def run(link):
        try:
            return work(link)
        finally:
            link.close(link.self)  # if it has raised, the others need not wait for it

    links = list(links)
    with ThreadPoolExecutor(ranks) as pool:
        ranks = [pool.submit(run, link) for link in links]
        try:
            wait(ranks)
        except KeyboardInterrupt:
            for link in links:
                for plan in getattr(link, "plans", []):
                    plan.cancel()
            raise
    errors = [rank.exception() for rank in ranks if rank.exception()]
    for error in sorted(errors, key=lambda error: getattr(error, "status", None) == "LOST"):
        raise error
    return [rank.result() for rank in ranks]


class Link:
    """A ring over anything that passes bytes. Derive from it, define four functions, and give it to
    Plan. ra_link.h has the contract. What a function raises ends the ring, on all ranks.

    send(message, peer, data)     begins to send a memoryview of bytes to this rank of the ring
    receive(message, peer, data)  begins to receive them. Messages of one kind (`message`, a number)
                                  arrive in order, and those of another may pass them. Both return a
                                  function that waits this many seconds and says whether it is done
    tell(reason)                  lets all ranks know that this one cannot go on, for this reason
    told()                        the first reason that a rank has told; "" if none has

    It cannot see whether other ranks compute: the config's timeout must be longer than any call.
    """

    def __init__(self, rank, size, sharing=0):
        """`sharing`: how many ranks share the processors of this one, if that is known."""
        self.rank, self.size, self.under_way = rank, size, {}
        self.raised, self.cancelled, self.timeout = None, threading.Event(), 0
        self.text = ctypes.create_string_buffer(ERROR_SIZE)
        self.struct = LinkStruct(
            rank, size, sharing, 0, False, None,
            MOVE(lambda _, *message: self._try(self._begin, self.send, True, *message)),
            MOVE(lambda _, *message: self._try(self._begin, self.receive, False, *message)),
            ASK(lambda _: self._try(self._listen)),
            WAIT(lambda _, message: self._try(self._wait, message)),
            FAIL(lambda _, reason: self.fail(reason.decode(errors="replace"))),
            ERROR(lambda _: ctypes.addressof(self.text)),
            set_timeout=TIME(lambda _, seconds: setattr(self, "timeout", seconds)),
            in_call=ctypes.pointer(c_int()), cancel=CANCEL(lambda _: self.cancelled.set()))

    def _try(self, function, *arguments):
        """What all have in common: after a failure nothing is done; what is raised is a failure."""
        if self.text.value:
            return False
        try:
            function(*arguments)
        except BaseException as error:  # also Ctrl-C, which Plan.call raises again
            self.raised = error
            self.fail(f"ring rank {self.rank}: {type(error).__name__}: {error}")
        return not self.text.value

    def fail(self, reason):
        """Ends the ring, on all ranks; after another failure nothing is done."""
        if self.text.value:
            return
        with contextlib.suppress(Exception):  # where nobody can be told, they must notice
            reason = self.told() or reason
            self.tell(reason)
        self.text.value = " ".join(reason.split()).encode()[:ERROR_SIZE - 1]

    def _begin(self, function, out, message, hop, distance, data, count):
        data = memoryview((ctypes.c_char * count).from_address(data)).cast("B")
        done = function(message, (self.rank + distance) % self.size, data)
        returns = out and message == GRADIENTS_RETURN  # share the gradients' way out: point 4
        self.under_way[out, GRADIENTS if returns else message] = done

    def _wait(self, message):
        began = time.monotonic()
        for way in (False, message), (True, message):
            done = self.under_way.pop(way, None)
            while done and not done(0.05):
                self._listen()
                if 0 < self.timeout < time.monotonic() - began:
                    raise TimeoutError(f"nothing has come or gone for {self.timeout:g} s")

    def _listen(self):
        if self.told() or self.cancelled.is_set():
            raise ConnectionError("cancelled, or another rank has failed")
