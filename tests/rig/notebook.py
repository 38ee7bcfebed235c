"""notebook: runs a notebook, and holds two against each other. Called by tests/notebooks.

notebook.py run FROM TO
    Runs FROM in its own folder; writes it with its outputs to TO. Fails at the first cell that fails.
notebook.py compare OLD NEW
    Fails, with a diff, unless cells and the text of their outputs are the same. Pictures are not
    compared, nor the outputs of a cell with the tag `varies`: those differ from run to run.
"""
import difflib
import os
import pathlib
import re
import sys

import nbclient
import nbformat


def run(source, target):
    notebook = nbformat.read(source, nbformat.NO_CONVERT)
    os.environ["NOTEBOOKS_STATIC"] = "yes"  # no sliders
    client = nbclient.NotebookClient(notebook, timeout=1200, kernel_name="python3", record_timing=False,
                                     resources={"metadata": {"path": source.parent}})
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        print(f"{source}:", re.sub("\x1b\\[[0-9;]*m", "", str(error)))  # without colours
        return 1
    for cell in notebook.cells:
        join_streams(cell.get("outputs", []))
    notebook.metadata.language_info = {"name": "python"}  # without the version, which differs
    nbformat.write(notebook, target)
    return 0


def join_streams(outputs):
    """Makes one of what a cell has printed in several pieces: where they are cut is chance."""
    for i in range(len(outputs) - 1, 0, -1):
        one, two = outputs[i - 1 : i + 1]
        if one.output_type == two.output_type == "stream" and one.name == two.name:
            one.text += two.text
            del outputs[i]


def lines(path):
    """What is compared, as lines."""
    for cell in nbformat.read(path, nbformat.NO_CONVERT).cells:
        yield from f"[{cell.cell_type}]\n{cell.source}".split("\n")
        for output in cell.get("outputs", []):
            if "varies" not in cell.metadata.get("tags", []):
                yield f"[{output.output_type}]"
                yield from (output.get("text") or output.get("data", {}).get("text/plain", "")).split("\n")


def compare(old, new):
    diff = list(difflib.unified_diff([*lines(old)], [*lines(new)], str(old), str(new), lineterm=""))
    print("\n".join(diff))
    return len(diff) > 0


if __name__ == "__main__":
    paths = [pathlib.Path(path) for path in sys.argv[2:]]
    sys.exit({"run": run, "compare": compare}[sys.argv[1]](*paths))
