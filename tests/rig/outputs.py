"""outputs: does a chapter print what its commands print?

    python3 tests/rig/outputs.py CHAPTER.md STDOUT STDERR

The two logs are what the chapter's sh fences said, traced by `sh -x`. `echo : CHAPTER.md:LINE` stands before the
commands of the fence that opens in that line. Fences of output are those whose info string begins with `output`:

    output                     lines that the sh fence before it prints, one after the other, to the letter
    output with other numbers  lines that it prints, with any numbers in the places of these, any set of vectors,
                               and any words after `waited 1 s for rank 3 to`: which wait of a deadlock
                               ends first, and what is known of the other rank by then, is chance
    output of another run      what nothing here can print: it took a GPU, minutes, or a machine left alone

The paragraph before one of the last two says how it may differ, with the word `differ`: that is the mark that a
reader sees. A fence without an info string has no output; one that has what a command printed needs the word.
"""
import re
import sys

KINDS = ('output', 'output with other numbers', 'output of another run')
number = re.compile(r'(?<![A-Za-z_])[-+]?\d+(\.\d+)?(e[-+]?\d+)?|\b(amx|avx512|avx2|sse2|neon)\b')
noise = re.compile(r'^-{74}\nMPI_ABORT was invoked .*?^-{74}\n', re.M | re.S)
wait = re.compile(r'(?<=waited # s for rank # to ).*')


def fences(page):
    """(line, info, body, paragraph before it) of each fence."""
    lines, i, before = page.split('\n'), 0, ['']
    while i < len(lines):
        opened = re.match(r'( *)(```+)([^`]*)$', lines[i])
        if not opened:
            before = before[:-1] + [before[-1] + ' ' + lines[i]] if lines[i].strip() else before + ['']
            i += 1
            continue
        indent, ticks, info = opened.groups()
        end = i + 1
        while not re.match(r' *' + ticks + r'`* *$', lines[end]):
            end += 1
        body = [line[len(indent):] if not line[:len(indent)].strip() else line for line in lines[i + 1:end]]
        yield i + 1, info.strip(), body, [text for text in before if text][-1]
        i, before = end + 1, before + ['']


def sections(chapter, logs):
    """What the commands of each fence said, by its line: first on stdout, then on stderr, where Open MPI 5 has more to say
    of each program that has failed."""
    found, lines = {}, []
    for log in logs:
        with open(log, errors='replace') as file:
            for line in noise.sub('', file.read()).splitlines():
                marker = re.match(r'(\+ echo )?: %s:(\d+)$' % re.escape(chapter), line)
                if marker:
                    lines = found.setdefault(int(marker.group(2)), [])
                elif not line.startswith('+ '):
                    lines.append(line.rstrip())
    return found


def any_numbers(lines):
    return [wait.sub('#', ' '.join(number.sub('#', line).split())) for line in lines]


def problem(kind, body, said):
    """What is wrong with these lines as the output of a fence that said those."""
    if kind == 'output':
        if not any(said[i:i + len(body)] == body for i in range(len(said))):
            return 'this is not what its commands print'
    else:
        said = any_numbers(said)
        for line, shape in zip(body, any_numbers(body)):
            if shape not in said:
                return 'its commands print no line like: ' + line


def main():
    chapter, *logs = sys.argv[1:]
    with open(chapter) as file:
        page = file.read()
    said = sections(chapter, logs)
    everything = {line for lines in said.values() for line in lines if line}
    count, problems, commands = 0, [], None
    for line, info, body, before in fences(page):
        body = [text.rstrip() for text in body]
        wrong = None
        if info == 'sh':
            commands = line
        elif not info and all(text in everything for text in body if text):
            wrong = 'a command prints this: the fence needs the word `output`'
        elif info.startswith('output'):
            count += 1
            if info not in KINDS:
                wrong = 'the info string is none of: ' + '; '.join(KINDS)
            elif info != 'output' and 'differ' not in before:
                wrong = 'the paragraph before it does not say how it may differ'
            elif info != 'output of another run' and commands not in said:
                wrong = 'no commands before it were run'
            elif info != 'output of another run':
                wrong = problem(info, body, said[commands])
        if wrong:
            if commands in said and info.startswith('output'):
                problems += ['    | ' + text for text in said[commands][-16:]]
            problems.append('%s:%d: %s' % (chapter, line, wrong))
    print('\n'.join(problems + ['%s: %d blocks of output' % (chapter, count)]))
    sys.exit(bool(problems))


main()
