"""answer: puts the functions of one file in the places of those with the same names in copies.

    python3 tests/rig/answer.py ANSWER.c FOLDER

Looks for them in all files of C and CUDA, and headers, below FOLDER. A function that none of them has goes before the next one
of the answer, with its comment.
"""
import glob
import re
import sys

function = re.compile(r'^\w[^\n;]*?\b(\w+)\([^;{}]*\)\n\{\n.*?^\}\n', re.M | re.S)


def main():
    answer, folder = sys.argv[1:]
    copies = {path: open(path).read() for kind in ('[ch]', 'cu')
              for path in glob.glob(f'{folder}/**/*.{kind}', recursive=True)}
    text, start, new = open(answer).read(), 0, ''
    for found in function.finditer(text):
        places = [(path, old) for path, code in copies.items() for old in function.finditer(code)
                  if old.group(1) == found.group(1)]
        if len(places) > 1:
            sys.exit('%s is there %d times' % (found.group(1), len(places)))
        if not places:
            new += text[start:found.end()].lstrip('\n') + '\n'
        for path, old in places:
            code = copies[path]
            copies[path] = code[:old.start()] + new + found.group() + code[old.end():]
            new = ''
        start = found.end()
    if new or not start:
        sys.exit('%s has nothing to put into %s' % (answer, folder))
    for path, code in copies.items():
        with open(path, 'w') as file:
            file.write(code)


main()
