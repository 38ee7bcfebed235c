"""book: looks for what is wrong with the book as HTML. Called by tests/book.

book.py links BOOK HTML
    Every link, anchor and picture leads somewhere; each page of BOOK, in Markdown or a notebook, is in
    HTML, and can be reached from the front page.
book.py maths BOOK HTML
    Each formula of a page of BOOK is MathML in HTML, and no TeX is left in what one reads.
book.py look BROWSER WORK HTML
    In a Chromium, which may keep files in WORK: no page is wider than its window, all pictures are
    shown, code has colours, words can be told from what is behind them, and what can be pressed works.
"""

import functools
import html.parser
import http.server
import json
import pathlib
import re
import subprocess
import sys
import threading
import urllib.parse


class Page(html.parser.HTMLParser):
    """The ids and the links of one page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.problems = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                if value in self.ids:
                    self.problems.append(f"two places are called {value}")
                self.ids.add(value)
            if name in ("href", "src"):
                self.links.append(value)
        if tag == "img" and not dict(attributes).get("alt"):
            self.problems.append(f"a picture without words: {dict(attributes).get('src')}")


def links(book, folder):
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    names = {path: str(path.relative_to(folder.resolve())) for path in pages}
    targets = {path: set() for path in pages}
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme:
                continue
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            targets[path].add(target)
            if not target.is_relative_to(folder.resolve()) or not target.is_file():
                page.problems.append(f"no file for {link}")
            elif url.fragment and target not in pages:
                page.problems.append(f"no page for {link}")
            elif url.fragment and urllib.parse.unquote(url.fragment) not in pages[target].ids:
                page.problems.append(f"no place for {link}")
    reached, waiting = set(), [(folder / "index.html").resolve()]
    while waiting:
        path = waiting.pop()
        if path in pages and path not in reached:
            reached.add(path)
            waiting += targets[path]
    for path in set(pages) - reached:
        pages[path].problems.append("no link leads here")
    sources = [*book.rglob("*.md"), *(book / "notebooks").glob("*.ipynb")]
    wanted = {str(path.relative_to(book).with_suffix("")) for path in sources} - {"README"}
    missing = sorted(wanted - {name[:-5] for name in names.values()})
    for name in missing:
        print(f"FAILED {name}: it is not in the book")
    return len(missing) + judge({names[path]: page.problems for path, page in pages.items()})


class Formulas(html.parser.HTMLParser):
    """How many formulas a page has, and the TeX among its words, of which code is no part."""

    def __init__(self, path):
        super().__init__()
        self.count, self.boxes, self.inside, self.tex = 0, 0, 0, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.count += tag == "math"
        self.boxes += dict(attributes).get("class") == "formula"
        self.inside += tag in ("pre", "code", "script", "style", "annotation")

    def handle_endtag(self, tag):
        self.inside -= tag in ("pre", "code", "script", "style", "annotation")

    def handle_data(self, words):
        if not self.inside:
            self.tex += re.findall(r".*(?:\$|\\[a-zA-Z]|[\^_]\{).*", words)


def maths(book, folder):
    problems, total = {}, 0
    for path in sorted(book.rglob("*.md")):
        text, count = re.subn(r"^ *```math\n.*?^ *```$", "", path.read_text(), flags=re.M | re.S)
        text = re.sub(r"^ *(```+)[^`\n]*\n.*?^ *\1$", "", text, flags=re.M | re.S)
        text = re.sub(r"(?<!`)(`+)(?!`).*?[^`]\1(?!`)", "", text, flags=re.S)
        wanted = count + len(re.findall(r"\$[^$]+\$", text))
        name = str(path.relative_to(book).with_suffix(".html")).replace("README", "index")
        page = Formulas(folder / name)
        problems[name] = [f"TeX among the words: {words}" for words in page.tex]
        if page.count != wanted:
            problems[name].append(f"{page.count} formulas are set, of {wanted}")
        if page.boxes != count:
            problems[name].append(f"{page.boxes} formulas can scroll, of {count}")
        total += page.count
    if total == 0:
        problems["the book"] = ["it has no formula"]
    return judge(problems)


def judge(problems):
    """Prints the problems of each page, and how many pages have none. Returns how many have."""
    for name in sorted(problems):
        for problem in problems[name]:
            print(f"FAILED {name}: {problem}")
    failed = sum(1 for found in problems.values() if found)
    print(f"{len(problems) - failed} passed, {failed} failed")
    return failed


# Runs in the browser: shows one page after the other in a frame of each width, and sends home what
# is wrong with each.
LOOK = """<!DOCTYPE html><body><iframe id=frame style="height: 900px; border: 0"></iframe><script>
const pages = PAGES, frame = document.getElementById("frame");

function color(text) {
    const parts = text.match(/[0-9.]+/g).map(Number);
    return parts.length < 4 ? parts.concat(1) : parts;
}

// The luminance, and from it the contrast, as WCAG 2 defines them.
function luminance(rgb) {
    const [r, g, b] = rgb.slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(element, view) {
    let behind = element;
    while (color(view.getComputedStyle(behind).backgroundColor)[3] === 0)
        behind = behind.parentElement;
    const a = luminance(color(view.getComputedStyle(element).color));
    const b = luminance(color(view.getComputedStyle(behind).backgroundColor));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

function faint(view) {
    const seen = new Set(), found = new Set(), body = view.document.body;
    const words = view.document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
        const element = words.currentNode.parentElement;
        const box = element.closest("nav, pre, th");
        const kind = [element.tagName, element.className, element.parentElement.tagName,
                      element.closest("a") !== null, box && box.tagName].join();
        if (!words.currentNode.data.trim() || seen.has(kind))
            continue;
        seen.add(kind);
        const ratio = contrast(element, view);
        if (ratio < 4.5)
            found.add(`contrast ${ratio.toFixed(2)} of <${element.tagName} ${element.className}>`);
    }
    return [...found];
}

function begin(element) {
    return element.textContent.replace(/\\s+/g, " ").slice(0, 60);
}

function wide(view, width) {
    const root = view.document.documentElement;
    if (root.scrollWidth <= width)
        return [];
    let worst = root, most = 0;
    for (const element of root.querySelectorAll("body *")) {
        const right = element.getBoundingClientRect().right;
        if (right > most && !element.parentElement.closest("pre, .table, .figure, .formula"))
            [worst, most] = [element, right];
    }
    return [`${root.scrollWidth} pixels wide in a window of ${width}: ` +
            `<${worst.tagName} ${worst.className}> ${begin(worst)}`];
}

// What page.js adds: searching for a word finds the section that has it, every block of code can be copied, headings have
// links, and the colours can be changed.
async function press(view) {
    const page = view.document, found = [], dark = page.getElementById("dark"), before = dark.media;
    const input = page.querySelector("#tools input");
    for (const [words, wanted] of [["carry fold online softmax", "02-flash.html"], ["xyzzyx", null]]) {
        input.value = words;
        input.dispatchEvent(new view.Event("input"));
        for (let t = 0; t < 100 && !page.querySelector("#found > *"); t++)
            await new Promise(done => setTimeout(done, 50));
        const hits = [...page.querySelectorAll("#found a")].map(a => a.getAttribute("href"));
        if (wanted ? !hits.some(href => href.includes(wanted)) : hits.length > 0)
            found.push(`a search for ${words} finds ${hits.length} sections: ${hits[0]}`);
        input.value = "";
        input.dispatchEvent(new view.Event("input"));
        await new Promise(done => setTimeout(done, 50));
    }
    if (page.querySelectorAll("main pre").length !== page.querySelectorAll(".code button").length)
        found.push("code without a button to copy it");
    if (page.querySelectorAll("main :is(h2, h3)[id]").length > page.querySelectorAll(".here").length)
        found.push("headings without a link");
    page.querySelector("#tools button").click();
    if (dark.media === before)
        found.push("the colours cannot be changed");
    page.querySelector("#tools button").click();
    view.localStorage.clear();
    return found.concat(play(page, view));
}

// Each live picture is drawn, and also at the ends of each setting, and as it was when that is what it was.
function play(page, view) {
    const found = [];
    for (const live of page.querySelectorAll(".live")) {
        const drawn = () => live.querySelector(".figure svg")?.outerHTML;
        if (!drawn())
            found.push("no live picture: " + live.dataset.live);
        for (const field of live.querySelectorAll(".controls label:not([hidden]) [type=number]")) {
            const before = drawn(), value = field.value;
            for (const other of [field.min, field.max]) {
                field.value = other;
                field.dispatchEvent(new view.Event("input"));
                if (!drawn())
                    found.push(`no live picture: ${live.dataset.live} with ${field.parentElement.textContent}${other}`);
            }
            field.value = value;
            field.dispatchEvent(new view.Event("input"));
            if (drawn() !== before)
                found.push(`${live.dataset.live}: another picture for the same ${field.parentElement.textContent}`);
        }
        for (const part of live.querySelectorAll("[data-press='0']")) {
            const before = drawn();
            part.dispatchEvent(new view.MouseEvent("click", {bubbles: true}));
            if (drawn() === before && live.dataset.live === "fold")
                found.push("a key that is pressed is not folded");
        }
    }
    return found;
}

async function look(page) {
    const found = [];
    frame.style.width = "1400px";
    await new Promise(done => { frame.onload = done; frame.src = page; });
    const view = frame.contentWindow;
    for (const fold of view.document.querySelectorAll("details"))
        fold.open = true;
    for (const width of [1400, 800, 360]) {
        frame.style.width = width + "px";
        found.push(...wide(view, width));
    }
    for (const image of view.document.images)
        if (!image.complete || image.naturalWidth === 0)
            found.push("no picture: " + image.src);
    for (const code of view.document.querySelectorAll("pre.c, pre.cpp"))
        if (!code.querySelector("span[class]"))
            found.push("no colours: " + begin(code));
    return found.concat(faint(view), await press(view));
}

(async () => {
    const all = {dark: matchMedia("(prefers-color-scheme: dark)").matches, pages: {}};
    for (const page of pages)
        all.pages[page] = await look(page).catch(error => ["cannot be looked at: " + error]);
    await fetch("/found", {method: "POST", body: JSON.stringify(all)});
})();
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the book, the page that looks at it, and takes what that has found."""

    def do_GET(self):
        if self.path != "/look":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.server.look.encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.found = json.loads(body)
        self.server.done.set()

    def log_message(self, *_):
        pass


def look(browser, work, folder):
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    handler = functools.partial(Server, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.look = LOOK.replace("PAGES", json.dumps(pages))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    problems = {}
    for scheme in ("dark", "light"):
        server.done = threading.Event()
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu",
                   "--window-size=1500,1000", f"--user-data-dir={work.resolve() / scheme}",
                   f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}",
                   f"http://127.0.0.1:{server.server_port}/look"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **quiet) as process:
            if not server.done.wait(600):
                problems[scheme] = ["the browser has not looked at all pages in ten minutes"]
            process.terminate()
        if scheme not in problems:
            if server.found["dark"] != (scheme == "dark"):
                problems[scheme] = ["the browser has not chosen these colours"]
            for page, found in server.found["pages"].items():
                problems[f"{page}, {scheme}"] = found
    return judge(problems)


if __name__ == "__main__":
    folders = [pathlib.Path(folder) for folder in sys.argv[2:]]
    sys.exit({"links": links, "look": look, "maths": maths}[sys.argv[1]](*folders) > 0)
