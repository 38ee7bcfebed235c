"""plant: changes places of programs, in a copy of the tree.

    python3 tests/rig/plant.py FOLDER FILE FUNCTION TEXT INSTEAD     one place
    python3 tests/rig/plant.py FOLDER SCRIPT NAME                    a line of tests/faults.txt
    python3 tests/rig/plant.py --list SCRIPT [NAME...]               names, and what the lines say
    python3 tests/rig/plant.py --check                               plants every line once

Replaces TEXT by INSTEAD in this function of FILE ("-": anywhere in it), in the copy that FOLDER
has, or else of the tree. TEXT is compared word by word: blanks and line breaks between words and
signs do not count. It must stand there exactly once. \\0 in INSTEAD is the text that was found.
"""
import glob
import os
import re
import sys
import tempfile


def table(path='tests/faults.txt'):
    """(script, name, what, [[file, function, text, instead], ...]) of each line."""
    with open(path) as file:
        for line in file:
            if line.startswith('#') or not line.strip():
                continue
            name, *fields = line.rstrip('\n').split('\t')
            script, _, rest = name.partition('/')
            if not rest:
                script, rest = 'faults', name
            changes = [fields[i:i + 4] for i in range(1, len(fields), 4)]
            yield script, rest, ''.join(fields[:1]), changes


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


def changed(code, path, function, text, instead):
    begin, end = region(code, path, function)
    places = list(re.finditer(pattern(text), code[begin:end]))
    if len(places) != 1:
        raise ValueError(f'this stands {len(places)} times in {function} of {path}: {text}')
    found = places[0]
    new = instead.replace('\\0', found.group())
    if new == found.group():
        raise ValueError('this stays what it is: ' + text)
    return code[:begin + found.start()] + new + code[begin + found.end():]


def plant(folder, path, function, text, instead):
    """Of a folder, changes the one file that has the text."""
    copy = os.path.join(folder, path)
    inside = os.path.isdir(copy)
    paths = glob.glob(copy + '/**/*.[chp]*', recursive=True) if inside else [copy]
    new, why = {}, []
    for to in paths:
        try:
            with open(to if os.path.exists(to) else path) as file:
                new[to] = changed(file.read(), path, function, text, instead)
        except ValueError as error:
            why.append(str(error))
    if len(new) != 1:
        raise ValueError(f'{len(new)} files of {path} have this: {text}' if inside else why[0])
    for to, code in new.items():
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, 'w') as file:
            file.write(code)


def is_there(judge):
    """False for a suite without this test or case. Programs on the host have parts of their own."""
    suite, _, part = judge.partition(':')
    if not part or not suite.startswith('check-') or suite.endswith('-on-host'):
        return True
    with open('tests/%s.c' % re.sub('-(best|amx)$', '', suite).replace('-', '_')) as file:
        return re.search(r'\b(TESTS?\w*|CASE|ROW)\((SIG\w+, )?%s\b|"%s"' %
                         (part, part.replace('_', ' ')), file.read()) is not None


def complaints(lines):
    """One for each line, None if all is well. For exercises, which chapters begin, tests/exercises
    --places does it.
    """
    seen = set()
    for script, name, what, changes in lines:
        problem = None
        try:
            if not os.path.exists('tests/' + script):
                raise ValueError('there is no script ' + script)
            if (script, name) in seen:
                raise ValueError('there are two of this name')
            seen.add((script, name))
            if not changes and script in ('faults', 'kernel-faults', 'exercises'):
                raise ValueError('it changes nothing')
            for judge in what.split() if script == 'faults' else ():
                if not is_there(judge):
                    raise ValueError('there is no judge ' + judge)
            with tempfile.TemporaryDirectory() as folder:
                for change in changes if script != 'exercises' else ():
                    plant(folder, *change)
        except (OSError, TypeError, ValueError) as error:
            problem = 'FAILED %s/%s: %s' % (script, name, error)
        yield problem


def check():
    found = list(complaints(table()))
    for problem in filter(None, found):
        print(problem)
    change = ['tests/rig/plant.py', '-', 'def ' + 'check', 'def']
    wrong = [('faults', 'twice', '', [change]), ('faults', 'twice', '', [change]),
             ('fault', 'no-script', '', [change]), ('faults', 'no-change', '', []),
             ('faults', 'no-file', '', [['no.c', *change[1:]]]),
             ('faults', 'no-test', 'check-npy:nothing', [change]),
             ('faults', 'short', '', [change[:3]]),
             ('faults', 'the-same', '', [[*change[:3], '\\0']]),
             ('faults', 'no-text', '', [change, change])]
    judged = [problem is None for problem in complaints(wrong)]
    blind = judged != [True] + [False] * (len(wrong) - 1)
    if blind:
        print('FAILED: of these lines only the first can be planted:', wrong)
    failed = len(found) - found.count(None) + blind
    print(len(found) + 1 - failed, 'passed,', failed, 'failed')
    sys.exit(failed > 0)


def named(line):
    return {line[1], line[1].partition('/')[0]}


def lines_of(script, *names):
    """All lines of a script, or those that are named, also by what stands before a slash."""
    lines = [line for line in table() if line[0] == script]
    for name in names:
        if not any(name in named(line) for line in lines):
            raise ValueError('tests/faults.txt has no %s of %s' % (name, script))
    return [line for line in lines if not names or named(line) & {*names}]


def main():
    first, *rest = sys.argv[1:]
    if first == '--check':
        check()
    try:
        if first == '--list':
            for _, name, what, _ in lines_of(*rest):
                print(name, what, sep='\t')
        elif len(rest) == 4:
            plant(first, *rest)
        else:
            (_, _, _, changes), = lines_of(*rest)
            for change in changes:
                plant(first, *change)
    except (OSError, TypeError, ValueError) as error:
        sys.exit(str(error))


main()
