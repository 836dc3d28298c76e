/** node subword_golden.mjs FOLDER: pieces of texts by each tokenizer of a folder, see test_subwords.py; prints what differs. */

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Subwords } from "../../tflite/web/subwords.js";
import { Unicode } from "../../tflite/web/text.js";

const [folder] = process.argv.slice(2);
const read = (path) => readFileSync(path, "utf-8");
const unicode = new Unicode(JSON.parse(read(new URL("../../tflite/web/unicode.json", import.meta.url))));
for (const name of readdirSync(folder)) {
  const subwords = new Subwords(JSON.parse(read(join(folder, name, "tokenizer.json"))), unicode);
  const cases = read(join(folder, name, "pieces.jsonl")).trimEnd().split("\n").map((line) => JSON.parse(line));
  let different = 0;
  for (const { text, place, pieces } of cases) {
    const points = [...text].flatMap((letter, point) => Array(letter.length).fill(point));
    points.push([...text].length);
    const own = subwords.pieces(text, place).map(({ id, begin, end, word }) => [id, points[begin], points[end], word]);
    if (JSON.stringify(own) !== JSON.stringify(pieces) && different++ < 5) {
      console.log(`${JSON.stringify(text)}: ${JSON.stringify(own)}, not ${JSON.stringify(pieces)}`);
    }
  }
  console.log(`${name}: ${cases.length} texts, ${different} differences`);
}
