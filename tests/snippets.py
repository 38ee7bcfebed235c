#!/usr/bin/env python3
"""snippets: what README and the pages name of the API exists, and what page 10c says to run runs.

    snippets.py BUILD

- Every function, struct, enum and macro that a page names is somewhere in the sources; what README names is declared
  in an installed header.
- Every field there, such as `config.layout = RA_STRIPED`, compiles: it is one of a struct that an installed header has.
- README's piece of a program compiles, with the variables that it leaves to the reader.
- The commands in page 10c's table for those who move over from ring-attention-pytorch run, in the order of its rows, on
  a folder as it describes it, and the program has the flags that it names.

installcheck compiles programs by the lines that README gives for that, and tests/commands runs the pages' commands.
The last line is "N passed, N failed".
"""
import glob
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # nothing that is built lies outside BUILD
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "rig"))
import folders

# Pages about what is installed; and what their names for structs stand for.
API = ("README.md", "chapters/08-library.md", "chapters/08-manners.md", "chapters/08-reference.md",
       "chapters/10b-library.md", "chapters/10b-pieces.md")
STRUCTS = {"config": ("ra_config", "ra_layer_config", "ra_model_config"), "run": ("ra_model_run",),
           "arrays": ("ra_arrays", "ra_layer_arrays"), "batch": ("ra_model_batch",), "link": ("ra_link",)}
NAME = re.compile(r"\b(?:ra|RA)_[A-Za-z0-9_]*[A-Za-z0-9]\b(?!_|\*)")
FIELD = re.compile(r"(config|arrays|run|batch|link)\.(?!json)(\w+)(?: = ([^`;,]+))?$")
PAST = ("chapters/changes.md", "chapters/contributing.md")  # names of before, and one that stands for any


def spans(page):
    """The pieces of code in a page's running text and tables, with their lines."""
    fenced = False
    with open(page, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("```"):
                fenced = not fenced
            elif not fenced:
                for code in re.findall(r"`([^`]+)`", line):
                    yield number, code


def known_names():
    """All names in the sources; and those in the installed headers."""
    def words(paths):
        found = set()
        for path in paths:
            with open(path, encoding="utf-8", errors="replace") as file:
                found |= set(re.findall(r"\w+", file.read()))
        return found
    return (words(path for top in ("src", "kernels", "tests") for path in glob.glob(top + "/**", recursive=True)
                  if os.path.isfile(path) and path != os.path.relpath(__file__)),
            words(glob.glob("build/include/*/*.h")))


def wrong_names(everywhere, installed):
    for page in ["README.md", *sorted(glob.glob("chapters/*.md"))]:
        for number, code in spans(page):
            for name in NAME.findall(code):
                if name not in everywhere and page not in PAST:
                    yield f"{page}:{number}: {name} is nowhere in the sources"
                elif page == "README.md" and name not in installed:
                    yield f"{page}:{number}: no installed header has {name}"


def wrong_fields(build):
    """Compiles each field as a statement, with each struct that may be meant; one must have it."""
    lines = [(page, number, *FIELD.match(code).groups()) for page in API for number, code in spans(page)
             if FIELD.match(code)]
    mpi = subprocess.run(["mpicc", "--showme:compile"], capture_output=True, text=True, check=True).stdout.split()
    refused = [set() for _ in lines]
    rounds = max(map(len, STRUCTS.values()))
    source = os.path.join(build, "snippets.c")
    for turn in range(rounds):
        with open(source, "w", encoding="utf-8") as file:
            # ring_attention_cuda.h wants the toolkit's headers, which not every machine has.
            file.write("#include <ring_attention_model.h>\n#include <ring_attention_threads.h>\n"
                       "const struct ra_backend *ra_cuda(void);\n")
            for index, (_, _, name, field, value) in enumerate(lines):
                struct = STRUCTS[name][turn % len(STRUCTS[name])]
                what = f"{name}.{field} = {value}" if value else f"(void)&{name}.{field}"
                file.write(f'# {index + 1} "snippet"\nvoid f{index}(struct {struct} {name}) {{ {what}; }}\n')
        job = subprocess.run(["gcc", "-std=c11", "-fsyntax-only", "-fmax-errors=0", "-Wno-missing-prototypes",
                              f"-I{build}/include/ringattn", f"-I{build}/include/ringattn_model", *mpi,
                              source], capture_output=True, text=True)
        bad = {int(line) for line in re.findall(r"^snippet:(\d+):\d+: error", job.stderr, re.MULTILINE)}
        if job.returncode and not bad:
            yield job.stderr
        for index in range(len(lines)):
            if index + 1 in bad:
                refused[index].add(turn)
    for (page, number, name, field, value), turns in zip(lines, refused):
        if len(turns) == rounds:
            yield f"{page}:{number}: {name}.{field}{' = ' + value if value else ''} does not compile"
    print(f"{len(lines)} fields")


def compiles(build):
    """What is wrong with README's piece of a program."""
    with open("README.md", encoding="utf-8") as file:
        piece = re.search(r"^```C\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)[1]
    source = os.path.join(build, "snippets-readme.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write("#include <ring_attention_mpi.h>\nvoid a_rank(float *q, char error[RA_ERROR_SIZE]);\n"
                   "void a_rank(float *q, char error[RA_ERROR_SIZE])\n{\n" + piece + "}\n")
    mpi = subprocess.run(["mpicc", "--showme:compile"], capture_output=True, text=True, check=True).stdout.split()
    return subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                           f"-I{build}/include/ringattn", *mpi, source], capture_output=True, text=True).stderr


def table():
    """The right column of page 10c's table."""
    with open("chapters/10c-weights.md", encoding="utf-8") as file:
        rows = re.search(r"## Moving over from ring-attention-pytorch\n.*?\n(\|.*?)\n\n", file.read(), re.DOTALL)[1]
    return [code for row in rows.split("\n")[2:] for code in re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1])]


# A training that takes as long as a test may.
SMALL = " --dim 32 --depth 1 --heads 2 --dim-head 16 --tokens 64 --steps 3 "


def run_commands(build):
    """Runs them in a folder of their own: each command, and what is wrong. DATA is a text."""
    work = os.path.abspath(os.path.join(build, "snippets"))
    folders.begin(work)
    shutil.copytree("tests/fixtures/causal-gqa", os.path.join(work, "FOLDER"))
    with open(os.path.join(work, "DATA"), "w", encoding="utf-8") as data:
        data.write("A sequence that is too long for one machine. " * 2000)
    os.symlink(os.path.abspath(build), os.path.join(work, "build"))
    os.symlink(os.path.abspath("tests"), os.path.join(work, "tests"))
    says = subprocess.run([os.path.join(build, "10-transformer"), "--help"], capture_output=True, text=True,
                          check=True).stdout
    for code in table():
        if code.startswith("--"):
            flag = code.split()[0]
            yield code, "" if re.search(rf"{flag}\b", says) else "no flag of 10-transformer"
        elif re.match(r"(build/|mpirun |/usr/bin/)", code):
            command = code.replace(" train DATA MODEL", f" train{SMALL}DATA TRAINED")
            job = subprocess.run(command, shell=True, cwd=work, capture_output=True, text=True, timeout=300,
                                 stdin=subprocess.DEVNULL,
                                 env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMP_WAIT_POLICY": "passive",
                                      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
            yield code, "" if job.returncode == 0 else f"exit status {job.returncode}: {job.stderr}"


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    build, passed, failed = sys.argv[1], 0, 0

    def judge(what, wrong):
        nonlocal passed, failed
        passed, failed = passed + (not wrong), failed + bool(wrong)
        print(f"{'FAILED' if wrong else 'passed'}  {what}" + (f":\n{wrong}" if wrong else ""), flush=True)

    judge("names", "\n".join(wrong_names(*known_names())))
    judge("fields", "\n".join(wrong_fields(build)))
    judge("README's piece of a program", compiles(build))
    count = 0
    for code, wrong in run_commands(build):
        judge(code, wrong)
        count += 1
    judge("page 10c's table has commands", "" if count >= 7 else f"{count} were found")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
