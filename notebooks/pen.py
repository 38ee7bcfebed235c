"""pen: what the notebooks share. The programs of build/ compute, and files are the interface: this runs
programs, reads what they write, and draws in the colours of the book's figures.

Whoever imports it works in the root of the repository from then on, where the programs' paths begin.
"""
import io
import os
import pathlib
import re
import subprocess

import matplotlib
import numpy
import PIL.Image  # which Matplotlib needs, too

matplotlib.use("agg")
import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.colors import ListedColormap

os.chdir(pathlib.Path(__file__).resolve().parent.parent)

# The palette of the book's figures.
palette = dict(re.findall(r'^#define (\w+) "(#\w{6})"', pathlib.Path("tests/rig/figure.h").read_text(), re.M))
BLUE, ORANGE, GREEN, PURPLE, SKY = COLOURS = [
    palette[name] for name in ("BLUE", "ORANGE", "GREEN", "PURPLE", "SKY")]
INK, GREY, LIGHT = palette["INK"], palette["GREY"], palette["LIGHT"]

# 7.2 inches are 720 pixels on a page. Each picture brings its own white paper, as those of the book do.
plt.rcParams.update({
    "figure.figsize": (7.2, 3.2), "figure.dpi": 100, "savefig.dpi": 150, "figure.facecolor": "white",
    "figure.constrained_layout.use": True, "font.family": "DejaVu Sans", "font.size": 9,
    "axes.titlesize": 9.5, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.labelsize": 9, "axes.edgecolor": GREY, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS), "axes.grid": False, "grid.color": LIGHT,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8.5,
})


def run(program, *words, ranks=0):
    """Runs build/PROGRAM with these words, on so many ranks; 0: without mpirun. Returns what it prints.
    A program that fails is an error with what it says."""
    command = [f"build/{program}", *map(str, words)]
    if ranks > 0:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] + command
    # Open MPI asks root to insist twice. Ranks of one machine need no network, and those that wait sleep.
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_pml="ob1", OMP_WAIT_POLICY="passive")
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="replace")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def folder(name):
    """A folder of this name for what a notebook leaves, below build."""
    path = pathlib.Path("build/notebooks") / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def load(path):
    """The arrays of a folder, by name."""
    return {file.stem: numpy.load(file) for file in pathlib.Path(path).glob("*.npy")}


def counts(text):
    """What a stage counted: {"bytes sent forward": 3145728, ...}."""
    return {name: int(number) for name, number in re.findall(r"^(?!rank )(.+?) (\d+)$", text, re.M)}


def per_hop(text, what, ranks):
    """One of the counts that --per-hop prints, as an array (rank, hop)."""
    table = numpy.zeros((ranks, ranks), int)
    for rank, hop, number in re.findall(rf"^rank (\d+) hop (\d+) {what} (\d+)$", text, re.M):
        table[int(rank), int(hop)] = int(number)
    return table


def show(figure, words):
    """Puts a figure below the cell; `words` are for those who cannot see it."""
    pixels, picture = io.BytesIO(), io.BytesIO()
    figure.savefig(pixels)
    plt.close(figure)
    PIL.Image.open(pixels).convert("RGB").quantize(128).save(picture, "png", optimize=True)
    display({"image/png": picture.getvalue()}, raw=True,
            metadata={"image/png": {"width": 720, "alt": words}})


def slide(draw, words, **choices):
    """Shows the figure draw(**values) with a slider for each value, {name: (default, all)}. Without
    ipywidgets, or where nobody looks on (tests/notebooks): the figure with the defaults."""
    try:
        import ipywidgets
    except ImportError:
        ipywidgets = None
    if ipywidgets is None or "NOTEBOOKS_STATIC" in os.environ:
        show(draw(**{name: default for name, (default, _) in choices.items()}), words)
        return
    sliders = {name: ipywidgets.SelectionSlider(options=values, value=default, continuous_update=False)
               for name, (default, values) in choices.items()}
    ipywidgets.interact(lambda **values: show(draw(**values), words), **sliders)
