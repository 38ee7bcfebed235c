"""plant: changes one place of a program, in a copy of the tree.

    python3 tests/rig/plant.py FOLDER FILE FUNCTION TEXT INSTEAD
    python3 tests/rig/plant.py FOLDER <FAULTS

Replaces TEXT by INSTEAD in this function of FILE ("-": anywhere in it), and writes the file into
FOLDER. TEXT is compared word by word: blanks and line breaks between words and signs do not count.
It must stand there exactly once. \\0 in INSTEAD is the text that was found.

FAULTS has lines as in tests/faults.txt. The file of each is written into FOLDER/NAME; for one that cannot
be planted, FOLDER/NAME.error says why.
"""
import os
import re
import sys


def region(code, path, function):
    """From the name in the function's head to its last brace. Its braces stand in column 0."""
    if function == '-':
        return 0, len(code)
    heads = list(re.finditer(r'\b%s\([^;{}]*\)\n\{$' % function, code, re.M))
    if len(heads) != 1:
        raise ValueError('%s has %d functions %s' % (path, len(heads), function))
    return heads[0].start(), code.index('\n}', heads[0].end())


def pattern(text):
    """A word is matched whole; between two words there must be a blank."""
    words = re.findall(r'\w+|[^\w\s]', text)
    result = ''
    for before, word in zip([''] + words, words):
        between = r'\s+' if re.match(r'\w', before) and re.match(r'\w', word) else r'\s*'
        edges = r'\b%s\b' if re.match(r'\w', word) else '%s'
        result += (between if before else '') + edges % re.escape(word)
    return result


def plant(folder, path, function, text, instead):
    with open(path) as file:
        code = file.read()
    begin, end = region(code, path, function)
    places = list(re.finditer(pattern(text), code[begin:end]))
    if len(places) != 1:
        raise ValueError('this stands %d times in %s of %s: %s' % (len(places), function, path, text))
    found = places[0]
    new = instead.replace('\\0', found.group())
    os.makedirs(os.path.dirname(folder + '/' + path), exist_ok=True)
    with open(folder + '/' + path, 'w') as file:
        file.write(code[:begin + found.start()] + new + code[begin + found.end():])


def main():
    if len(sys.argv) == 6:
        try:
            plant(*sys.argv[1:])
        except ValueError as error:
            sys.exit(str(error))
        return
    folder, = sys.argv[1:]
    for line in sys.stdin:
        name, _, *fault = line.rstrip('\n').split('\t')
        try:
            plant(folder + '/' + name, *fault)
        except (OSError, TypeError, ValueError) as error:
            with open('%s/%s.error' % (folder, name), 'w') as file:
                print(error, file=file)


main()
