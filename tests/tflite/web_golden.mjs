/**
 * node web_golden.mjs FOLDER [TOLERANCE]: the golden strings through tflite/web, see tests/golden.py; prints what differs.
 * Numbers may differ by the tolerance, absolute or relative (default: 1e-12).
 */

import { readdirSync, readFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { Index, Predictor, vocabularyOf } from "../../tflite/web/ctxrep.js";
import { featuresOf, rowsOf } from "../../tflite/web/features.js";
import { Unicode } from "../../tflite/web/text.js";

const [folder, tolerance = "1e-12"] = process.argv.slice(2);
const tables = new URL("../../tflite/web/unicode.json", import.meta.url);
const unicode = new Unicode(JSON.parse(readFileSync(tables, "utf-8")));
const counts = { cases: 0, answers: 0, vectors: 0, searches: 0, different: 0 };

const lines = (path) => readFileSync(path, "utf-8").trimEnd().split("\n").map((line) => JSON.parse(line));

/** Offsets in UTF-16 units as offsets in code points. */
function inCodePoints(text) {
  const points = [];
  let count = 0;
  for (const letter of text) {
    for (let i = 0; i < letter.length; i++) points.push(count);
    count++;
  }
  points.push(count);
  return (offset) => points[offset];
}

/** The first difference of two values, numbers up to rounding. */
function difference(value, expected, path = "") {
  if (typeof expected === "number" && typeof value === "number") {
    const near = Math.abs(value - expected) <= Number(tolerance) * Math.max(1, Math.abs(expected));
    return near ? null : `${path}: ${value}, not ${expected}`;
  }
  if (expected === null || typeof expected !== "object" || value === null || typeof value !== "object") {
    return value === expected ? null : `${path}: ${JSON.stringify(value)}, not ${JSON.stringify(expected)}`;
  }
  const keys = [...new Set([...Object.keys(expected), ...Object.keys(value)])];
  for (const key of keys) {
    const nested = difference(value[key], expected[key], `${path}.${key}`);
    if (nested) return nested;
  }
  return null;
}

function report(name, text, message) {
  counts.different++;
  if (counts.different <= 20) console.log(`${name}: ${JSON.stringify(text)}: ${message}`);
}

/** A row with its offsets in code points of the text that each token is from. */
function window(features, row, given) {
  const words = given.words;
  let offsets = row.offsets;
  if (offsets && words) {
    const ofWord = row.tokens.map(() => null);
    const starts = row.starts.map((start, word) => [start, word]).filter(([start]) => start !== null);
    starts.forEach(([start, word], i) => {
      const end = i + 1 < starts.length ? starts[i + 1][0] : row.tokens.length;
      for (let token = start; token < end; token++) ofWord[token] = inCodePoints(words[word]);
    });
    offsets = offsets.map((span, i) => (ofWord[i] ? span.map(ofWord[i]) : span));
  } else if (offsets) {
    const [first, second] = [given.text, given.pair ?? ""].map(inCodePoints);
    offsets = offsets.map((span, i) => span.map(row.first && i >= row.first ? second : first));
  }
  const spans = row.words && !words ? row.words.map((span) => span.map(inCodePoints(given.text))) : null;
  return { inputs: features.inputs(row), offsets, spans, truncated: row.truncated };
}

function testCases(name, bundle, features, path) {
  for (const given of lines(path)) {
    counts.cases++;
    const rows = rowsOf(bundle, features, given.words ?? given.text, given.pair);
    const windows = rows.map((row) => window(features, row, given));
    windows.forEach((entry, i) => {
      if (!bundle.reads.words) entry.spans = null;
      if (!rows[i].tokens.length) entry.inputs = given.windows[i].inputs; // one position of padding; not run
    });
    const message = difference(windows, given.windows);
    if (message) report(name, given.text, message);
  }
}

/** The outputs of one window as a runtime gives them. */
function flat(nested) {
  const shape = [];
  for (let value = nested; Array.isArray(value); value = value[0]) shape.push(value.length);
  return { data: nested.flat(Infinity), shape };
}

/** An answer with its offsets in code points. */
function converted(answer, text) {
  const point = inCodePoints(text);
  const change = (entry) => ({ ...entry, start: point(entry.start), end: point(entry.end) });
  const result = { ...answer };
  for (const name of ["words", "entities", "alignment"]) if (result[name]) result[name] = result[name].map(change);
  if ("start" in result) result.n_best = result.n_best.map(change);
  return "start" in result ? change(result) : result;
}

async function testAnswers(name, bundle, vocab, path) {
  for (const given of lines(path)) {
    counts.answers++;
    let number = 0;
    const predictor = new Predictor(bundle, vocab, unicode, async () => {
      const at = number++;
      return Object.fromEntries(Object.entries(given.outputs).map(([key, values]) => [key, flat(values[at])]));
    });
    const answer = await predictor.predict(given.words ?? given.text, given.pair);
    const text = bundle.task === "answer" ? given.pair : given.text;
    const message = difference(answer.error ? answer : converted(answer, text), given.answer);
    if (message) report(name, given.text, message);
  }
}

/** The vectors of all texts at once, zeros of a text without words, and searches among given vectors. */
async function testVectors(name, bundle, vocab, folder) {
  const all = lines(join(folder, "answers.jsonl"));
  const given = all.filter(({ outputs }) => outputs);
  let number = 0;
  const predictor = new Predictor(bundle, vocab, unicode, async () => {
    return { vector: flat(given[number++ % given.length].outputs.vector[0]) };
  });
  const texts = given.map(({ text }) => text);
  const vectors = await predictor.encode(texts);
  given.forEach(({ text, answer }, i) => {
    counts.vectors++;
    const message = vectors[i] instanceof Float32Array ? difference([...vectors[i]], answer.vector) : "no float32";
    if (message) report(name, text, message);
  });
  const [query, ...others] = texts;
  const matches = await predictor.search(query, [...others, query], 2); // run in this order
  number = 0;
  const again = await predictor.search(query, new Index([...vectors.slice(1), vectors[0]]), 2);
  const message = difference(matches, again) ?? difference(matches[0].row, others.length);
  if (message) report(name, query, message);
  const warnings = [];
  console.warn = (message) => warnings.push(message);
  for (const { text } of all.filter(({ outputs }) => !outputs)) {
    number = 0;
    const [first, empty] = await predictor.encode([query, text]);
    number = 0;
    const [alone] = await predictor.encode([text]);
    const zeros = vectors[0].map(() => 0);
    const message = difference([first, empty, alone].map((vector) => [...vector]), [vectors[0], zeros, zeros]);
    if (message) report(name, text, message);
    if (!/^1 of 2 texts have vectors of zeros, the first of them text 1, ".*": no words/s.test(warnings.at(-2))) {
      report(name, text, warnings.at(-2));
    }
    const error = await predictor.search(text, new Index(vectors)).catch((error) => error.message);
    if (!/^text 0, ".*": no words in this text$/s.test(error)) report(name, text, error);
  }
  for (const { query, vectors, top, matches } of lines(join(folder, "search.jsonl"))) {
    counts.searches++;
    const own = new Index(vectors).search(Float32Array.from(query), top).map(({ row, score }) => [row, score]);
    const message = difference(own, matches);
    if (message) report(name, query, message);
  }
}

for (const name of readdirSync(folder).filter((name) => existsSync(join(folder, name, "bundle.json")))) {
  const bundle = JSON.parse(readFileSync(join(folder, name, "bundle.json"), "utf-8"));
  const vocab = vocabularyOf(bundle, (file) => readFileSync(join(folder, name, file)), unicode);
  testCases(name, bundle, featuresOf(bundle, vocab, unicode), join(folder, name, "cases.jsonl"));
  await testAnswers(name, bundle, vocab, join(folder, name, "answers.jsonl"));
  if (bundle.task === "embed") await testVectors(name, bundle, vocab, join(folder, name));
}
console.log(JSON.stringify(counts));
process.exit(counts.different ? 1 : 0);
