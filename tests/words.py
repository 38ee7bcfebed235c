"""words: no identifier of sources and tests is one that has been given a word of the field. A word means one thing.
And what a header says of its functions opens with a verb: "Returns ...", as an editor or a manual page shows it alone.

    python3 tests/words.py
"""
import glob
import re
import sys

# What is not said, and what is. Identifiers as a whole; a regular expression may stand for several.
WORDS = r'''
ra_refuse                   ra_error_set
RA_HOME                     RA_GRADIENTS_RETURN
ra_ring_jump                ra_ring_stride
ra_mpi_life\w*              ra_mpi_alive_...
ra_message_overdue          ra_message_timeout_text
ra_absence                  ra_peer_state
ra_plan_give_up             ra_plan_abort
ra_plan_lose                ra_plan_fail
(?:tree|model)->lost        ->status, RA_LOST
look_only                   dry_run
disturbed                   reentered
meets_another               neighbour_changes
ra_least|ra_most|RA_LEAST   ra_min, ra_max, a sentinel with a name
ra_turn                     ra_tile_order
ra_cuda_comes               ra_cuda_expects_message
ra_cuda_goes_on             ra_cuda_ok
ra_cuda_begins              ra_cuda_timer_start
ra_cuda_ends                ra_cuda_timer_stop
ra_cuda_end_plan            ra_cuda_fail
ra_cuda_listen              ra_cuda_poll_errors
ra_cuda_separates           has_separate_dq
ra_cuda_rest_of_keys        deferred_keys
ra_cuda_whole               full_step
take_stairs                 supports_steps
ra_stairs|stairs|STAIRS     ra_band_step, band_step
k06_takes                   k06_supports
ra_trouble                  ra_device_error
is_room                     is_credit
soften                      online_softmax
take_out_spoiled            zero_nonfinite
clean_values                zero_nonfinite
K06_CLEANERS                SANITIZER_WARPS
add_nothing                 detect_nonfinite
give_rows                   copy_rows_back
give_full                   signal_full
hidden_own                  try_lock
give_queries                release_queries
give_dq|give_keys           multiply_dq, store_dk_dv
take_out_\w+                zero_nonfinite_...
clean_16_keys               zero_nonfinite_16_keys
ra_place|ra_panel_place     ra_offset, ra_panel_offset
rows_there|all_there        valid_rows, all_valid
is_whole|whole_for_all      is_unmasked, unmasked_for_all
[A-Za-z_]*turned                transposed; rotated
lay_out_room|ra_\w*_room        ..._scratch
stop_watch                  stop_watchdog
links_that_are_none         invalid_links
hops_that_are_none          hops_out_of_range
who_lives_is_left_alone     running_job_is_not_cleaned
notes_that_come_late        late_notes
(?<![.>])x(?=->)            what it is: arrays, parameter, shard, ...
'''.strip().splitlines()
WORDS = [(re.compile(r'(?<!\w)(?:' + old + r')(?!\w)'), new) for old, new in (line.split(maxsplit=1) for line in WORDS)]


def code(text):
    """Without comments and texts, which have words of their own; lines stay."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', lambda found: '\n' * found[0].count('\n'), text,
                  flags=re.S)


def findings(path, text):
    for number, line in enumerate(code(text).splitlines(), 1):
        for old, new in WORDS:
            for found in old.findall(line):
                yield f'{path}:{number}: {found} is called {new}'


# A comment, and what it stands before: functions.
SAID = re.compile(r'^/\* ((?:[^*]|\*(?!/))*?) ?\*/\n(?=(?!#|typedef|union)[^;{}/]*?\b(\w+)\([^;{}]*\)[^;{}/]*;)', re.M)
NO_VERBS = set('As Bytes Does Floats Gradients Has Ints Is Its Keys Logits Numbers Processes Rows Sums This Tokens'.split())


def openings(path, text):
    for said, name in SAID.findall(text):
        first = said.split()[0].rstrip('.,:')
        if not re.fullmatch('[A-Z][a-z]+s', first) or first in NO_VERBS or 'The same' in said[:60]:
            yield f'{path}: {name}: "{" ".join(said.split()[:6])} ..." opens with no verb'


def main():
    paths = [path for pattern in ('src/**/*.[ch]', 'kernels/*.c', 'kernels/*.cu', 'kernels/*.h', 'tests/**/*.[ch]',
                                  'tests/**/*.cu') for path in sorted(glob.glob(pattern, recursive=True))]
    failed = 0
    for path in paths:
        with open(path) as file:
            for line in findings(path, file.read()):
                print('FAILED', line)
                failed += 1
    headers = [path for path in paths if path.endswith('.h') and not path.startswith('tests/')]
    for path in headers:
        with open(path) as file:
            for line in openings(path, file.read()):
                print('FAILED', line)
                failed += 1
    planted = '/* Is it? */\nint f(int);\n\n/* Adds. */\nint g(int);\n\n/* The sum\n * of it. */\nconst int *h(int,\n    int);\n'
    if len(list(openings('planted', planted))) != 2:
        print('FAILED: comments that were planted are not seen')
        failed += 1
    planted = 'int look_only; /* ra_turn */ char *text = "ra_refuse"; // RA_HOME\nsoften();'
    if len(list(findings('planted', planted))) != 2:
        print('FAILED: what was planted is not seen')
        failed += 1
    print(len(paths) + len(headers) + 2, 'passed,', failed, 'failed')
    return failed > 0


sys.exit(main())
