// live: the pictures of the book that can be played with. What they count, the project's own modules count: liveModule, set
// in the line above, is those modules as WebAssembly (chapters/live/build). Here are only questions to them and drawing.
//
// A page asks for a picture by <!-- live: NAME setting=value ... -->, behind the still one. Each picture is one entry of
// `pictures` below: its controls, `count`, which asks the module, and `draw`, which shows exactly what count returned. So a
// test need only call count (tests/live).
"use strict";

const bytes = Uint8Array.from(atob(liveModule), letter => letter.charCodeAt(0));
const modules = new WebAssembly.Instance(new WebAssembly.Module(bytes), {js: Math}).exports;

function text(pointer) {
    const memory = new Uint8Array(modules.memory.buffer);
    return new TextDecoder().decode(memory.slice(pointer, memory.indexOf(0, pointer)));
}

// The answer of an export: so many numbers behind this pointer. 0: it has refused.
function answer(Type, pointer, count) {
    if (pointer === 0)
        throw new Error(text(modules.error()));
    return Array.from(new Type(modules.memory.buffer, pointer, count));
}

const sum = numbers => numbers.reduce((a, b) => a + b, 0);
const range = count => Array.from({length: count}, (_, i) => i);
const time = seconds => [["s", 1], ["ms", 1e3], ["µs", 1e6]].filter(([unit, times]) => unit === "µs" || seconds * times >= 1)
    .map(([unit, times]) => `${Number((seconds * times).toPrecision(3))} ${unit}`)[0];
const written = number => number.toLocaleString("en-US", {maximumFractionDigits: 0});

// ---- Controls: name, label, kind. Numbers are within bounds, so that no module is asked for the impossible.

const choice = (label, value, ...words) => ({label, value, words});
const number = (label, value, least, most, step = 1) => ({label, value, least, most, step});
const layouts = ["contiguous", "striped", "zigzag"];
const masks = ["none", "causal", "window", "documents"];

function lookbackOf(set) {
    return set.mask === "window" ? set.lookback : -1;
}

// The plan of a ring under these settings. Returns how many hops it has.
function plan(set) {
    const ends = set.mask === "documents" ? endsOf(set.documents, set.rows) : [];
    ends.forEach((end, i) => modules.document(i, end));
    const layout = set.layout === "dealt" ? (ends.length > 0 ? 3 : 0) : layouts.indexOf(set.layout);
    const hops = modules.plan(set.ranks, set.rows, layout, set.mask === "none" ? 0 : 1, lookbackOf(set), ends.length);
    if (hops < 0)
        throw new Error(text(modules.error()));
    return hops;
}

// Documents that end at these tenths of the sequence, and one that ends with it.
function endsOf(tenths, rows) {
    const ends = [...new Set(String(tenths).split(/[ ,]+/).map(tenth => Math.round(rows * tenth / 10)))];
    return [...ends.filter(end => end > 0 && end < rows).sort((a, b) => a - b), rows].slice(-16);
}

function hopOf(rank, step, backward) {
    const [distance, origin, work, skipped, messages, bytes, to] =
        answer(Float64Array, modules.hop(rank, step, backward), 7);
    return {rank, distance, origin, work, skipped, messages, bytes, to};
}

// ---- SVG.

const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F"];
const ink = "#222222", faint = "#E4E6E9", grey = "#8A9099";

class Picture {
    constructor(width, height) {
        this.parts = [];
        this.width = width;
        this.height = height;
    }
    rect(x, y, width, height, fill, more = "") {
        this.parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}" ${more}/>`);
    }
    text(x, y, words, more = "") {
        this.parts.push(`<text x="${x}" y="${y}" ${/fill=/.test(more) ? "" : `fill="${ink}"`} ${more}>${words}</text>`);
    }
    line(x1, y1, x2, y2, more = `stroke="${ink}"`) {
        this.parts.push(`<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" ${more}/>`);
    }
    path(points, stroke) {
        const d = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
        this.parts.push(`<path d="${d}" fill="none" stroke="${stroke}" stroke-width="3"/>`);
    }
    arrow(x1, y1, x2, y2, stroke) {
        const angle = Math.atan2(y2 - y1, x2 - x1), head = turn =>
            `${(x2 - 11 * Math.cos(angle + turn)).toFixed(1)},${(y2 - 11 * Math.sin(angle + turn)).toFixed(1)}`;
        this.line(x1.toFixed(1), y1.toFixed(1), x2.toFixed(1), y2.toFixed(1), `stroke="${stroke}" stroke-width="3"`);
        this.parts.push(`<polygon points="${x2.toFixed(1)},${y2.toFixed(1)} ${head(0.45)} ${head(-0.45)}" fill="${stroke}"/>`);
    }
    toString() {
        return `<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 ${this.width} ${this.height}" ` +
            `font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="16"><rect width="${this.width}" ` +
            `height="${this.height}" fill="#FFFFFF"/>${this.parts.join("")}</svg>`;
    }
}

const middle = 'text-anchor="middle"', end = 'text-anchor="end"', white = 'fill="#FFFFFF"';

const pictures = {};

// ---- The ring: who works, waits and sends.

pictures.ring = {
    about: "Choose ranks, layout and mask, and go from hop to hop.",
    controls: {
        ranks: number("ranks", 4, 1, 8),
        rows: number("tokens", 1024, 64, 4096, 64),
        layout: choice("layout", "contiguous", ...layouts, "dealt"),
        mask: choice("mask", "causal", ...masks),
        lookback: number("window", 200, 0, 4096),
        documents: number("documents end at tenths", "2 3 7", null, null),
        pass: choice("pass", "forward", "forward", "backward"),
        ratio: number("multiply-adds while a byte travels", 16, 1, 1024),
        hop: number("hop", 0, 0, 7),
    },
    hides: {lookback: set => set.mask !== "window", documents: set => set.mask !== "documents"},
    count(set) {
        const hops = plan(set), backward = set.pass === "backward" ? 1 : 0;
        const steps = range(hops).map(step => range(set.ranks).map(rank => hopOf(rank, step, backward)));
        const rows = range(set.ranks).map(rank => modules.rows(rank));
        const times = answer(Float64Array, modules.simulate(set.ratio, backward), 1 + 3 * hops * set.ranks);
        for (const [step, ranks] of steps.entries())
            for (const [rank, one] of ranks.entries())
                [one.begin, one.worked, one.end] = times.slice(1 + 3 * (step * set.ranks + rank), 4 + 3 * (step * set.ranks + rank));
        return {steps, rows, seconds: times[0], work: sum(steps.flat().map(one => one.work)),
            messages: sum(steps.flat().map(one => one.messages)), bytes: sum(steps.flat().map(one => one.bytes))};
    },
    draw(counts, set) {
        const hop = Math.min(set.hop, counts.steps.length - 1), now = counts.steps[hop], P = set.ranks;
        const picture = new Picture(720, 250 + 40 * P + 44), at = rank => {
            const angle = 2 * Math.PI * rank / P - Math.PI / 2;
            return [140 + 88 * Math.cos(angle), 126 + 88 * Math.sin(angle)];
        };
        for (const one of now)
            if (one.to >= 0 && one.to !== one.rank) {
                const [x1, y1] = at(one.rank), [x2, y2] = at(one.to), length = Math.hypot(x2 - x1, y2 - y1);
                const dx = 25 * (x2 - x1) / length, dy = 25 * (y2 - y1) / length;
                picture.arrow(x1 + dx, y1 + dy, x2 - dx, y2 - dy, colours[one.origin]);
            }
        for (const one of now) {
            const [x, y] = at(one.rank);
            picture.parts.push(`<circle cx="${x}" cy="${y}" r="22" fill="${one.work > 0 ? colours[one.origin] : "#FFFFFF"}" ` +
                `stroke="${one.work > 0 ? colours[one.origin] : grey}" stroke-width="3"/>`);
            picture.text(x, y + 6, one.rank, `${middle} ${one.work > 0 ? white : ""}`);
        }
        picture.text(300, 26, `hop ${hop}: keys of the rank ${now[0].distance} to the left`, 'font-weight="bold"');
        picture.text(345, 50, "rank", end);
        picture.text(420, 50, "keys of", end);
        picture.text(560, 50, "multiply-adds", end);
        picture.text(690, 50, "bytes sent", end);
        for (const one of now) {
            const y = 72 + 21 * one.rank;
            picture.rect(352, y - 12, 12, 12, colours[one.origin]);
            picture.text(345, y, one.rank, end);
            picture.text(420, y, one.origin, end);
            picture.text(560, y, written(one.work), end);
            picture.text(690, y, written(one.bytes), end);
        }
        const top = 270, scale = 600 / (counts.seconds || 1);
        picture.text(20, top - 12, "Time: colour, whose keys are worked on; grey, waiting", 'font-weight="bold"');
        for (const ranks of counts.steps)
            for (const one of ranks) {
                const y = top + 40 * one.rank, x = 90 + scale * one.begin;
                picture.rect(x, y + 6, Math.max(scale * (one.end - one.begin), 0), 22, faint);
                picture.rect(x, y + 6, Math.max(scale * (one.worked - one.begin), 0), 22, colours[one.origin],
                    `stroke="#FFFFFF" ${ranks === now ? "" : 'opacity="0.55"'}`);
            }
        for (const rank of range(P)) {
            const last = counts.steps[counts.steps.length - 1][rank].end;
            picture.rect(90 + scale * last, top + 40 * rank + 6, Math.max(scale * (counts.seconds - last), 0), 22, faint);
            picture.text(20, top + 40 * rank + 23, `rank ${rank}`);
        }
        picture.text(20, top + 40 * P + 20,
            `${written(counts.work)} multiply-adds, ${written(counts.messages)} messages, ${written(counts.bytes)} bytes; ` +
            `ranks work ${(100 * counts.work / (P * counts.seconds || 1)).toFixed(1)} % of the time`);
        return picture;
    },
};

// ---- The mask of each rank and hop.

pictures.mask = {
    about: "Each grid is a rank at a hop: its queries downwards, the visiting keys across.",
    controls: {
        ranks: number("ranks", 4, 1, 6),
        rows: number("tokens", 32, 1, 72),
        layout: choice("layout", "contiguous", ...layouts),
        mask: choice("mask", "causal", ...masks),
        lookback: number("window", 6, 0, 72),
        documents: number("documents end at tenths", "2 3 7", null, null),
    },
    hides: {lookback: set => set.mask !== "window", documents: set => set.mask !== "documents"},
    count(set) {
        const hops = plan(set), rows = range(set.ranks).map(rank => modules.rows(rank));
        const grids = range(hops).flatMap(step => range(set.ranks).map(rank => {
            const one = hopOf(rank, step, 0);
            const cells = answer(Uint8Array, modules.seen(rank, one.origin), rows[rank] * rows[one.origin]);
            return {...one, step, cells, rows: rows[rank], keys: rows[one.origin], pairs: sum(cells)};
        }));
        return {hops, grids, pairs: sum(grids.map(grid => grid.pairs))};
    },
    draw(counts, set) {
        const most = Math.max(1, ...counts.grids.map(grid => grid.rows)), side = Math.min(140, 600 / set.ranks - 12);
        const cell = side / most, high = side + 34, picture = new Picture(720, 40 + high * counts.hops + 26);
        for (const rank of range(set.ranks))
            picture.text(110 + (side + 12) * rank + side / 2, 24, `rank ${rank}`, middle);
        for (const grid of counts.grids) {
            const x = 110 + (side + 12) * grid.rank, y = 36 + high * grid.step;
            if (grid.rank === 0)
                picture.text(20, y + side / 2, `hop ${grid.distance}`);
            picture.rect(x, y, cell * grid.keys, cell * grid.rows, faint);
            grid.cells.forEach((seen, i) => seen && picture.rect((x + cell * (i % grid.keys)).toFixed(2),
                (y + cell * Math.floor(i / grid.keys)).toFixed(2), (0.92 * cell).toFixed(2), (0.92 * cell).toFixed(2),
                colours[grid.origin]));
            picture.text(x, y + side + 17, `${written(grid.pairs)} pairs${grid.to >= 0 ? ", sends" : ""}`, 'font-size="13"');
        }
        picture.text(20, picture.height - 8, `${written(counts.pairs)} pairs of a query and a key that it sees`);
        return picture;
    },
};

// ---- The band over tiles.

pictures.band = {
    about: "A tile is computed if a query in it sees a key: four numbers decide, and no mask is made.",
    controls: {
        rows: number("tokens", 32, 1, 64),
        mask: choice("mask", "causal", "causal", "window"),
        lookback: number("window", 6, 0, 64),
        queries: number("queries of a tile", 8, 1, 32),
        keys: number("keys of a tile", 8, 1, 32),
    },
    hides: {lookback: set => set.mask !== "window"},
    count(set) {
        const down = Math.ceil(set.rows / set.queries), across = Math.ceil(set.rows / set.keys);
        const tiles = answer(Uint8Array, modules.tiles(set.rows, lookbackOf(set), set.queries, set.keys), down * across);
        modules.plan(1, set.rows, 0, 1, lookbackOf(set), 0);
        const cells = answer(Uint8Array, modules.seen(0, 0), set.rows * set.rows);
        const size = (i, tile) => Math.min(tile, set.rows - i * tile);
        return {across, tiles, cells, visible: sum(cells), skipped: tiles.filter(tile => !tile).length, pairs: sum(tiles.map((tile, i) =>
            tile * size(Math.floor(i / across), set.queries) * size(i % across, set.keys)))};
    },
    draw(counts, set) {
        const picture = new Picture(720, 420), cell = 400 / set.rows;
        counts.tiles.forEach((tile, i) => {
            const a = Math.floor(i / counts.across) * set.queries, b = i % counts.across * set.keys;
            picture.rect(10 + cell * b, 10 + cell * a, cell * Math.min(set.keys, set.rows - b),
                cell * Math.min(set.queries, set.rows - a), tile ? "#CFE3F1" : "#FFFFFF", `stroke="${grey}"`);
        });
        counts.cells.forEach((seen, i) => seen && picture.rect((10 + cell * (i % set.rows + 0.15)).toFixed(2),
            (10 + cell * (Math.floor(i / set.rows) + 0.15)).toFixed(2), (0.7 * cell).toFixed(2), (0.7 * cell).toFixed(2), colours[0]));
        const lines = [`${counts.tiles.length - counts.skipped} tiles computed`, `${counts.skipped} tiles skipped`, "",
            `${written(counts.pairs)} pairs computed`, `${written(counts.visible)} of them seen`];
        lines.forEach((line, i) => picture.text(440, 60 + 26 * i, line));
        return picture;
    },
};

// ---- Online softmax, in any order: the toy of chapter 02.

pictures.fold = {
    about: "Press keys in any order. Whatever the order, the last row ends with the same mean of the values.",
    controls: {keys: number("keys", "1 3 2 5 4 5.5 0 2", null, null), values: number("values", "1 2 4 3 2 5 1 4", null, null)},
    order: [],
    count(set) {
        const read = words => String(words).trim().split(/[ ,]+/).map(Number).map(x => Number.isFinite(x) ? x : 0).slice(0, 10);
        const keys = read(set.keys), values = read(set.values);
        while (values.length < keys.length)
            values.push(0);
        this.order = this.order.filter(i => i < keys.length);
        const steps = [];
        modules.fold_begin();
        for (const i of this.order) {
            const [max, total, weighted] = answer(Float64Array, modules.fold(keys[i], values[i]), 3);
            steps.push({key: i, max, sum: total, o: weighted});
        }
        const [, , mean, lse] = answer(Float64Array, modules.fold_end(), 4);
        return {keys, values, steps, mean, lse};
    },
    draw(counts) {
        const picture = new Picture(720, 130 + 24 * (counts.keys.length + 2));
        counts.keys.forEach((key, i) => {
            const done = this.order.includes(i), x = 20 + 68 * i;
            picture.parts.push(`<g data-press="${i}" style="cursor: pointer">`);
            picture.rect(x, 16, 60, 56, done ? faint : colours[i % 8], 'rx="6"');
            picture.text(x + 30, 40, `k ${key}`, `${middle} ${done ? "" : white}`);
            picture.text(x + 30, 62, `v ${counts.values[i]}`, `${middle} ${done ? "" : white}`);
            picture.parts.push("</g>");
        });
        const columns = [100, 220, 350, 480, 640];
        ["key", "max", "sum", "o", "o / sum"].forEach((word, i) => picture.text(columns[i], 104, word, `${end} font-weight="bold"`));
        counts.steps.forEach((step, row) => [counts.keys[step.key], step.max, step.sum.toFixed(4), step.o.toFixed(4),
            (step.o / step.sum).toFixed(4)].forEach((word, i) => picture.text(columns[i], 128 + 24 * row, word, end)));
        picture.text(20, picture.height - 12, counts.steps.length < counts.keys.length
            ? `${counts.keys.length - counts.steps.length} keys to go; press one` : `o = ${counts.mean.toFixed(4)}, ` +
              `lse = ${counts.lse.toFixed(4)}; press a key to begin again`);
        return picture;
    },
    press(place) {
        if (this.order.includes(place))
            this.order = [];
        else
            this.order.push(place);
    },
};

// ---- Work and messages of a hop against the tokens of a rank.

const rates = {
    rate: number("work, 10¹² multiply-adds a second", 300, 1, 2000),
    bandwidth: number("link, 10⁹ bytes a second", 400, 1, 1000),
    heads: choice("key heads", "32", "1", "2", "4", "8", "16", "32"),
    pass: choice("pass", "forward", "forward", "backward"),
};

function predict(set, ranks, tokens, layout, causal) {
    const [seconds, work, waiting, hopWork, hopMessages] = answer(Float64Array, modules.predict(ranks, tokens,
        layouts.indexOf(layout), causal, Number(set.heads), 1e12 * set.rate, 1e9 * set.bandwidth, set.pass === "backward" ? 1 : 0), 5);
    return {ranks, tokens, seconds, work, waiting, hopWork, hopMessages};
}

// A curve in a frame whose two axes are logarithms.
function logs(picture, least, most, low, high) {
    const x = value => 80 + 610 * Math.log(value / least) / Math.log(most / least);
    const y = value => 330 - 290 * Math.log(Math.min(Math.max(value, low), high) / low) / Math.log(high / low);
    picture.line(80, 330, 690, 330);
    picture.line(80, 40, 80, 330);
    return [x, y];
}

pictures.hide = {
    about: "A message takes time with the tokens of a rank, work with their square: from some length on it hides the message.",
    controls: rates,
    count(set) {
        const points = range(23).map(i => predict(set, 4, 4 * 2 ** (8 + i / 2 | 0) * (i % 2 ? 1.5 : 1), "striped", 1));
        let low = 1, high = 2 ** 24; // tokens of a rank; where they cross, to a token
        while (high - low > 1) {
            const half = Math.floor((low + high) / 2), at = predict(set, 4, 4 * half, "striped", 1);
            if (at.hopWork >= at.hopMessages)
                high = half;
            else
                low = half;
        }
        return {points, cross: high};
    },
    draw(counts) {
        const picture = new Picture(720, 390), points = counts.points;
        const all = points.flatMap(point => [point.hopWork, point.hopMessages]);
        const [x, y] = logs(picture, points[0].tokens / 4, points[22].tokens / 4, Math.min(...all), Math.max(...all));
        picture.path(points.map(point => [x(point.tokens / 4), y(point.hopWork)]), colours[0]);
        picture.path(points.map(point => [x(point.tokens / 4), y(point.hopMessages)]), colours[1]);
        if (counts.cross >= points[0].tokens / 4 && counts.cross <= points[22].tokens / 4) {
            picture.line(x(counts.cross), 40, x(counts.cross), 330, `stroke="${grey}" stroke-dasharray="5 4"`);
            picture.text(x(counts.cross), 32, written(counts.cross), middle);
        }
        for (const i of range(12).filter(i => i % 3 === 0))
            picture.text(x(points[2 * i].tokens / 4), 352, written(points[2 * i].tokens / 4), middle);
        picture.text(385, 378, "tokens of a rank", middle);
        picture.text(95, 58, "work of a hop", `fill="${colours[0]}"`);
        picture.text(95, 80, "its message", `fill="${colours[1]}"`);
        picture.text(70, 46, time(Math.max(...all)), `${end} font-size="12"`);
        picture.text(70, 332, time(Math.min(...all)), `${end} font-size="12"`);
        return picture;
    },
};

// ---- What ranks are good for.

pictures.cost = {
    about: "One sequence on more and more ranks: the share of the time in which they work.",
    controls: {
        tokens: choice("tokens", "1048576", "65536", "131072", "262144", "524288", "1048576", "4194304"),
        layout: choice("layout", "striped", ...layouts),
        mask: choice("mask", "causal", "none", "causal"),
        ...rates,
    },
    count(set) {
        return {points: [1, 2, 4, 8, 16, 32, 64, 128, 256].map(ranks => predict(set, ranks, Number(set.tokens), set.layout, set.mask === "causal" ? 1 : 0))};
    },
    draw(counts) {
        const picture = new Picture(720, 330);
        picture.text(20, 26, "ranks work", 'font-weight="bold"');
        counts.points.forEach((point, i) => {
            const share = point.work / point.seconds, x = 40 + 74 * i;
            picture.rect(x, 50, 54, 200, faint);
            picture.rect(x, 250 - 200 * share, 54, 200 * share, colours[0]);
            picture.text(x + 27, 270, point.ranks, middle);
            picture.text(x + 27, 44, `${(100 * share).toFixed(0)} %`, `${middle} font-size="14"`);
            picture.text(x + 27, 290, time(point.seconds), `${middle} font-size="12"`);
        });
        picture.text(20, 318, "ranks, and the time of the pass; grey: waiting for messages or for ranks that have more to do");
        return picture;
    },
};

// ---- The barriers of a pipeline.

const roles = ["warpgroup 0", "warpgroup 1", "warpgroup 2", "producer", "TMA"];

pictures.pipeline = {
    about: "Press who goes next. Nobody can read a slot too early or fill it too soon, in whatever order you press.",
    controls: {},
    order: [],
    count() {
        modules.pipeline_begin();
        const moved = this.order.map(who => who < 3
            ? sum(range(4).map(warp => modules.pipeline_advance(4 * who + warp, 4, 0))) : modules.pipeline_advance(who === 3 ? 12 : 13, 8, 0));
        const state = answer(Int32Array, modules.pipeline_state(), 57);
        return {moved, slots: range(4).map(i => state.slice(7 * i, 7 * i + 7)), tasks: range(14).map(i => state.slice(28 + 2 * i, 30 + 2 * i)), wrong: state[56]};
    },
    draw(counts) {
        const picture = new Picture(720, 330), last = counts.moved[counts.moved.length - 1];
        counts.slots.forEach(([tile, second, full, , empty, pending], i) => {
            const x = 20 + 172 * i, whole = tile >= 0 && tile === second;
            picture.rect(x, 16, 160, 84, tile >= 0 || second >= 0 ? colours[i < 2 ? 0 : 2] : faint, 'rx="6"');
            picture.text(x + 80, 44, i < 2 ? `keys, slot ${i}` : `values, slot ${i - 2}`, `${middle} ${tile >= 0 || second >= 0 ? white : ""}`);
            picture.text(x + 80, 76, tile < 0 && second < 0 ? "empty" : whole ? `tile ${tile}` : `tile ${Math.max(tile, second)}, in part`,
                `${middle} ${tile >= 0 || second >= 0 ? white : ""}`);
            picture.text(x, 124, `full: phase ${full}`, 'font-size="14"');
            picture.text(x, 144, `empty: phase ${empty}, ${pending} due`, 'font-size="14"');
        });
        roles.forEach((role, who) => {
            const x = 20 + 138 * who, of = who < 3 ? counts.tasks.slice(4 * who, 4 * who + 4) : [counts.tasks[who + 9]];
            picture.parts.push(`<g data-press="${who}" style="cursor: pointer">`);
            picture.rect(x, 176, 128, 44, colours[4], 'rx="6"');
            picture.text(x + 64, 203, role, middle);
            picture.parts.push("</g>");
            const done = sum(of.map(pair => pair[0])), all = sum(of.map(pair => pair[1]));
            picture.text(x + 64, 242, `${done} of ${all}`, `${middle} font-size="14"`);
        });
        picture.text(20, 280, this.order.length === 0 ? "press the producer: it asks for the first tiles"
            : last > 0 ? `${roles[this.order[this.order.length - 1]]} did ${last} of its tasks` : `${roles[this.order[this.order.length - 1]]} waits: ` +
              "a phase that it needs is not over");
        picture.text(20, 306, counts.wrong ? "something was read that was not there" : "nothing has gone wrong");
        return picture;
    },
    press(place) {
        this.order.push(place);
    },
};

// ---- On a page.

function settings(picture, words) {
    const set = Object.fromEntries(Object.entries(picture.controls).map(([name, control]) => [name, control.value]));
    for (const [, name, value] of words.matchAll(/([a-z]+)=("[^"]*"|\S+)/g))
        set[name] = picture.controls[name].words || picture.controls[name].least === null ? value.replace(/"/g, "") : Number(value);
    return set;
}

function control(box, name, how, set, show) {
    const label = document.createElement("label"), field = document.createElement(how.words ? "select" : "input");
    label.append(how.label + " ", field);
    for (const word of how.words ?? [])
        field.append(new Option(word, word));
    if (!how.words)
        Object.assign(field, how.least === null ? {type: "text", size: 16} : {type: "number", min: how.least, max: how.most, step: how.step});
    field.value = set[name];
    field.addEventListener("input", () => {
        set[name] = how.words || how.least === null ? field.value
            : Math.min(Math.max(Math.round(Number(field.value)) || how.least, how.least), how.most);
        show();
    });
    box.append(label);
    return [name, label];
}

function begin(place) {
    const picture = Object.create(pictures[place.dataset.live]), set = settings(picture, place.dataset.set);
    picture.order = [];
    const about = document.createElement("p"), box = document.createElement("div"), figure = document.createElement("div");
    about.textContent = "Live: " + picture.about;
    box.className = "controls";
    figure.className = "figure";
    const labels = Object.entries(picture.controls).map(([name, how]) => control(box, name, how, set, show));
    function show() {
        for (const [name, label] of labels)
            label.hidden = picture.hides?.[name]?.(set) ?? false;
        try {
            const counts = picture.count(set);
            place.counts = counts;
            figure.innerHTML = picture.draw(counts, set);
            for (const part of figure.querySelectorAll("[data-press]"))
                part.addEventListener("click", () => (picture.press(Number(part.dataset.press)), show()));
        } catch (error) {
            figure.textContent = error.message;
        }
    }
    place.append(about, box, figure);
    show();
}

if (typeof document === "undefined")
    globalThis.live = {pictures, settings};
else
    document.querySelectorAll(".live").forEach(begin);
