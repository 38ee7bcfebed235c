#!/usr/bin/env python3
"""measured: pages say what the data say. Holds tests/rig/measured.py to that, on a page and data of its own, and then
this book's pages to their data. What it finds ends with a line "N passed, N failed"."""
import glob
import os
import re
import subprocess
import sys
import tempfile

TOOL = os.path.abspath("tests/rig/measured.py")
DATA = """# card: one GPU
# driver: 1.2
# date: 2026-01-02
# commit: abc1234
# command: a command, with a comma
# sources: src/a.cu
# sum: SUM
shape,mask,ours,theirs,rows
1x1,full,651.4,584,1024
1x1,causal,1234.5,-,1024
2x2,full,7,8,2048
"""
PAGE = """# A page

<!-- numbers data.csv: ours @ full, causal | theirs @ full | 100 * (ours / theirs - 1) @ full | ours[full] -->

| shape | ours | theirs | more | |
|---|---|---|---|---|
| one, $D = 5$ <!-- 1x1 --> | 651.4, 1,234 | 584 | + 12 % | 651 |
| 2x2 | 7.00 | 8 | − 12.5 % | `5` 7.0 |

<!-- numbers data.csv: 651 = ours @ 1x1 full;
     7 = least(ours); 1.08 = most[full](ours / theirs) / 1.0330 -->

The k07 and its 7 friends reach 651, or 7 at
least, and 1.08 times.

<!-- from data.csv -->

([data.csv](img/data.csv): one GPU, driver 1.2; 2026-01-02, commit abc1234.)

```
<!-- numbers nothing.csv -->
```
"""
counts = [0, 0]


def judge(passed, name):
    counts[not passed] += 1
    if not passed:
        print(f"FAILED {name}")


def tool(*words):
    done = subprocess.run([sys.executable, TOOL, *words], text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


def put(path, text):
    with open(path, "w") as file:
        file.write(text)


def get(path):
    with open(path) as file:
        return file.read()


def refuses(page, data, message):
    """The check fails with this message, and changes nothing."""
    put("chapters/a.md", page)
    put("chapters/img/data.csv", data)
    code, said = tool("--check", "chapters/a.md")
    judge(code != 0 and message in said and get("chapters/a.md") == page, f"want {message}, not: {said}")


def check_tool():
    os.makedirs("chapters/img")
    os.makedirs("src")
    put("src/b.h", "int b;\n")
    put("src/a.cu", '#include "b.h"\nint a; // a comment\n')
    data = DATA.replace("SUM", tool("--sum", "src/a.cu")[1].strip())
    put("chapters/a.md", PAGE)
    put("chapters/img/data.csv", data)
    judge(tool("--check", "chapters/a.md") == (0, "measured: 12 numbers of 1 files, 0 perhaps older than what they measure\n"), "a page as it should be")

    # A number of the page, in a table and in the text; and of the data.
    refuses(PAGE.replace("651.4, 1", "652.4, 1"), data, "chapters/a.md:7: the page says 652.4, the data 651.4")
    refuses(PAGE.replace("reach 651", "reach 653"), data, "chapters/a.md:10: the text below has no '651'")
    refuses(PAGE.replace("reach 651", "reach 653").replace(" 651 =", " 653 ="), data, "a.md:13: the page says 653, the data 651")
    changed = data.replace("651.4", "700").replace(",8,", ",6.5,")
    refuses(PAGE, changed, "chapters/a.md:14: the page says 1.08, the data 1.16")
    code, said = tool("chapters/a.md")
    judge(code == 0 and "chapters/a.md:13: 651 is now 700" in said, f"what was renewed: {said}")
    page = get("chapters/a.md")
    for text in ("| 700.0, 1,234 | 584 | + 20 % | 700 |", "| 7.00 | 6 | + 7.7 % | `5` 7.0 |", "<!-- numbers data.csv: 700 = ours",
                 "The k07 and its 7 friends reach 700, or 7 at\nleast, and 1.16 times."):
        judge(text in page, f"{text} in {page}")
    judge(tool("--check", "chapters/a.md")[0] == 0, "a page that was renewed")

    # What is asked for in vain.
    refuses(PAGE.replace("<!-- 1x1 -->", "<!-- 3x3 -->"), data, "data.csv has no ours with 3x3 full")
    refuses(PAGE.replace("theirs @ full |", "theirs |"), data, "data.csv has 2 rows with 1x1: give more keys")
    refuses(PAGE.replace("<!-- 1x1 -->", "<!-- 1024 -->"), data, "say which column has to be 1024")
    refuses(PAGE.replace("theirs @ full |", "nobody @ full |"), data, "data.csv has no column nobody")
    refuses(PAGE.replace("data.csv: ours @", "other.csv: ours @"), data, "chapters/img/other.csv: No such file")
    refuses(PAGE.replace("| 7.00 |", "| |"), data, "a number is missing in '': 7")
    refuses(PAGE.replace("| 8 |", "| 8 and 9 |"), data, "'8 and 9': more numbers than theirs @ full")
    refuses(PAGE.replace("100 * (ours", "100 * ours"), data, "this is no expression")
    refuses(PAGE, data.replace("# card: one GPU\n", ""), "data.csv does not begin with a line '# card: '")

    # What was measured: a comment is no change, and no page is written in part.
    put("src/b.h", "/* new */ int\nb;\n")
    judge(tool("--check", "chapters/a.md")[0] != 0, "data without a card")
    put("chapters/img/data.csv", data)
    put("chapters/a.md", PAGE)
    judge(tool("--check", "chapters/a.md")[0] == 0, "a comment in a source")
    put("src/b.h", "int c;\n")
    judge("The code has changed since." in tool("--check", "chapters/a.md")[1], "a source changed")
    judge(tool("chapters/a.md")[0] == 0 and tool("--check", "chapters/a.md")[0] == 0, "a page that says so")
    judge("commit abc1234. The code has changed since.)" in get("chapters/a.md"), "how it says so")


def check_book(pages, home):
    """Every file of measured numbers that a page shows says where it is from."""
    for path in sorted(glob.glob(f"{home}/chapters/img/*.csv")):
        name = os.path.basename(path)
        shown = any(re.search(rf"<!-- (numbers|from) [^>]*\b{re.escape(name)}", page) for page in pages)
        judge(not shown or name == "12-predicted.csv" or all(f"# {word}: " in get(path) for word in ("card", "date", "commit", "command")),
              f"{name} does not say its card, date, commit and command")


def check_list(home):
    """tests/measure makes files that there are, of sources that there are."""
    done = subprocess.run(["sh", "tests/measure", "--list"], text=True, capture_output=True)
    for line in done.stdout.splitlines():
        name, _, sources, _ = line.split("; ", 3)
        judge(os.path.exists(f"{home}/chapters/img/{re.sub('-[24]$', '', name) if 'million' in name else name}.csv"),
              f"tests/measure makes {name}, which no page has")
        judge(all(map(os.path.exists, sources.split())), f"tests/measure: {name}: not all are there: {sources}")
    judge(len(done.stdout.splitlines()) > 20, f"tests/measure --list: {done.stderr}")


def main():
    home = os.getcwd()
    pages = [get(path) for path in ["README.md", *glob.glob("chapters/*.md")]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check_tool()
        os.chdir(home)
    check_book(pages, home)
    check_list(home)
    code, said = tool("--check", "README.md", *sorted(glob.glob("chapters/*.md")))
    judge(code == 0, f"the pages: {said}")
    print(f"{counts[0]} passed, {counts[1]} failed")
    sys.exit(counts[1] > 0)


if __name__ == "__main__":
    main()
