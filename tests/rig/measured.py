"""measured: keeps the measured numbers of the pages equal to those of the CSV files in chapters/img.

    python3 tests/rig/measured.py PAGE...            renews the numbers in the pages
    python3 tests/rig/measured.py --check PAGE...    changes nothing; fails, with page and line, where a page says
                                                     something else than the data
    python3 tests/rig/measured.py --sum FILE...      a checksum of sources, and of what they include beside them,
                                                     without comments, blanks and line breaks
    python3 tests/rig/measured.py --origin GPUS COMMAND [SOURCE...] [FILE.csv]
                                                     the lines with which a file begins that COMMAND has just measured
                                                     on so many GPUs of this machine, or on its processors (0). Lines
                                                     of FILE.csv stay in it. Where there is no git, RA_COMMIT names the
                                                     commit

A comment says where the numbers of the table below it are from:

    <!-- numbers 11-sdpa.csv k07 forward: cuDNN @ full, causal | ours @ full, causal -->

Before the colon are a file and *keys*: cells that a row of the file must have; write the column, too, if they have no
letters (rows=1024), and quotes if they have spaces. After it are the cells of a row with numbers, separated by |, and
for each number of a cell an expression, separated by ;. More keys follow an @, and a comma begins another number with
the same expression and other keys. Cells to the left of these are the author's. They are keys of their row, unless a
comment in them gives others, <!-- 1x16x16k d128 -->; an empty one means the cell above it. An expression has

    + - * / ( ) and numbers
    ours, ours[full]             a column of the row; of the row with these keys, too
    least[KEYS](...), most, mean over all rows with these keys that have such numbers

In running text, and where a table has it, each number is named, in the order of the text:

    <!-- numbers 11-sdpa.csv k07 causal: 651 = ours @ forward; 550 = ours @ backward -->

The text below the comment is renewed, and so is the number in it. A number keeps its format: so many decimals, and a
sign or none. What renews a number prints it, since a sentence with another number may not be true any more.

A file says of itself, in lines such as `# card: NVIDIA H200` before its first row, card, driver, date, commit and
command; and which sources were measured, and their checksum. <!-- from 11-sdpa.csv --> writes the paragraph below it
anew from these lines. It says so if the sources have changed since: then a page is honest, and nobody has to measure
before a kernel can be changed. The check fails only if the page does not say it.
"""
import csv
import datetime
import os
import re
import shlex
import subprocess
import sys
import textwrap
import zlib

IMAGES = "chapters/img"
# What is no text: math, code, comments. And a number that is no part of a word.
HIDDEN = re.compile(r"\$[^$]*\$|`[^`]*`|<!--.*?-->")
NUMBER = re.compile(r"(?:([−+])( ?))?(?<!\w)(?<!\w-)(\d+(?:,\d{3})*(\.\d+)?)(?!\w)")
NAME = re.compile(r"(least|most|mean)(?:\[([^]]*)\])?\(|([A-Za-z_]\w*)(?:\[([^]]*)\])?")


class Wrong(Exception):
    """What is wrong with a comment, or with the number that it asks for."""


class Missing(Exception):
    """The data do not have this number."""


class Data:
    """A CSV file: what it says of itself, and its rows by column."""
    files = {}

    def __init__(self, name):
        try:
            with open(f"{IMAGES}/{name}") as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise Wrong(f"{IMAGES}/{name}: {error.strerror}") from error
        self.name = name
        self.said = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
        self.rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))

    @classmethod
    def of(cls, name):
        cls.files[name] = cls.files.get(name) or cls(name)
        return cls.files[name]

    def where(self, keys):
        """The rows with all these keys."""
        def has(row, key):
            column, equals, value = key.partition("=")
            if equals and column in row:
                return row[column] == value
            if not re.search("[A-Za-z]", key):
                raise Wrong(f"say which column has to be {key}, as in rows={key}")
            return key in row.values()
        return [row for row in self.rows if all(has(row, key) for key in keys)]

    def is_old(self):
        """Whether the sources are not those that were measured, as far as is known."""
        return "sources" in self.said and self.said.get("sum") != sum_of(self.said["sources"].split())

    def origin(self, page):
        """A sentence, for readers."""
        for name in ("card", "date", "commit", "command"):
            if name not in self.said:
                raise Wrong(f"{self.name} does not begin with a line '# {name}: '")
        path = os.path.relpath(f"{IMAGES}/{self.name}", os.path.dirname(page))
        driver = f", driver {self.said['driver']}" if "driver" in self.said else ""
        changed = " Some lines are older." if "older" in self.said else ""
        if self.is_old():
            noted = self.said.get("sum", "not noted") != "not noted"
            changed += f" The code {'has' if noted else 'may have'} changed since."
        return (f"([{self.name}]({path}): {self.said['card']}{driver}; {self.said['date']}, commit "
                f"{self.said['commit']}.{changed})")


def sum_of(paths):
    """The checksum of sources, eight digits."""
    sources, number = {}, 0

    def add(path):
        if path in sources or not os.path.exists(path):
            return
        with open(path) as file:
            sources[path] = file.read()
        for name in re.findall(r'^#include "([^"]+)"', sources[path], re.M):
            add(os.path.join(os.path.dirname(path), name))
    for path in paths:
        if not os.path.exists(path):
            return "gone"
        add(path)
    for path in sorted(sources):
        code = re.sub(r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*', r"\1", sources[path], flags=re.S)
        number = zlib.crc32("".join(code.split()).encode(), number)
    return f"{number:08x}"


def answer(*command):
    """What a program prints, by line; nothing if there is no such program, or if it fails."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=False)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def print_origin(gpus, command, sources):
    kept = Data(sources.pop()).said if sources and sources[-1].endswith(".csv") else {}
    if gpus:
        cards = answer("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
        if len(cards) < gpus:
            sys.exit(f"measured: nvidia-smi names {len(cards)} GPUs, not {gpus}")
        name, driver = cards[0].split(", ")
        print(f"# card: {gpus} x {name}\n# driver: {driver}")
    else:
        with open("/proc/cpuinfo") as file:
            names = re.findall(r"^model name\s*: (.*)", file.read(), re.M) or ["not known"]
        print(f"# card: {len(os.sched_getaffinity(0))} processors, {names[0]}")
    commit = answer("git", "rev-parse", "--short", "HEAD")
    changed = " and changes" if answer("git", "status", "--porcelain", "--untracked-files=no", "src", "kernels") else ""
    print(f"# date: {datetime.date.today()}")
    print(f"# commit: {os.environ.get('RA_COMMIT') or (commit[0] + changed if commit else 'not noted')}")
    print(f"# command: {command}")
    if kept:
        older = [kept.get("older"), ", ".join(kept[name] for name in ("card", "date", "commit"))]
        print(f"# older: {'; '.join(filter(None, older))}")
    if sources:
        print(f"# sources: {' '.join(sources)}\n# sum: {sum_of(sources)}")


def keys_of(text, base=()):
    """The keys in a text, behind others; of several files the last one counts."""
    try:
        return (*base, *shlex.split(text))
    except ValueError as error:
        raise Wrong(f"{text}: {error}") from error


def evaluate(expression, keys, row=None):
    """A number, from the row with these keys, or from this one."""
    def number_of(name, more):
        files = [key for key in (*keys, *more) if key.endswith(".csv")]
        if not files:
            raise Wrong(f"which file has {name}?")
        data = Data.of(files[-1])
        asked = [key for key in (*keys, *more) if not key.endswith(".csv")]
        rows = [row] if row and not more else data.where(asked)
        if len(rows) > 1:
            raise Wrong(f"{data.name} has {len(rows)} rows with {' '.join(asked)}: give more keys")
        if data.rows and name not in data.rows[0]:
            raise Wrong(f"{data.name} has no column {name}")
        if not rows or rows[0][name] in ("", "-"):
            raise Missing(f"{data.name} has no {name} with {' '.join(asked)}")
        return float(rows[0][name])

    def over(how, more, inner):
        data = Data.of([key for key in (*keys, *more) if key.endswith(".csv")][-1])
        asked = [key for key in (*keys, *more) if not key.endswith(".csv")]
        numbers = []
        for one in data.where(asked):
            try:
                numbers.append(evaluate(inner, (*asked, data.name), one))
            except Missing:
                pass
        if not numbers:
            raise Missing(f"{data.name} has no {inner} with {' '.join(asked)}")
        return {"least": min, "most": max, "mean": lambda all: sum(all) / len(all)}[how](numbers)

    def value(text):
        """The text with a number in place of each name."""
        done, at = "", 0
        while match := NAME.search(text, at):
            done += text[at:match.start()]
            at = match.end()
            if match[1]:
                depth = 1
                while depth and at < len(text):
                    depth += {"(": 1, ")": -1}.get(text[at], 0)
                    at += 1
                done += f"({over(match[1], keys_of(match[2] or ''), text[match.end():at - 1])!r})"
            else:
                done += f"({number_of(match[3], keys_of(match[4] or ''))!r})"
        return done + text[at:]

    numbers = value(expression)
    try:
        if not re.fullmatch(r"[\d.e+*/() -]+", numbers):
            raise SyntaxError
        return eval(numbers)  # pylint: disable=eval-used
    except (SyntaxError, ArithmeticError) as error:
        raise Wrong(f"this is no expression: {expression}") from error


def numbers_of(text, base):
    """The (expression, keys) of each number of a cell, or of one number of a text."""
    for part in text.split(";"):
        expression, _, keys = part.partition("@")
        for more in keys.split(","):
            yield expression.strip(), keys_of(more, base)


def written(number, like):
    """A number in the format of another, a match of NUMBER."""
    sign, space, _, decimals = like.groups()
    digits = f"{abs(number):,.{len(decimals or '.') - 1}f}"
    minus = number < 0 and re.search("[1-9]", digits)
    plus = "+" if sign == "+" or space else ""
    return ("−" if minus else plus) + (space or "") + digits


def shown(text):
    """The text with what is no text painted over."""
    return HIDDEN.sub(lambda match: " " * len(match[0]), text)


class Page:
    """A page, as it should be; `problems` are where it is not."""

    def __init__(self, path):
        self.path, self.problems, self.renewed, self.count = path, [], [], 0
        with open(path) as file:
            self.old = file.read()
        self.lines = self.old.splitlines(keepends=True)
        at, fence = 0, None
        while at < len(self.lines):
            line = self.lines[at]
            ticks = re.match(r"\s*(`{3,})", line)
            if fence:
                fence = None if line.strip() == fence else fence
            elif ticks:
                fence = ticks[1]
            elif match := re.match("<!-- (numbers|from) ", line):
                at = self.comment(at, match)
                continue
            at += 1

    def problem(self, line, text):
        self.problems.append(f"{self.path}:{line + 1}: {text}")

    def comment(self, first, match):
        """Renews what is below a comment. Returns the line behind it."""
        last = first
        while "-->" not in self.lines[last]:
            last += 1
        begin = last + 1
        while begin < len(self.lines) and not self.lines[begin].strip():
            begin += 1
        end = begin
        while end < len(self.lines) and self.lines[end].strip():
            end += 1
        said = "".join(self.lines[first:last + 1])[match.end():].split("-->")[0]
        try:
            if match[1] == "from":
                self.from_file(said.strip(), begin, end)
                return min(end, len(self.lines))
            base, _, body = said.partition(":")
            if re.match(r"\s*[^@|;\[]*=", body):
                self.named(first, last, begin, end, body, keys_of(base))
            else:
                self.table(begin, end, body, keys_of(base))
        except Wrong as error:
            self.problem(first, error)
        return end

    def from_file(self, name, begin, end):
        if begin < end and not self.lines[begin].startswith("("):
            raise Wrong("below this comment must be the line that it writes, or, the first time, ()")
        right = textwrap.fill(Data.of(name).origin(self.path), 119, break_long_words=False, break_on_hyphens=False) + "\n"
        if (old := "".join(self.lines[begin:end])) != right:
            self.renewed.append((begin, old.strip(), right.strip()))
            # As many lines as before, so that the others keep their numbers.
            self.lines[begin:end] = [right, *[""] * (end - begin - 1)]

    def number(self, line, old, expression, keys):
        """The text for one number, a match of NUMBER."""
        self.count += 1
        new = written(evaluate(expression, keys), old)
        if new != old[0]:
            self.renewed.append((line, old[0], new))
        return new

    def table(self, begin, end, body, base):
        patterns = body.split("|")
        above = {}
        for at in range(begin + 2, end):
            cells = re.split(r"(?<!\\)\|", self.lines[at].rstrip("\n"))[1:-1]
            labels = len(cells) - len(patterns)
            if labels < 0 or not self.lines[at].startswith("|"):
                raise Wrong(f"{len(patterns)} cells are to have numbers, and the table below has {len(cells)}")
            keys = base
            for i in range(labels):
                comment = re.search("<!--(.*?)-->", cells[i])
                if comment or cells[i].strip():
                    above[i] = keys_of(comment[1]) if comment else (cells[i].strip(),)
                keys += above.get(i, ())
            for i, pattern in enumerate(patterns):
                cells[labels + i] = self.cell(at, cells[labels + i], pattern, keys)
            self.lines[at] = f"|{'|'.join(cells)}|\n"

    def cell(self, line, cell, pattern, keys):
        """A cell of a table, renewed. What the data do not have the cell does not have either."""
        done, at, why = "", 0, f"more numbers than {pattern.strip()}"
        for expression, all_keys in numbers_of(pattern, keys) if pattern.strip() else ():
            old = NUMBER.search(shown(cell), at)
            try:
                if old:
                    new = self.number(line, old, expression, all_keys)
                    done += cell[at:old.start()] + new
                    at = old.end()
                else:
                    raise Wrong(f"a number is missing in '{cell.strip()}': {evaluate(expression, all_keys):g}")
            except Missing as error:
                why = error
            except Wrong as error:
                self.problem(line, error)
                return cell
        if pattern.strip() and NUMBER.search(shown(cell), at):
            self.problem(line, f"'{cell.strip()}': {why}")
        return done + cell[at:]

    def named(self, first, last, begin, end, body, base):
        comment, text = "".join(self.lines[first:last + 1]), "".join(self.lines[begin:end])
        # Where the body begins in the comment, and the text behind the last number.
        here, at, done = comment.index(":") + 1, 0, ""
        parts = body.split(";")
        for part in parts:
            number, _, expression = part.partition("=")
            old = NUMBER.fullmatch(number.strip())
            there = old and re.compile(rf"(?<![\w.]){re.escape(old[0])}(?!\w|[.,]\d)").search(shown(text), at)
            if not there:
                raise Wrong(f"the text below has no '{number.strip()}' behind the numbers before it")
            (expression, keys), = numbers_of(expression, base)
            try:
                new = self.number(begin + text[:there.start()].count("\n"), old, expression, keys)
            except Missing as error:
                raise Wrong(error) from error
            done += text[at:there.start()] + new
            at = there.end()
            right = part.replace(old[0], new, 1)
            comment = comment[:here] + right + comment[here + len(part):]
            here += len(right) + 1
        self.lines[first:last + 1] = comment.splitlines(keepends=True)
        self.lines[begin:end] = (done + text[at:]).splitlines(keepends=True)


def main(words):
    if words[:1] == ["--sum"]:
        return print(sum_of(words[1:]))
    if words[:1] == ["--origin"] and len(words) > 2:
        return print_origin(int(words[1]), words[2], words[3:])
    check = words[:1] == ["--check"]
    paths = words[check:]
    if not paths or any(path.startswith("-") for path in paths):
        sys.exit(__doc__)
    pages = [Page(path) for path in paths]
    problems = [problem for page in pages for problem in page.problems]
    for page in pages:
        for line, old, new in page.renewed:
            text = f"the page says {old}, the data {new}" if check else f"{old} is now {new}"
            (problems.append if check else print)(f"{page.path}:{line + 1}: {text}")
        if not check and not problems and page.renewed:
            with open(page.path, "w") as file:
                file.write("".join(page.lines))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(f"measured: {len(problems)} to mend; where the data are right, ninja weave renews the pages")
    old = sum(data.is_old() for data in Data.files.values())
    print(f"measured: {sum(page.count for page in pages)} numbers of {len(Data.files)} files, {old} perhaps older "
          "than what they measure")


if __name__ == "__main__":
    main(sys.argv[1:])
