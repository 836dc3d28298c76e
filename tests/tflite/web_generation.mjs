/**
 * node web_generation.mjs FOLDER: sampling, language models and filling of tflite/web, see tests/golden_generation.py.
 */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { vocabularyOf } from "../../tflite/web/ctxrep.js";
import { Filler } from "../../tflite/web/filling.js";
import { Generator } from "../../tflite/web/generator.js";
import { filtered, gumbel, sample } from "../../tflite/web/sampling.js";
import { Unicode } from "../../tflite/web/text.js";

const unicode = new Unicode(JSON.parse(readFileSync(new URL("../../tflite/web/unicode.json", import.meta.url), "utf-8")));
const counts = { draws: 0, texts: 0, masks: 0, different: 0 };
const lines = (path) => readFileSync(path, "utf-8").trimEnd().split("\n").map((line) => JSON.parse(line));

function compare(name, source, value, expected) {
  const near = (a, b) => a === b || (typeof b === "number" && Math.abs(a - b) <= 1e-12 * Math.max(1, Math.abs(b)));
  const same = (a, b) => near(a, b)
    || (a && b && typeof b === "object" && Object.keys(a).join() === Object.keys(b).join()
      && Object.keys(b).every((key) => same(a[key], b[key])));
  if (same(value, expected)) return;
  if (++counts.different <= 20) console.log(`${name}: ${source}: ${JSON.stringify(value)}, not ${JSON.stringify(expected)}`);
}

for (const line of lines(join(process.argv[2], "sampling.jsonl"))) {
  const logits = line.logits.map((logit) => logit ?? -Infinity);
  const seed = BigInt(line.seed);
  const left = [...filtered(logits, line.options).entries()].filter(([, score]) => score > -Infinity).map(([id]) => id);
  const source = JSON.stringify(line.options);
  compare("left", source, left, line.left);
  compare("noise", source, line.noise.map((_, id) => gumbel(seed, 0, id)), line.noise);
  compare("ids", source, line.ids.map((_, step) => sample(logits, seed, step, line.options)), line.ids);
  counts.draws += line.ids.length;
}

/** As `step` of golden_generation.py. */
function step({ token_ids, state }, vocabulary) {
  const [first, count] = state ?? [0, 0];
  const next = [(31 * first + 17 * token_ids[0] + 7) % 9973, count + 1];
  const logit = (_, i) => ((next[0] * (i + 3) + next[1] * i * i) % 101) / 16;
  return { logits: { data: Float32Array.from({ length: vocabulary }, logit) }, state: { data: Float32Array.from(next) } };
}

/** As `mlm_logits` of golden_generation.py, of one row, with as many positions as a signature has. */
function mlmLogits(inputs, vocabulary, positions) {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const data = new Float32Array(positions * vocabulary);
  inputs.mlm_positions.forEach((position, i) => {
    const hash = 7 * sum(inputs.token_ids) + 13 * sum(inputs.mask) + 29 * position + sum(inputs.segment_ids);
    for (let id = 0; id < vocabulary; id++) data[i * vocabulary + id] = ((hash * (id + 3)) % 211) / 16;
  });
  return { mlm_logits: { data } };
}

for (const name of readdirSync(process.argv[2])) {
  const folder = join(process.argv[2], name);
  if (!existsSync(join(folder, "bundle.json"))) continue;
  const bundle = JSON.parse(readFileSync(join(folder, "bundle.json"), "utf-8"));
  const vocab = vocabularyOf(bundle, (file) => readFileSync(join(folder, file)), unicode);
  if (bundle.task === "pretrainer") {
    const filler = new Filler(bundle, vocab, unicode, async (inputs) => mlmLogits(inputs, filler.names.length, 4), 4);
    for (const { text, masks } of lines(join(folder, "fillings.jsonl"))) {
      compare(name, JSON.stringify(text), await filler.fill(text, 4), masks);
      counts.masks += masks.length;
    }
    continue;
  }
  const generator = new Generator(bundle, vocab, unicode, async (inputs) => {
    return step(inputs, generator.features.vocab.length);
  });
  for (const { prompt, ids, options, text } of lines(join(folder, "texts.jsonl"))) {
    counts.texts++;
    compare(`${name}, ids`, JSON.stringify(prompt), generator.features.prompt(prompt), ids);
    const given = { ...options, seed: BigInt(options.seed) };
    compare(`${name}, text`, JSON.stringify(prompt), await generator.generate(prompt, given), text);
  }
}
console.log(JSON.stringify(counts));
process.exit(counts.different ? 1 : 0);
