#!/usr/bin/env python3
"""planner: the command line of 12-scale.

A flag that makes no difference is refused: each flag of --help is added to each question, in each situation, and
then either the numbers change or the program ends with exit code 2 and says why. Numbers have units. And the rates
of the presets are those of chapters/img/12-rates.csv: another table makes other predictions, and check-scale notices.
"""
import csv
import os
import re
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True  # nothing that is built lies outside build
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "rig"))
import folders
import jobs

work = "build/planner"
passed = failed = 0


def judge(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAILED {what}")


def run(*words, program="build/12-scale"):
    done = subprocess.run(jobs.alone(work, program, *" ".join(words).split()), text=True, capture_output=True,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


documents = "1000,20000,65536"

# A value of each flag that matters wherever the flag does.
values = {"tokens": "123456", "batch": "3", "heads": "64", "key-heads": "4", "dim-head": "64", "type": "float32",
          "lookback": "100", "layout": "zigzag", "ranks": "4", "method": "gathered-keys", "group": "2 --method hybrid", "machine": "b200",
          "network": "ethernet400", "ranks-per-host": "2", "forward-rate": "1e9", "backward-rate": "1e9",
          "dense-rate": "1e12", "bandwidth": "1e6", "latency": "1s", "host-bandwidth": "1e6", "host-latency": "1s",
          "memory": "1MB", "memory-bandwidth": "1e6", "overhead": "1s", "tile-queries": "5000", "tile-keys": "5000",
          "documents": documents, "deal": f"documents --documents {documents}", "slices": f"{work}/slices.npy",
          "slow-rank": "0", "slow-link": "1 --factor 1e4", "factor": "3", "dim": "1000", "depth": "7", "ff-mult": "9",
          "vocabulary": "7"}
machine = "--machine h200 --tokens 65536"
questions = {"": machine, "depth": machine + " --depth 2", "per-hop": machine + " --per-hop",
             "simulate": machine + " --simulate", "decode": machine + " --decode", "fits": "--machine h100 --fits --depth 2",
             "measure": "--measure"}
network = "--network infiniband400"
situations = {"two hosts": f"--ranks 16 {network} --causal --layout striped", "one host": "--ranks 4 --causal",
              "one rank": "--ranks 1 --causal", "no mask": f"--ranks 16 {network}",
              "forward": f"--ranks 16 {network} --causal --forward-only"}


def in_situation(question, situation):
    """The situation without flags that the question refuses; None if nothing is left of it."""
    words = situation.split(" --")
    keep = {"decode": ("ranks", "network"), "fits": ("ranks",), "depth": ("ranks", "network", "causal", "layout"),
            "measure": ()}.get(question)
    words = [w.removeprefix("--") for w in words]
    kept = [w for w in words if keep is None or w.split()[0] in keep]
    return None if len(kept) < len(words) and question != "measure" and "forward-only" in words else \
        " ".join("--" + w for w in kept)


def try_flag(question, name, situation, flag, takes_value):
    """None if all is well, else what is wrong."""
    base = f"{questions[question]} {situation}"
    comma = "" if question == "measure" or flag == "csv" else "--csv"
    word = f"--{flag} {values[flag]}" if takes_value else f"--{flag}"
    code, said, error = run(base, word, comma)
    if code == 2:
        good = re.search("no effect|needs|give one|is missing", error)
        return None if good else f"{base} {word}: {error}"
    if question == "measure":
        return None if flag in ("dim-head", "measure") and code == 0 else f"{base} {word}: exit code {code}"
    if code != 0:
        return f"{base} {word}: exit code {code}: {error}"
    # How ranks lie in hosts may be said, though a ring goes at the pace of its slowest link, wherever that is; and
    # how rows lie, or keys travel, of one rank too: so a script can count ranks up from one.
    if word in base or flag == "ranks-per-host" or name == "one rank" and flag in ("layout", "method"):
        return None
    usual = run(base, comma)
    return None if usual[0] == 0 and said != usual[1] else f"{base} {word}: makes no difference"


def write_slices():
    """The same documents, causal, as a file."""
    ends = [0, *map(int, documents.split(","))]
    slices = [(a, b, a, b, -1 << 62, 0) for a, b in zip(ends, ends[1:])]
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(slices)}, 6), }}".ljust(117) + "\n"
    with open(values["slices"], "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        out.write(b"".join(struct.pack("<6q", *one) for one in slices))


def check_slices():
    """Flags and a file that say the same cost the same; a deal is another one."""
    words = "--tokens 65536 --ranks 8 --tile-keys 1 --tile-queries 1 --forward-rate 1e14 --backward-rate 1e14 " \
            "--bandwidth 1e10 --csv"
    by_flag, by_file = (run(words, more) for more in ("--causal --documents " + documents, "--slices " + values["slices"]))
    judge(by_flag[0] == 0 and by_flag == by_file, f"{by_flag}, {by_file}")
    dealt = run(words, "--deal documents --slices", values["slices"])
    balances = [float(dict(zip(*[line.split(",") for line in one[1].splitlines()]))["forward_balance"])
                for one in (by_flag, dealt)]
    judge(balances[0] > 1.5 and 1 <= balances[1] < 1.001, f"balance: {balances}")
    for more, text in (("--causal --documents 5,3", "ascending order"), ("--documents 5", "ends at 5"),
                       (f"--documents {documents} --slices x.npy", "give one of"), ("--slices x.npy", "x.npy: cannot be"),
                       ("--deal documents", "no effect: give --documents or --slices"),
                       (f"--deal documents --layout zigzag --causal --documents {documents}", "gives ranks their rows")):
        code, said, error = run(words, more)
        judge(code > 0 and text in error and said == "", f"{more}: {code} {error}{said}")


def check_idle():
    flags = re.findall(r"^  --(\S+) +([A-Z][A-Z,.]*)? *", run("--help")[1], re.MULTILINE)
    judge(len(flags) > 40, "--help has flags")
    tries = []
    for question in questions:
        for name, situation in situations.items():
            here = in_situation(question, situation)
            if here is None or question and name not in ("two hosts", "one rank"):
                continue
            judge(run(questions[question], here)[0] == 0, f"{question} {name}: the question itself")
            tries += [(question, name, here, flag, bool(value)) for flag, value in flags
                      if flag not in ("help", "version")]
    with ThreadPoolExecutor(2) as pool:
        for wrong in pool.map(lambda one: try_flag(*one), tries):
            judge(not wrong, wrong)


def check_texts():
    for words, text in (
            ("--machine h100 --tokens 1M --ranks 64 --host-bandwidth 400", "400 bytes a second"),
            ("--machine h100 --fits --memory 80", "80 bytes"),
            ("--machine h100 --tokens 1M --forward-rate 331", "331 multiply-adds a second"),
            ("--machine h100 --tokens 1M --latency 50", "50 seconds"),
            ("--machine h100 --tokens 1,000", "give a whole number"),
            ("--machine h100 --tokens 1.5", "give a whole number"),
            ("--machine h100 --tokens 1e30", "at most 2^50 numbers"),
            ("--machine h100 --fits --depth 1e30", "give a whole number, at most 1048576"),
            ("--machine h100 --tokens 1k --tile-queries -1e30", "give a whole number, at least 1"),
            ("--machine h100 --tokens 1k --causal --lookback none", "for none, leave the flag out"),
            ("--machine h100 --tokens 1M --dim-head 512", "no rate of bfloat16 was measured"),
            ("--machine h100 --tokens 1M --ranks 8,16 --per-hop", "give one number"),
            ("--machine h100 --tokens 1M --ranks 8,64", "--host-bandwidth is missing")):
        code, said, error = run(words)
        judge(code == 2 and text in error and said == "", f"{words}: {code} {error}{said}")
    usual = run("--machine h100 --tokens 1048576 --ranks 16 --host-bandwidth 50e9 --host-latency 5e-6 --csv")
    judge(usual[0] == 0, usual)
    for words in ("--tokens 2^20 --host-bandwidth 400Gb/s --host-latency 5us",
                  "--tokens 1Mi --host-bandwidth 50GB/s --host-latency 0.005ms"):
        judge(run("--machine h100 --ranks 16 --csv", words) == usual, words)
    said = run("--machine h100 --tokens 1M --ranks 1,8")[1]
    judge(said.startswith("one layer of attention: 1000000 tokens") and "does not fit" in said.splitlines()[-2] and
          "does not fit" not in said.splitlines()[-1], said)


def check_by_hand():
    """Chapter 12's question: 10^6 tokens, 32 heads of 128, 8 key heads, 64 H100s in 8 hosts with 400 Gb/s, striped."""
    code, said, error = run("--machine h100 --tokens 1M --key-heads 8 --causal --layout striped --ranks 64",
                            "--host-bandwidth 400Gb/s --csv")
    judge(code == 0, error)
    answer = dict(zip(*[line.split(",") for line in said.splitlines()]))
    n, heads, key_heads, carry = 15625, 32 * 128, 8 * 128, 3.35e12
    for pass_, products, width in (("forward", 2, 0), ("backward", 5, 8)):
        rate = float(answer[f"{pass_}_assumed_tflops"]) / 2 * 1e12
        work = products * heads * n * n / 2 / rate + 2 * 4 * n * heads / carry + 3 * width * n * key_heads / carry + 5e-6
        message = (2 * 2 + width) * n * key_heads / 50e9
        judge(message < work, f"{pass_}: messages are hidden")
        seconds = 64 * work + width * n * key_heads / 50e9
        judge(abs(float(answer[f"{pass_}_seconds"]) / seconds - 1) < 1e-3, f"{pass_}: {seconds} by hand, {answer}")


def shell(text):
    done = subprocess.run(["sh", "-ec", text], text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


def check_rates():
    """Another table, built into another program; nothing else changes."""
    flags = "-std=c11 -D_POSIX_C_SOURCE=200809L -fopenmp -Isrc -Isrc/stage -Isrc/library -Isrc/mpi -Isrc/scale -Itests -Itests/rig"
    code, said = shell(f"""
        awk -F, -v OFS=, '$6 + 0 > 0 {{ $7 *= 1.15 }} 1' chapters/img/12-rates.csv >{work}/rates.csv
        awk -f src/scale/rates.awk {work}/rates.csv >{work}/scale_rates.c
        gcc {flags} $(mpicc --showme:compile) src/12_scale.c src/scale/s*.c {work}/scale_rates.c \
            build/libstage_mpi.a build/libringattn_mpi.a build/libringattn.a -o {work}/12-scale $(mpicc --showme:link) -lm
        gcc {flags} $(pkg-config --cflags check) tests/check_scale.c src/scale/scale_number.c src/scale/scale_machine.c \
            {work}/scale_rates.c build/libringattn.a -o {work}/check-scale $(pkg-config --libs check) -lm""")
    judge(code == 0, said)
    words = "--machine h200 --tokens 65536 --causal --layout striped --ranks 8 --csv"
    rates = [dict(zip(*[line.split(",") for line in run(words, program=program)[1].splitlines()]))
             for program in ("build/12-scale", f"{work}/12-scale")]
    for name, times in (("forward_assumed_tflops", 1.15), ("backward_assumed_tflops", 1)):
        judge(abs(float(rates[1][name]) / float(rates[0][name]) / times - 1) < 1e-9, f"{name}: {rates}")
    judge(float(rates[1]["forward_seconds"]) < 0.9 * float(rates[0]["forward_seconds"]), f"seconds: {rates}")
    os.environ["CK_RUN_CASE"] = "rest"
    code, said = shell(f"{work}/check-scale")
    judge(code != 0 and re.search("rest:recorded:.* not ", said), f"check-scale with other rates: {said}")


def check_steps():
    """Steps that were measured, page 14a. Short ones have many launches, and the time between them is not predicted."""
    with open("chapters/img/14a-steps.csv") as file:
        rows = [row for row in csv.DictReader(line for line in file if line[0] != "#") if row["flags"] == "none"]
    judge(len(rows) == 3, f"14a-steps.csv has {len(rows)} steps without flags")
    for row in rows:
        dim, tokens = int(row["dim"]), int(row["tokens"])
        said = run(f"--machine h200 --causal --layout zigzag --ranks 1,2 --heads 16 --dim-head {dim // 16} --dim {dim}",
                   f"--depth 8 --vocabulary 32000 --tokens {tokens} --replicated --csv")[1]
        steps = [1e3 * float(line["step_seconds"]) for line in csv.DictReader(said.splitlines())]
        for predicted, measured in zip(steps, (float(row["one_ms"]), float(row["two_ms"])), strict=True):
            off = predicted / measured - 1
            judge(-0.16 < off < 0 if tokens < 10000 else abs(off) < 0.09,
                  f"a step of {tokens} tokens: predicted {predicted:.1f} ms, measured {measured:.1f}")


folders.begin(work)
write_slices()
check_slices()
check_idle()
check_texts()
check_by_hand()
check_rates()
check_steps()
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
