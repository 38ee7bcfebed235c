#!/usr/bin/env python3
"""manual: a manual page of every program of src, made of what it prints with --help.

    manual.py           writes them to build/man; then `man -M build/man 05-striped` shows one
    manual.py --check   writes them to build/man-check; fails if a page lacks a section or one of
                        the flags, or if mandoc or groff has anything to say about it

A page can say no more than --help says, so both come from one table of options. Programs that are
not built (11-cuda needs nvcc) have no page.
"""
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time

RIG = ("problem", "compare", "grid", "figure", "weave", "bench-host", "bench-decode", "overhead", "peak")
SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO")
FLAG = re.compile(r"  --(\S+) +(?:([A-Z][A-Z,.]*) +)?(.*)")


def plain(text):
    """Text as roff wants it: hyphens that are typed, and no line that looks like a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def filled(text):
    return plain("\n".join(textwrap.wrap(text, 70, break_on_hyphens=False))) + "\n"


def as_it_is(block):
    lines = "\n".join(line[2:] for line in block.split("\n"))
    return f".RS 4\n.nf\n{plain(lines)}\n.fi\n.RE\n"


def entry(tag, text):
    return f".TP\n{tag}\n" + filled(text)


def said(*words):
    return subprocess.run(words, check=True, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL).stdout.rstrip("\n")


def help_of(*words):
    return said(*words, "--help")


def version():
    return re.search(r'RA_VERSION "(.*)"', open("src/ra_version.h").read())[1]


def wrong_answers(program):
    """What is wrong with what a program says to -h and --version."""
    path = f"build/{program}"
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


def write_page(program, number, programs, folder):
    """Writes the page of a program, and returns it with the flags that it has to name."""
    usage, about, *blocks = help_of(f"build/{program}").split("\n\n")
    changed = os.path.getmtime(f"src/{program.replace('-', '_')}.c")
    day = time.strftime("%F", time.localtime(changed))
    parts = {name: "" for name in ("DESCRIPTION", "COMMANDS", "OPTIONS", "FILES", "EXIT STATUS",
                                   "EXAMPLES", "NOTES")}
    parts["DESCRIPTION"] = filled(about)
    commands, flags = {}, []
    for block in blocks:
        head, _, rest = block.partition("\n")
        if head == "Commands:":
            for line in rest.split("\n"):
                name, arguments, text = line[2:10].strip(), line[11:25].strip(), line[26:]
                own = help_of(f"build/{program}", name)
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

    page = f'.TH {plain(program.upper())} 1 {day} "ringattn {version()}" "Ring attention in C"\n'
    name = filled(f"{program} @ {about[0].lower()}{about[1:].rstrip('.')}").replace("@", "\\-", 1)
    page += ".SH NAME\n" + name
    page += ".SH SYNOPSIS\n.nf\n" + plain(re.sub(r"(?m)^(Usage:)? +", "", usage)) + "\n.fi\n"
    page += "".join(f'.SH "{name}"\n{text}' for name, text in parts.items() if text)
    others = [programs[at] for at in (number - 1, number + 1) if 0 <= at < len(programs)]
    page += ".SH SEE ALSO\n" + "".join(f".BR {plain(other)} (1),\n" for other in others)
    page += f".IR {plain(f'chapters/{program}.md')}\n"
    with open(f"{folder}/{program}.1", "w") as file:
        file.write(page)
    return page, flags


def complaints(path, page, flags):
    """What is wrong with a page."""
    wrong = [f"no {name}" for name in SECTIONS if not re.search(f'(?m)^.SH "?{name}', page)]
    wrong += [f"no --{flag}" for flag in flags if f"\\-\\-{plain(flag)}\\fR" not in page]
    wrong += [] if flags else ["no flags"]
    for words in (["mandoc", "-T", "lint", path], ["groff", "-man", "-ww", "-z", path]):
        if shutil.which(words[0]):
            job = subprocess.run(words, text=True, capture_output=True)
            said = job.stdout + job.stderr
            wrong += [said] if said or job.returncode else []
    return wrong


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    folder = "build/man-check/man1" if check else "build/man/man1"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    sources = sorted(name for name in os.listdir("src") if name[0].isdigit())
    programs = [name[:-2].replace("_", "-") for name in sources]
    programs = [name for name in programs if os.path.exists(f"build/{name}")]
    failed = 0
    for number, program in enumerate(programs):
        page, flags = write_page(program, number, programs, folder)
        wrong = complaints(f"{folder}/{program}.1", page, flags) + wrong_answers(program) if check else []
        failed += bool(wrong)
        for text in wrong:
            print(f"FAILED {program}: {text}")
    if not check:
        print("to read one: man -M build/man 05-striped")
        return
    for program in RIG:
        wrong = wrong_answers(program)
        failed += bool(wrong)
        print("".join(f"FAILED {program}: {text}\n" for text in wrong), end="")
    if not any(map(shutil.which, ("mandoc", "groff"))):
        print("skipped the syntax of manual pages: there is neither mandoc nor groff")
    print(f"{len(programs) + len(RIG) - failed} passed, {failed} failed")
    sys.exit(failed > 0 or len(programs) < 11)


if __name__ == "__main__":
    main()
