#!/usr/bin/env node
// Runs the program that one of the optional dependencies carries.
"use strict";
const { spawn } = require("node:child_process");
const name = `plimsoll-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/plimsoll`);
} catch {
  console.error(`plimsoll: there is no binary for ${process.platform} on ${process.arch} (${name} is not installed)`);
  process.exit(1);
}
const args = process.argv.slice(2);
const child = spawn(program, args, { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("exit", (code, signal) => {
  process.exitCode = signal ? 128 : code;
});
