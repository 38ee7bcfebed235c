"""python_module: what ring_attention.py promises beyond what its example shows.

    python3 tests/python_module.py FOLDER    the folder that has it, and attention.py
"""
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import unittest
from functools import partial

import numpy

FOLDER = sys.argv.pop(1)
sys.path.insert(0, FOLDER)
import ring_attention as ra
from attention import B, D, G, H, N, attend, d_out, k, naive, q, v

CONFIG = dict(batch=B, queries=N, heads=H, key_heads=G, dim=D, causal=True)


def results(q, k, v, d_out, **config):
    """o, lse, dq, dk and dv of one process."""
    with ra.Plan(**CONFIG, **config) as plan:
        o, lse = plan.forward(q, k, v)
        return o, lse, *plan.backward(q, k, v, o, lse, d_out)


def same(got, want):
    """Are these results the same bits?"""
    return all(numpy.array_equal(x, y) for x, y in zip(got, want, strict=True))


class Queues(ra.Link):
    """A link between threads, over queues that all of them have."""

    def __init__(self, rank, size, queues, reasons, fault=None):
        super().__init__(rank, size, size)
        self.queues, self.reasons, self.fault = queues, reasons, fault

    def send(self, message, peer, data):
        if self.fault == (self.rank, message):
            raise OSError("the cable is broken")
        self.queues.setdefault((self.rank, peer, message), queue.Queue()).put(bytes(data))

    def receive(self, message, peer, data):
        waiting = self.queues.setdefault((peer, self.rank, message), queue.Queue())

        def done(seconds):
            try:
                data[:] = waiting.get(timeout=seconds)
                return True
            except queue.Empty:
                return False
        return done

    def tell(self, reason):
        self.reasons.append(reason)

    def told(self):
        return self.reasons[0] if self.reasons else ""


def over_queues(ranks, work, fault=None):
    """Like ra.threads, over Queues. An exception is returned as a result."""
    queues, reasons, out = {}, [], [None] * ranks

    def run(rank):
        try:
            out[rank] = work(Queues(rank, ranks, queues, reasons, fault))
        except Exception as error:
            out[rank] = error
    team = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return out


# Programs that compute or wait for minutes, and say when they begin. Who waits does so for a rank that is
# between two calls.
LONG = """
import sys, threading, time
import numpy
sys.path.insert(0, sys.argv[1])
import ring_attention as ra
def work(ring=None):
    with ra.Plan(ring, queries=300000, dim=64) as plan:
        x = numpy.zeros(plan.shapes["q"], numpy.float32)
        print("begins", flush=True)
        plan.forward(x, x, x)
def sleep(ring):
    with ra.Plan(ring, queries=300000, dim=64) as plan:
        time.sleep(300)
"""
ONE, RING, WAITING = "work()", "ra.threads(2, work)", """
links = (ra.LinkStruct * 2)()
ra.check(ra.lib.ra_thread_links(links, 2, None), b"")
threading.Thread(target=sleep, args=(links[1],), daemon=True).start()
work(links[0])
"""


def when_computing(act):
    """Calls this once the process has computed for a while, however long a busy machine takes for it."""
    until = time.process_time() + 0.3

    def wait():
        while time.process_time() < until:
            time.sleep(0.01)
        act()
    threading.Thread(target=wait).start()


class Arrays(unittest.TestCase):
    def test_optional_arrays(self):
        """Sinks, slopes and a gradient of lse, by finite differences of the forward."""
        rng = numpy.random.default_rng(4)
        sink, slopes = (rng.normal(size=H).astype(numpy.float32) for _ in range(2))
        d_lse = rng.normal(size=(B, H, N)).astype(numpy.float32)
        apart = numpy.full((H, 2), numpy.nan, numpy.float32)  # numbers that lie two apart
        largest, d_sink = (numpy.full(H, numpy.nan, numpy.float32) for _ in range(2))
        apart[:, 0] = sink
        with ra.Plan(**CONFIG) as plan:
            def loss(sink, slopes):
                o, lse = plan.forward(q, k, v, sink=sink, slopes=slopes)
                return numpy.sum(o * d_out, dtype=float) + numpy.sum(lse * d_lse, dtype=float)
            o, lse = plan.forward(q, k, v, sink=apart[:, 0], slopes=slopes, largest=largest)
            grads = plan.backward(q, k, v, o, lse, d_out, sink=apart[:, 0], slopes=slopes,
                                  d_lse=d_lse, d_sink=d_sink)
            self.assertTrue(all(numpy.isfinite(x).all() for x in (largest, d_sink, *grads)))
            for h in range(H):
                step = numpy.zeros(H, numpy.float32)
                step[h] = 2 ** -5
                slope = (loss(sink + step, slopes) - loss(sink - step, slopes)) / 2 ** -4
                self.assertAlmostEqual(d_sink[h], slope, delta=2e-3 * N)
                self.assertNotEqual(loss(sink, slopes), loss(sink, slopes + step))
            for name, wrong in (("sink", sink.astype(float)), ("slopes", slopes[1:]),
                                ("largest", largest[None])):
                with self.assertRaisesRegex(ValueError, name):
                    plan.forward(q, k, v, **{name: wrong})

    def test_bfloat16_of_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("there is no ml_dtypes")
        arrays = [x.astype(ml_dtypes.bfloat16) for x in (q, k, v, d_out)]
        got = results(*arrays, type="bfloat16")
        self.assertEqual([x.dtype.name for x in got],
                         ["bfloat16", "float32", "bfloat16", "bfloat16", "bfloat16"])
        # o is rounded to 8 bits before the backward takes it, so gradients may be off by some of theirs.
        for x, want in zip(got, naive(*arrays)):
            off = abs(x.astype(float) - want).max()
            self.assertLessEqual(off, 4 * 2**-8 * abs(want).max())

    def test_strides(self):
        apart = [numpy.full(x.shape[:3] + (2 * D,), numpy.nan, x.dtype) for x in (q, k, v, d_out)]
        for whole, x in zip(apart, (q, k, v, d_out)):
            whole[:, ::-1, :, :D] = x
        got = results(*(x[:, ::-1, :, :D] for x in apart))
        self.assertTrue(same(got, results(q, k, v, d_out)))
        bhnd = [x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in (q, k, v, d_out)]
        self.assertTrue(same(results(*bhnd), got))

    def test_refused(self):
        odd = numpy.frombuffer(bytearray(q.nbytes + 1), numpy.float32, q.size, 1).reshape(q.shape)
        for bad, why in ((q.astype(">f4"), "byte-swapped float32"), (odd, "aligned"),
                         (q.astype(float), "q is float64"), (q[..., ::-1], "side by side"),
                         (q[:, 1:], "give (2, 37, 4, 8)"), (q[0], "give (2, 37, 4, 8)")):
            with ra.Plan(**CONFIG) as plan, self.assertRaisesRegex(ValueError, "q is") as raised:
                plan.forward(bad, k, v)
            self.assertIn(why, str(raised.exception))
        with self.assertRaisesRegex(ValueError, "closed"):
            plan.forward(q, k, v)
        with ra.Plan(**CONFIG, has_mask=True) as plan:
            with self.assertRaisesRegex(ValueError, "mask is float64.* of bool in"):
                plan.forward(q, k, v, numpy.ones((B, N)))
            with self.assertRaisesRegex(ra.Error, "mask.data is NULL, and config.has_mask is true"):
                plan.forward(q, k, v)
        for wrong, why in (({"head_dim": 4}, "head_dim: no such field; one of .*dim"),
                           ({"type": numpy.float32}, "type = .*: give one of float32, float16")):
            with self.assertRaisesRegex(ra.Error, why):
                ra.Plan(queries=5, dim=4, **wrong)
        with self.assertRaisesRegex(TypeError, "ring = 2: give None, a communicator"):
            ra.Plan(2, queries=5, dim=4)

    def test_one_number_a_head(self):
        with ra.Plan(queries=5, dim=1) as plan:
            x = numpy.linspace(0, 1, 40, dtype=numpy.float32).reshape(1, 5, 1, 8)[..., ::8]
            o, _ = plan.forward(x, x, x)
        self.assertTrue(numpy.isfinite(o).all())


class Names(unittest.TestCase):
    def test_words(self):
        for field, words in ra.WORDS.items():
            for place, word in enumerate(words):
                self.assertEqual(ra.number(field, word), place)
        plan = {}
        for layout in "zigzag", ra.ZIGZAG, "striped":
            with ra.Plan(**CONFIG, layout=layout, ring_size=4) as look:
                plan[layout] = list(look.positions(ra.QUERY_SIDE))
        self.assertEqual(plan["zigzag"], plan[ra.ZIGZAG])
        self.assertNotEqual(plan["zigzag"], plan["striped"])
        for wrong, why in ((dict(layout="diagonal"), "one of contiguous, striped, zigzag"),
                           (dict(heads="two"), "give a number"), (dict(headz=2), "headz")):
            with self.assertRaisesRegex(ra.Error, why):
                ra.Plan(**{**CONFIG, **wrong})

    def test_none_is_the_default(self):
        plain = results(q, k, v, d_out)
        self.assertTrue(same(results(q, k, v, d_out, lookback=None, scale=None), plain))
        self.assertFalse(same(results(q, k, v, d_out, lookback=2), plain))

    def test_shapes_are_those_of_the_plan(self):
        with ra.Plan(queries=5, keys=-1, heads=4, key_heads=-1, dim=3) as plan:  # -1: RA_SAME
            self.assertEqual(plan.shapes["k"], (1, 5, 4, 3))
            self.assertEqual(plan.shapes["v"], (1, 5, 4, 3))

    def test_values_of_another_width(self):
        some = D // 2
        of_some = d_out.copy()
        of_some[..., some:] = 0
        want = results(q, k, v, of_some)
        got = results(q, k, v[..., :some].copy(), d_out[..., :some].copy(), dim_value=some)
        for x, y in zip(got, want, strict=True):
            self.assertTrue(numpy.allclose(x, y[..., :x.shape[-1]], rtol=1e-4, atol=1e-5))
        self.assertEqual(got[0].shape, (*q.shape[:3], some))
        self.assertEqual(got[4].shape, (*k.shape[:3], some))

    def test_missing_library(self):
        said = subprocess.run([sys.executable, "-B", "-c", "import ring_attention"], cwd=FOLDER,
                              env=os.environ | {"RA_LIB": "/nowhere", "LD_LIBRARY_PATH": ""},
                              capture_output=True, text=True, check=False).stderr
        self.assertIn("set RA_LIB", said)


class Rings(unittest.TestCase):
    def test_threads(self):
        for ranks in 2, 5:
            got = ra.threads(ranks, attend)
            self.assertEqual(sum(rows for rows, _ in got), N)
            self.assertLessEqual(numpy.max([worst for _, worst in got]), 1e-5)

    def test_thread_that_raises(self):
        for early in True, False:
            first, started = iter([True]), time.monotonic()

            def work(ring, first=first, early=early):
                fails = next(first, False)
                if fails and early:
                    raise ZeroDivisionError
                with ra.Plan(ring, **CONFIG) as plan:
                    if fails:
                        raise ZeroDivisionError
                    rows, keys = (plan.positions(side) for side in (ra.QUERY_SIDE, ra.KEY_SIDE))
                    plan.forward(q[:, rows], k[:, keys], v[:, keys])
            with self.assertRaises(ZeroDivisionError):
                ra.threads(3, work)
            self.assertLess(time.monotonic() - started, 30)

    def test_own_link(self):
        for ranks in 2, 3, 4:
            got = over_queues(ranks, attend)
            for rank in got:
                self.assertIsInstance(rank, tuple, rank)
            self.assertEqual(sum(rows for rows, _ in got), N)
            self.assertLessEqual(numpy.max([worst for _, worst in got]), 1e-5)

    def test_gradients_and_home_share_a_way_out(self):
        class Noted(Queues):
            def send(self, message, peer, data):
                return lambda seconds: not done.append(message)
        done, number, link = [], ctypes.c_float(), Noted(0, 2, {}, [])
        self.assertTrue(link.struct.send(None, ra.GRADIENTS_RETURN, 0, 1, ctypes.addressof(number), 4))
        self.assertTrue(link.struct.wait(None, ra.GRADIENTS))
        self.assertEqual(done, [ra.GRADIENTS_RETURN])

    def test_own_link_that_fails(self):
        for message in ra.KEYS, ra.GRADIENTS:
            got = over_queues(3, attend, fault=(1, message))
            for rank in got:
                self.assertIsInstance(rank, ra.Error)
                self.assertEqual(rank.status, "LOST")
                self.assertEqual(str(rank), "ring rank 1: OSError: the cable is broken")


    def test_rank_that_does_not_come(self):
        def work(ring):
            if ring.rank == 0:
                ra.Plan(ring, **CONFIG, timeout=0.5)
        self.assertRegex(str(over_queues(2, work)[0]), "TimeoutError: nothing has come or gone for 0.5 s")

    def test_shared_link(self):
        def work(ring):
            with ra.Plan(ring, **CONFIG, lookback=3):
                return attend(ring), attend(ring)
        for got in ra.threads(3, work), over_queues(3, work):
            for rank in got:
                self.assertIsInstance(rank, tuple, rank)
                self.assertLessEqual(numpy.max([worst for _, worst in rank]), 1e-5)

    def test_rank_that_raises(self):
        def work(ring):
            with ra.Plan(ring, **CONFIG, layout="zigzag") as plan:  # each rank needs the keys of all
                if ring.rank == 1:
                    raise ZeroDivisionError("no batch")
                rows, keys = (plan.positions(side) for side in (ra.QUERY_SIDE, ra.KEY_SIDE))
                plan.forward(q[:, rows], k[:, keys], v[:, keys])
        got = over_queues(3, work)
        self.assertIsInstance(got[1], ZeroDivisionError)
        for rank in got[0], got[2]:
            self.assertEqual(str(rank), "ring rank 1: ZeroDivisionError: no batch")


class Ends(unittest.TestCase):
    def test_ctrl_c(self):
        for what in ONE, RING, WAITING:
            # What a shell starts in the background ignores Ctrl-C, and so do its children.
            heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
            with subprocess.Popen([sys.executable, "-B", "-c", LONG + what, FOLDER], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  preexec_fn=heed) as program:
                program.stdout.readline()
                time.sleep(0.5)
                program.send_signal(signal.SIGINT)
                try:
                    _, said = program.communicate(timeout=300)
                finally:
                    program.kill()
            self.assertEqual(program.returncode, -signal.SIGINT, said)
            self.assertTrue(said.endswith("\nKeyboardInterrupt\n"), said)

    def test_cancel(self):
        x = numpy.zeros((1, 300000, 1, D), numpy.float32)
        with ra.Plan(queries=300000, dim=D) as plan:
            when_computing(plan.cancel)
            with self.assertRaisesRegex(ra.Error, "cancelled") as raised:
                plan.forward(x, x, x)
        self.assertEqual(raised.exception.status, "CANCELLED")
        plan.cancel()  # which is closed: nothing happens

    def test_close_during_a_call(self):
        x, said = numpy.zeros((1, 300000, 1, D), numpy.float32), []

        def close():
            try:
                plan.close()
            except ValueError as error:
                said.append(str(error))
            plan.cancel()
        with ra.Plan(queries=300000, dim=D) as plan:
            when_computing(close)
            with self.assertRaisesRegex(ra.Error, "cancelled"):
                plan.forward(x, x, x)
        self.assertEqual(said, ["a call of this plan is not over: cancel() ends it"])

    def test_cancel_of_own_link(self):
        over = threading.Event()

        def work(ring):
            with ra.Plan(ring, **CONFIG, layout="zigzag") as plan:
                if ring.rank == 1:  # is between two calls
                    over.wait(60)
                    return
                threading.Timer(0.3, plan.cancel).start()
                rows, keys = (plan.positions(side) for side in (ra.QUERY_SIDE, ra.KEY_SIDE))
                try:
                    plan.forward(q[:, rows], k[:, keys], v[:, keys])
                finally:
                    over.set()
        started = time.monotonic()
        got = over_queues(2, work)
        self.assertEqual(got[0].status, "CANCELLED")
        self.assertLess(time.monotonic() - started, 15)


unittest.main(verbosity=2)
