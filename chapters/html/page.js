// What a reader can do on a page: copy code, link to a heading, choose colours, search the whole book.
// Everything works from a folder, without a server; and without scripts the page is as it was.
"use strict";
const up = document.currentScript.dataset.up;

function make(name, text, values) {
    const element = document.createElement(name);
    element.textContent = text;
    return Object.assign(element, values);
}

// ---- Code and headings.

async function copy(code, button) {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "copied";
    setTimeout(() => button.textContent = "copy", 1500);
}

for (const code of document.querySelectorAll("main pre")) {
    const box = make("div", "", {className: "code"});
    code.replaceWith(box);
    const button = make("button", "copy", {type: "button", onclick: () => copy(code, button)});
    box.append(code, button);
}

for (const heading of document.querySelectorAll("main :is(h1, h2, h3, h4)[id]"))
    heading.append(make("a", "#", {className: "here", href: "#" + heading.id, ariaLabel: "Link to this section"}));

// ---- Colours: those of the system, or those that were chosen last.

const dark = document.getElementById("dark"), wanted = matchMedia(dark.media);
const isDark = () => (localStorage.getItem("colours") ?? (wanted.matches ? "dark" : "light")) === "dark";

function colour() {
    dark.media = isDark() ? "all" : "not all";
    document.querySelector("meta[name=color-scheme]").content = isDark() ? "dark" : "light";
    theme.textContent = isDark() ? "light" : "dark";
}

const theme = make("button", "", {type: "button", title: "Change colours", onclick() {
    localStorage.setItem("colours", isDark() ? "light" : "dark");
    colour();
}});
wanted.addEventListener("change", colour);
colour();

// ---- Search. search.js is `book`: one [page, anchor, title, heading, text] for each section, and is read when somebody
// begins to search.

const contents = document.getElementById("contents"), list = contents.querySelector("ul");
const found = make("div", "", {id: "found"});
const input = make("input", "", {type: "search", title: "Words of a section; / goes here"});
let reading;

function readBook() {
    reading ??= new Promise((resolve, reject) =>
        document.head.append(make("script", "", {src: up + "search.js", onload: resolve, onerror: reject})));
    return reading;
}

// How well a section fits: all words must be there; those of a heading count more. 0: it does not.
function score([, , title, heading, text], words) {
    const head = (title + " " + heading).toLowerCase(), body = text.toLowerCase();
    let sum = 0;
    for (const word of words) {
        const times = body.split(word).length - 1, heads = head.split(word).length - 1;
        if (times + heads === 0)
            return 0;
        sum += Math.min(times, 5) + 10 * heads;
    }
    return sum;
}

function excerpt(text, words) {
    const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
    return (at > 0 ? "…" : "") + text.slice(at, at + 160) + "…";
}

async function search() {
    const words = input.value.toLowerCase().split(/\s+/).filter(word => word);
    list.hidden = words.length > 0;
    if (words.length > 0)
        await readBook();
    const hits = words.length === 0 ? [] : book.map(section => [score(section, words), section])
        .filter(([points]) => points > 0).sort((a, b) => b[0] - a[0]).slice(0, 30);
    found.replaceChildren(...hits.flatMap(([, [page, anchor, title, heading, text]]) => [
        make("a", heading && heading !== title ? title + ": " + heading : title,
            {href: up + page + (anchor ? "#" + anchor : "")}),
        make("p", excerpt(text, words))]));
    if (words.length > 0 && hits.length === 0)
        found.append(make("p", "No section has all of these words."));
}

input.addEventListener("input", search);
document.addEventListener("keydown", event => {
    if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) {
        event.preventDefault();
        input.focus();
    }
});
const tools = make("div", "", {id: "tools"});
const label = make("label", "Search");
label.append(input);
tools.append(label, theme);
contents.prepend(tools, found);
