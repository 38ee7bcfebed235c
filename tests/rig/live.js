// live: what a live picture of the book counts, in the words of the programs that count the same.
//
//     node live.js SCRIPT PICTURE setting=value...        SCRIPT: build/live.js
"use strict";

const fs = require("fs"), vm = require("vm");
vm.runInThisContext(fs.readFileSync(process.argv[2], "utf8"));
const name = process.argv[3], picture = Object.create(live.pictures[name]);
const set = live.settings(picture, process.argv.slice(4).join(" "));
picture.order = [];

const say = words => process.stdout.write(words + "\n");

// As stages print them with --per-hop.
function sayHops(hops, pass, works) {
    for (const one of hops) {
        const hop = `rank ${one.rank} hop ${one.distance}`;
        say(`${hop} multiply-adds ${pass} ${works(one)}`);
        say(`${hop} messages sent ${pass} ${one.messages}`);
        say(`${hop} bytes sent ${pass} ${one.bytes}`);
    }
}

const words = {
    ring() {
        const counts = picture.count(set);
        sayHops(counts.steps.flat(), set.pass, one => one.work);
    },
    // Of the cells that are drawn: D = 64 multiply-adds for a score, and as many for its output.
    mask() {
        sayHops(picture.count(set).grids, "forward", one => 2 * 64 * one.pairs);
    },
    band() {
        const counts = picture.count(set);
        say(`multiply-adds forward ${2 * 64 * counts.pairs}`);
        say(`tiles skipped forward ${counts.skipped}`);
    },
    // As the toy of chapter 02 ends, whatever the order.
    fold() {
        for (const order of [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [5, 0, 7, 2, 1, 6, 3, 4]]) {
            picture.order = order;
            const counts = picture.count(set);
            say(`o ${counts.mean.toFixed(4)}  lse ${counts.lse.toFixed(4)}`);
        }
    },
    // As 12-scale --csv, in columns ranks, seconds and waiting percent.
    cost() {
        for (const one of picture.count(set).points)
            say([one.ranks, one.seconds, 100 * one.waiting / one.seconds].map(x => Number(x.toPrecision(9))).join());
    },
    // Tokens of a rank, work of a hop and its message; and where they cross.
    hide() {
        const counts = picture.count(set);
        for (const one of counts.points)
            say([one.tokens, one.hopWork, one.hopMessages].map(x => Number(x.toPrecision(9))).join());
        say(`cross ${counts.cross}`);
    },
    // In random orders nobody is stuck before the end, and nothing goes wrong, as pipeline says.
    pipeline() {
        let dice = 1, stuck = 0, wrong = 0;
        const draw = () => (dice = (dice * 48271) % 2147483647) % 5;
        for (let run = 0; run < 20; run++) {
            picture.order = Array.from({length: 4000}, draw);
            const counts = picture.count(set);
            stuck += counts.tasks.some(([done, all]) => done < all) ? 1 : 0;
            wrong += counts.wrong;
        }
        say(`${stuck} got stuck, ${wrong} went wrong`);
    },
};

words[name]();
if (!picture.draw(picture.count(set), set).toString().endsWith("</svg>"))
    throw new Error(`${name} draws nothing`);
