#!/usr/bin/env python3
"""manual: a manual page of every program, made of what it prints with --help, and of every function of
the installed headers, made of the paragraph that declares it there.

    manual.py [programs] [functions]
                        writes these, or both, to build/man; then `man -M build/man 05-striped` shows one
    manual.py --check   writes them to build/man-check; fails if a page lacks a section or one of
                        the flags, or if mandoc or groff has anything to say about it; or if the table
                        of page 10e lacks a function of libringattn_model, or has one twice

A page can say no more than --help or the header says. Programs that are not built (11-cuda needs nvcc)
have no page. Those in build/bin, which are installed, have one under that name as well.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

sys.dont_write_bytecode = True  # nothing that is built lies outside build
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "rig"))
import folders
import jobs

RIG = ("problem", "compare", "grid", "figure", "weave", "bench-host", "bench-decode", "overhead", "peak")
SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO")
FLAG = re.compile(r"  --(\S+) +(?:([A-Z][A-Z,.]*) +)?(.*)")


def plain(text):
    """Text as roff wants it: hyphens that are typed, and no line that looks like a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def filled(text):
    return plain("\n".join(textwrap.wrap(text, 70, break_on_hyphens=False))) + "\n"


def titled(names, about):
    """The line of a page's NAME: with a dash that is none of the names'."""
    return filled(f"{names} @ {about[0].lower()}{about[1:]}").replace("@", "\\-", 1)


def as_it_is(block):
    lines = "\n".join(line[2:] for line in block.split("\n"))
    return f".RS 4\n.nf\n{plain(lines)}\n.fi\n.RE\n"


def entry(tag, text):
    return f".TP\n{tag}\n" + filled(text)


scratch = tempfile.TemporaryDirectory()


def said(*words):
    return subprocess.run(jobs.alone(scratch.name, *words), check=True, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL).stdout.rstrip("\n")


def help_of(*words):
    return said(*words, "--help")


def version():
    return re.search(r'RA_VERSION "(.*)"', open("src/ra_version.h").read())[1]


def wrong_answers(path):
    """What is wrong with what a program says to -h and --version."""
    program = os.path.basename(path)
    wrong = [] if said(path, "-h") == help_of(path) else ["-h is not --help"]
    return wrong + ([] if said(path, "--version") == f"{program} (ringattn) {version()}" else ["--version"])


def options(block, commands):
    """Every flag of a block of --help, with its commands unless all have it."""
    page = ""
    for name, value, text in FLAG.findall(block):
        tag = plain(f"\\fB--{name}\\fR".replace("\\f", "\0")).replace("\0", "\\f")
        having = [command for command, flags in commands.items() if name in flags]
        if len(having) < len(commands):
            text += f". Of {', '.join(having)}"
        page += entry(tag + (f" \\fI{value}\\fR" if value else ""), text + ".")
    return page


def files(block):
    """Lines such as "PROBLEM is a folder of", each with what stands indented below it."""
    page = ""
    for line in block.split("\n"):
        name, _, text = line.partition(" ")
        page += entry(f".I {name}", text) if name else ".br\n" + filled(line.strip())
    return page


def day(path):
    return time.strftime("%F", time.localtime(os.path.getmtime(path)))


def write(path, page):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(page)


def write_page(path, others, folder):
    """Writes the page of a program, and returns it with the flags that it has to name."""
    program = os.path.basename(path)
    usage, about, *blocks = help_of(path).split("\n\n")
    parts = {name: "" for name in ("DESCRIPTION", "COMMANDS", "OPTIONS", "FILES", "EXIT STATUS",
                                   "EXAMPLES", "NOTES")}
    parts["DESCRIPTION"] = filled(about)
    commands, flags = {}, []
    for block in blocks:
        head, _, rest = block.partition("\n")
        if head == "Commands:":
            for line in rest.split("\n"):
                name, arguments, text = line[2:10].strip(), line[11:25].strip(), line[26:]
                own = help_of(path, name)
                commands[name] = {flag[0] for flag in FLAG.findall(own)}
                parts["COMMANDS"] += entry(f"\\fB{name}\\fR \\fI{arguments}\\fR", text + ".")
        elif head == "Flags:":
            flags = [flag[0] for flag in FLAG.findall(rest)]
            parts["OPTIONS"] = options(rest, commands)
        elif re.match(r"[A-Z]+ is ", block):
            parts["FILES"] += files(block)
        elif flags:
            parts["NOTES"] += filled(head) + ".PP\n" + as_it_is(rest)
        elif block.startswith("  "):
            parts["EXAMPLES"] += (".PP\n" if parts["EXAMPLES"] else "") + as_it_is(block)
        else:
            block = " ".join(block.split("\n"))
            codes = re.search(r" ?Exit code: (.*?)\.", block)
            before = re.search(r" ?([^.]*For example.*:)$", block)
            for code in codes[1].split(", ") if codes else ():
                parts["EXIT STATUS"] += entry(f".B {code[0]}", code[2:] + ".")
            if before:
                parts["EXAMPLES"] = filled(before[1])
            for found in filter(None, (codes, before)):
                block = block.replace(found[0], "")
            if block.strip():
                parts["DESCRIPTION"] += ".PP\n" + filled(block)

    page = f'.TH {plain(program.upper())} 1 {day(path)} "ringattn {version()}" "Ring attention in C"\n'
    page += ".SH NAME\n" + titled(program, about.rstrip("."))
    page += ".SH SYNOPSIS\n.nf\n" + plain(re.sub(r"(?m)^(Usage:)? +", "", usage)) + "\n.fi\n"
    page += "".join(f'.SH "{name}"\n{text}' for name, text in parts.items() if text)
    page += ".SH SEE ALSO\n" + ",\n".join(f".{kind} {plain(other)}" for kind, other in others) + "\n"
    write(f"{folder}/man1/{program}.1", page)
    return page, flags


# A paragraph of a header: a comment, and what it is about, to the next blank line that is not inside braces.
PARAGRAPH = re.compile(r"^/\*((?:(?!\*/).)*)\*/\n(?=\S)(.+?\n)(?=\n(?:\S|$))", re.M | re.S)
FUNCTION = re.compile(r"^[a-zA-Z][^;{}()]*?\b(ra_\w+)\(", re.M)
TAG = re.compile(r"^(?:struct|enum) (ra_\w+)(?= \{|;)", re.M)


def write_functions(header, folder):
    """Writes a page for each paragraph of a header that declares something, under its first name; and for its other
    names one that leads there. Returns all names."""
    text, names = open(header).read(), []
    for comment, code in PARAGRAPH.findall(text):
        declared = list(dict.fromkeys(FUNCTION.findall(code) + TAG.findall(code)))
        if not declared:
            continue
        paragraphs = [" ".join(part.split()) for part in re.sub(r"\n ?\*", "\n", comment).split("\n\n")]
        first = re.split(r"(?<=[a-z)])[.:;](?= |$)", paragraphs[0])[0]
        write(f"{folder}/man3/{declared[0]}.3",
              f'.TH {plain(declared[0].upper())} 3 {day(header)} "ringattn {version()}" "Ring attention in C"\n'
              f".SH NAME\n{titled(', '.join(declared), first)}"
              f".SH SYNOPSIS\n.nf\n#include <{os.path.basename(header)}>\n\n{plain(code.rstrip())}\n.fi\n"
              ".SH DESCRIPTION\n" + ".PP\n".join(filled(part) for part in paragraphs) +
              ".SH SEE ALSO\n.BR ringattn (3)\n")
        for other in declared[1:]:
            write(f"{folder}/man3/{other}.3", f".so man3/{declared[0]}.3\n")
        names += declared
    return names


def functions(header):
    """The functions that a header declares."""
    with open(header, encoding="utf-8") as file:
        return FUNCTION.findall(re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S))


def wrong_index(page="chapters/10e-reference.md"):
    """What the table of all functions of libringattn_model lacks, has twice, or has although there is none such."""
    with open(page, encoding="utf-8") as file:
        table = re.search(r"(?ms)^## Every function$(.*?)^## ", file.read())[1]
    named = re.findall(r"`(ra_\w+)`", "\n".join(re.findall(r"(?m)^\| (`ra_\w+`(?:, `ra_\w+`)*) \| .* \| .* \|$", table)))
    declared = [name for header in sorted(glob.glob("build/include/ringattn_model/*.h")) for name in functions(header)]
    return ([f"{page}: the table of every function lacks {name}" for name in declared if name not in named] +
            [f"{page}: the table of every function has {name}, which no header of libringattn_model has"
             for name in named if name not in declared] +
            [f"{page}: the table of every function has {name} twice" for name in set(named) if named.count(name) > 1])


def lint(paths):
    """What mandoc and groff say about pages."""
    wrong = []
    for words in (["mandoc", "-T", "lint", *paths], ["groff", "-man", "-ww", "-z", *paths]):
        if shutil.which(words[0]):
            job = subprocess.run(words, text=True, capture_output=True)
            said = job.stdout + job.stderr
            wrong += [said] if said or job.returncode else []
    return wrong


def complaints(page, flags):
    """What a page lacks."""
    wrong = [f"no {name}" for name in SECTIONS if not re.search(f'(?m)^.SH "?{name}', page)]
    wrong += [f"no --{flag}" for flag in flags if f"\\-\\-{plain(flag)}\\fR" not in page]
    return wrong + ([] if flags else ["no flags"])


def write_programs(folder):
    """Returns each program's path, its page, and the flags that the page has to name."""
    sources = sorted(name for name in os.listdir("src") if name[0].isdigit())
    stages = [name[:-2].replace("_", "-") for name in sources]
    stages = [name for name in stages if os.path.exists(f"build/{name}")]
    installed = sorted(os.listdir("build/bin"))
    pages = []
    for number, stage in enumerate(stages):
        others = [("BR", f"{stages[at]} (1)") for at in (number - 1, number + 1) if 0 <= at < len(stages)]
        pages.append((f"build/{stage}", others + [("IR", f"chapters/{stage}.md")]))
    for name in installed:
        others = [("BR", f"{other} (1)") for other in installed if other != name]
        pages.append((f"build/bin/{name}", others + [("BR", "ringattn (3)")]))
    return [(path, *write_page(path, others, folder)) for path, others in pages]


def write_headers(folder):
    headers = glob.glob("build/include/ringattn*/*.h") + ["src/cuda/ring_attention_cuda.h"]
    return [name for header in sorted(headers) for name in write_functions(header, folder)]


def main():
    parts = sys.argv[1:] or ["programs", "functions"]
    if parts != ["--check"]:
        if set(parts) - {"programs", "functions"}:
            sys.exit(__doc__)
        for part, section, make in (("programs", 1, write_programs), ("functions", 3, write_headers)):
            if part in parts:
                shutil.rmtree(f"build/man/man{section}", ignore_errors=True)
                make("build/man")
        return
    folder = "build/man-check"
    folders.begin(folder)
    written, names = write_programs(folder), write_headers(folder)
    wrong = [f"{path}: {text}" for path, page, flags in written for text in complaints(page, flags)]
    programs = [path for path, *_ in written] + [f"build/{name}" for name in RIG]
    wrong += [f"{path}: {text}" for path in programs for text in wrong_answers(path)]
    wrong += [f"{name} is declared twice" for name in set(names) if names.count(name) > 1]
    wrong += wrong_index()
    wrong += lint([f"{folder}/man1/{os.path.basename(path)}.1" for path, *_ in written] +
                  [path for path in glob.glob(f"{folder}/man3/*") if not open(path).read().startswith(".so ")])
    for text in wrong:
        print("FAILED", text)
    if not any(map(shutil.which, ("mandoc", "groff"))):
        print("skipped the syntax of manual pages: there is neither mandoc nor groff")
    print(f"{len(programs) + len(names) - len(wrong)} passed, {len(wrong)} failed")
    sys.exit(bool(wrong) or len(programs) < 20 or len(names) < 100)


if __name__ == "__main__":
    main()
