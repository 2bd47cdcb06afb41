// Timers, file reads and arithmetic in an event loop.
const fs = require("fs");
let sum = 0, turns = 0;
function turn() {
    for (let i = 0; i < 400000; i++) sum = (sum * 31 + i) % 1000003;
    fs.readFile(__filename, (error, data) => {
        if (error) throw error;
        sum = (sum + data.length) % 1000003;
        if (++turns < 300) setTimeout(turn, 1);
        else console.log(sum);
    });
}
turn();
