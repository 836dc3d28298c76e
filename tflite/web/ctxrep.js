/**
 * Runs .tflite files of keras_ctxrep in a web page: text in, answers out, nothing leaves the browser.
 *
 *     import { load } from "./ctxrep.js";
 *     const model = await load("model.tflite");
 *     const { entities } = await model.tag("Ada Lovelace lived in London.");
 *
 * The answers have the form of the Python `Predictor`'s; offsets are in UTF-16 units, so that `text.slice(start, end)`
 * is what they mark. LiteRT comes from the page's import map, under the name "@litertjs/core", or is given.
 */

import { featuresOf, prefixOf, roleOf, rowsOf } from "./features.js";
import { BUSY, pause } from "./pause.js";
import { softmax } from "./sampling.js";
import { checkTop, Index } from "./search.js";
import { Subwords } from "./subwords.js";
import { Unicode, wellFormed } from "./text.js";
import { attention, translated } from "./translation.js";

export { BUSY, pause } from "./pause.js";
export { Index, sentencesOf } from "./search.js";

const N_BEST = 20; // answers kept for each window, and returned
const THRESHOLD = 0.5; // smallest probability of a predicted label of multilabel
const TAG = /^(?:O|[BI]|[BIESLU]-[^\n]+)$/u;

/**
 * @typedef {{data: ArrayLike<number>, shape: number[]}} Output without the batch axis
 * @typedef {import("./text.js").Row} Row
 * @typedef {Record<string, Output>} Outputs
 * @typedef {{bundle: any, text: string|string[], pair: string|null, rows: Row[], outputs: Outputs[]}} Ran
 * @typedef {{type: string, text: string, start: number, end: number}} Entity
 * @typedef {{word: string, start: number, end: number, label: string|null, score: number}} Word
 * @typedef {{answer: string, start: number, end: number, score: number, probability: number}} Candidate
 */

/** @param {ArrayLike<number>} values @returns {number} the index of the first of the highest values */
function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** @param {Ran} ran @param {(logits: ArrayLike<number>) => number[]} scored @returns {number[]} over the windows */
function pooled({ bundle, outputs }, scored) {
  const windows = outputs.map((output) => scored(output.logits.data));
  return windows[0].map((_, label) => {
    const scores = windows.map((scores) => scores[label]);
    if (bundle.settings.windows === "max") return scores.reduce((most, score) => Math.max(most, score), -Infinity);
    return scores.reduce((sum, score) => sum + score, 0) / scores.length;
  });
}

/**
 * A file for MediaPipe gives probabilities: the logits that have these, as keras_ctxrep_tflite/mediapipe.py.
 *
 * @param {Outputs} outputs
 * @param {string} task
 * @returns {Outputs}
 */
function withLogits(outputs, task) {
  if (!outputs.probabilities) return outputs;
  const { data, shape } = outputs.probabilities;
  const clipped = Array.from(data, (value) => Math.min(Math.max(value, 1e-38), 1));
  const other = (/** @type {number} */ value) => (task === "classify" ? 0 : Math.log(Math.max(1 - value, 1e-8)));
  return { ...outputs, logits: { data: clipped.map((value) => Math.log(value) - other(value)), shape } };
}

/** @param {string[]} labels @param {number[]} scores @returns {Record<string, number>} */
function named(labels, scores) {
  return Object.fromEntries(labels.map((label, i) => [label, scores[i]]));
}

/** @param {Ran} ran */
function classified(ran) {
  const { labels } = ran.bundle;
  let scores = pooled(ran, softmax);
  const sum = scores.reduce((total, score) => total + score, 0);
  scores = scores.map((score) => score / sum);
  const best = argmax(scores);
  return { label: labels[best], score: scores[best], probabilities: named(labels, scores) };
}

/** @param {Ran} ran */
function multilabelled(ran) {
  const { labels } = ran.bundle;
  const scores = pooled(ran, (logits) => Array.from(logits, (logit) => 0.5 * (1 + Math.tanh(0.5 * logit))));
  const probabilities = named(labels, scores);
  return { labels: labels.filter((/** @type {string} */ label) => probabilities[label] >= THRESHOLD), probabilities };
}

/** @param {Ran} ran */
function regressed(ran) {
  return { value: pooled(ran, (logits) => Array.from(logits))[0] };
}

/** @param {Ran} ran */
function embedded({ outputs }) {
  return { vector: Array.from((outputs[0].vector ?? outputs[0].pooled).data) };
}

/** @param {string[]} tags of any scheme @returns {string[]} where every span begins with B- */
function iob2(tags) {
  /** @type {string|null} */
  let current = null; // the type of the span that the next word may continue
  return tags.map((tag) => {
    const kind = tag.slice(1);
    const inside = "IEL".includes(tag[0]) && kind === current;
    current = "BI".includes(tag[0]) ? kind : null;
    return tag === "O" ? tag : (inside ? "I" : "B") + kind;
  });
}

/** @param {(string|null)[]} labels @returns {{type: string, first: number, last: number}[]} the spans of words */
export function spans(labels) {
  let tags = labels.map((label) => label || "O");
  if (tags.every((tag) => TAG.test(tag))) tags = iob2(tags);
  /** @type {{type: string, first: number, last: number}[]} */
  const result = [];
  iob2(tags.map((tag) => (TAG.test(tag) ? tag : "O"))).forEach((tag, i) => {
    if (tag[0] === "B") result.push({ type: tag.slice(2), first: i, last: i });
    else if (tag[0] === "I") result[result.length - 1].last = i;
  });
  return result;
}

/** @param {string[]} labels @returns {boolean} whether they mark spans */
export function isSpans(labels) {
  return labels.some((label) => label !== "O") && labels.every((label) => TAG.test(label));
}

/** @param {Ran} ran @returns {{words: Word[], entities?: Entity[]}} */
function tagged({ bundle, text, rows, outputs }) {
  const { labels } = bundle;
  const split = typeof text !== "string";
  const sentence = split ? text.join(" ") : text;
  let place = 0;
  const joined = () => /** @type {string[]} */ (text).map((word) => [place, (place += word.length + 1) - 1]);
  const offsets = split ? joined() : (rows[0].words ?? []);
  const { logits, tags } = outputs[0];
  /** @type {Word[]} */
  const words = [];
  let number = 0;
  (rows[0].starts ?? []).slice(0, offsets.length).forEach((start, i) => {
    const [begin, end] = offsets[i];
    /** @type {Word} */
    const word = { word: sentence.slice(begin, end), start: begin, end, label: null, score: 0 };
    if (start === null && !split) return; // cut off
    words.push(word);
    if (start === null) return;
    const at = number++ * labels.length;
    const probabilities = softmax(Array.prototype.slice.call(logits.data, at, at + labels.length));
    const tag = tags ? tags.data[number - 1] : argmax(probabilities);
    word.label = labels[tag];
    word.score = probabilities[tag];
  });
  if (!isSpans(labels)) return { words };
  const entities = spans(words.map((word) => word.label)).map(({ type, first, last }) => {
    const [start, end] = [words[first].start, words[last].end];
    return { type, text: sentence.slice(start, end), start, end };
  });
  return { words, entities };
}

/** @param {Ran} ran @returns {{best: Candidate[], none: number}} the best spans, and the score of no answer */
function candidates({ bundle, pair, rows, outputs }) {
  const longest = bundle.settings.max_answer;
  /** @type {Map<string, {start: number, end: number, score: number}>} */
  const scores = new Map();
  let none = Infinity;
  rows.forEach((row, i) => {
    const [starts, ends] = [outputs[i].start_logits.data, outputs[i].end_logits.data];
    none = Math.min(none, starts[0] + ends[0]);
    const sums = [];
    const last = row.tokens.length - 1; // [SEP]
    for (let first = row.first; first < last; first++) {
      for (let end = first; end < Math.min(first + longest, last); end++) {
        sums.push({ first, end, score: starts[first] + ends[end] });
      }
    }
    for (const { first, end, score } of sums.sort((a, b) => b.score - a.score).slice(0, N_BEST)) {
      const words = /** @type {number[][]} */ (row.words);
      const span = { start: words[first][0], end: words[end][1], score };
      const key = `${span.start},${span.end}`;
      if (score > (scores.get(key)?.score ?? -Infinity)) scores.set(key, span);
    }
  });
  const best = [...scores.values()].sort((a, b) => b.score - a.score).slice(0, N_BEST);
  const probabilities = best.length ? softmax(best.map(({ score }) => score)) : [];
  const full = best.map(({ start, end, score }, i) => {
    return { answer: (pair ?? "").slice(start, end), start, end, score, probability: probabilities[i] };
  });
  return { best: full, none };
}

/** @param {Ran} ran */
function answered(ran) {
  const { best, none } = candidates(ran);
  const threshold = ran.bundle.settings.null_threshold;
  const unanswered = !best.length || (threshold !== null && none - best[0].score > threshold);
  const { answer, start, end, score } = unanswered ? { answer: "", start: 0, end: 0, score: none } : best[0];
  return { answer, start, end, score, null_score: none, n_best: best };
}

const NO_WORDS = "no words in this text"; // of a pair in both

/** @type {Record<string, any>} the keys of an answer without a prediction */
const EMPTY = {
  classify: { label: null, score: null, probabilities: {} },
  multilabel: { labels: [], probabilities: {} },
  regress: { value: null },
  tag: { words: [] },
  answer: { answer: null, start: null, end: null, score: null, null_score: null, n_best: [] },
  embed: { vector: [] },
  translate: { text: null, score: null, alignment: [] },
};

/** @param {any} bundle @returns {any} what stands in the place of an answer to a text without words */
function unanswered({ task, labels }) {
  const entities = task === "tag" && isSpans(labels) ? { entities: [] } : {};
  return { error: NO_WORDS, ...structuredClone(EMPTY[task]), ...entities };
}

/** @type {Record<string, (ran: Ran) => any>} */
const TASKS = {
  classify: classified,
  multilabel: multilabelled,
  regress: regressed,
  tag: tagged,
  answer: answered,
  embed: embedded,
  translate: translated,
};

/** Answers to texts from a model's outputs: text preparation and decoding, around any engine. */
export class Predictor {
  /**
   * @param {any} bundle the contents of bundle.json
   * @param {any} vocab see `vocabularyOf`
   * @param {Unicode} unicode
   * @param {(inputs: Record<string, any[]>) => Promise<Record<string, Output>>} run of one row
   */
  constructor(bundle, vocab, unicode, run) {
    if (bundle.format !== 2) throw new Error(`the bundle has format ${bundle.format}, not 2: convert the model again`);
    if (!(bundle.task in TASKS)) throw new Error(`task ${bundle.task}: not one of ${Object.keys(TASKS).join(", ")}`);
    this.bundle = bundle;
    this.features = featuresOf(bundle, vocab, unicode);
    this.run = run;
    const [row] = rowsOf(bundle, this.features, "", bundle.reads.pair ? "" : null);
    /** @type {number} tokens of a text without words, of a pair of both, which gets no answer; 0 if there are no marks */
    this.nothing = "subwords" in this.features && this.features.subwords ? 0 : row.tokens.length;
    /** @type {Promise<any>} */
    this.last = Promise.resolve();
  }

  /** The name of its task. @returns {string} */
  get task() {
    return this.bundle.task;
  }

  /** Its labels, in the order of its outputs. @returns {string[]} */
  get labels() {
    return this.bundle.labels;
  }

  /**
   * The answer of the model's task. Calls run one after the other, in their order.
   *
   * @param {string|string[]} text for a tagger also a sentence that is split into words
   * @param {string|null} pair the second text, or the context of a question
   * @returns {Promise<any>} with `truncated` where the text was longer than the model reads; with `error`, and null, []
   *   or {} under the other keys, of a text without words, of a pair where both are
   */
  predict(text, pair = null) {
    return this.inTurn(() => this.answerTo(text, pair, TASKS[this.task]));
  }

  /** @template T @param {() => Promise<T>} act @returns {Promise<T>} what it gives when all calls before it are done */
  inTurn(act) {
    const result = this.last.then(act);
    this.last = result.catch(() => undefined);
    return result;
  }

  /**
   * @param {string|string[]} text
   * @param {string|null} pair
   * @param {(ran: Ran) => any} decode
   * @param {string|null} role of a text to encode
   */
  async answerTo(text, pair, decode, role = null) {
    const { bundle, features } = this;
    const { reads } = bundle;
    if (!reads.pair !== (pair === null)) {
      throw new TypeError(`this model reads ${reads.pair ? "pairs of texts" : "one text at a time"}`);
    }
    if (typeof text !== "string" && !reads.words) throw new TypeError("this model reads a string");
    text = typeof text === "string" ? wellFormed(text) : text.map(wellFormed);
    pair = pair === null ? null : wellFormed(pair);
    const prefix = prefixOf(bundle, role);
    if (prefix) text = prefix + text;
    const nothing = prefix ? JSON.stringify(rowsOf(bundle, features, prefix, pair)[0].tokens) : null;
    const rows = rowsOf(bundle, features, text, pair);
    const outputs = [];
    for (const row of rows) {
      if (row.tokens.length <= this.nothing || JSON.stringify(row.tokens) === nothing) continue;
      outputs.push(withLogits(await this.run(features.inputs(row)), bundle.task));
    }
    if (!outputs.length) return unanswered(bundle);
    const answer = decode({ bundle, text, pair, rows, outputs });
    return rows.some((row) => row.truncated) ? { ...answer, truncated: true } : answer;
  }

  /** @param {string} name @param {string|string[]} text @param {string|null} pair */
  only(name, text, pair = null) {
    this.check(name);
    return this.predict(text, pair);
  }

  /** @param {string} name of the task that a method is for */
  check(name) {
    if (this.task !== name) throw new TypeError(`this model's task is ${this.task}, not ${name}`);
  }

  /**
   * @param {string} text
   * @param {string|null} pair
   * @returns {Promise<{label: string, score: number, probabilities: Record<string, number>}>}
   */
  classify(text, pair = null) {
    return this.only("classify", text, pair);
  }

  /** @param {string|string[]} text @returns {Promise<{words: Word[], entities?: Entity[]}>} */
  tag(text) {
    return this.only("tag", text);
  }

  /**
   * @param {string} question
   * @param {string} text
   * @returns {Promise<{
   *   answer: string, start: number, end: number, score: number, null_score: number, n_best: Candidate[],
   * }>} offsets are those in the text
   */
  answer(question, text) {
    return this.only("answer", question, text);
  }

  /**
   * The text that the model writes for a text, as in `predict`, and where it looked.
   *
   * @param {string} text
   * @returns {Promise<import("./translation.js").Translation & {attention: import("./translation.js").Attention}>}
   */
  translate(text) {
    this.check("translate");
    return this.inTurn(() => this.answerTo(text, null, (ran) => ({ ...translated(ran), attention: attention(ran) })));
  }

  /** @param {string} text @param {string|null} role as in `encode` @returns {Promise<{vector: number[]}>} */
  embed(text, role = null) {
    this.check("embed");
    return this.inTurn(() => this.answerTo(text, null, embedded, role));
  }

  /**
   * One vector per text, pooled and scaled as the bundle says; those of Python's `Model.encode`. The page can react and
   * draw between the texts.
   *
   * @param {string[]} texts
   * @param {string|null} role "query" or "passage", of a model that was trained with a prefix for each
   * @returns {Promise<Float32Array[]>} zeros of a text without words, of which the console is told
   */
  async encode(texts, role = null) {
    const vectors = await this.vectors(texts, role);
    const empty = vectors.indexOf(null);
    if (empty < 0) return /** @type {Float32Array[]} */ (vectors);
    const count = vectors.filter((vector) => vector === null).length;
    const first = `the first of them text ${empty}, ${JSON.stringify(texts[empty].slice(0, 60))}`;
    console.warn(`${count} of ${texts.length} texts have vectors of zeros, ${first}: ${NO_WORDS}`);
    const width = (vectors.find((vector) => vector) ?? (await this.embed("a")).vector).length;
    return vectors.map((vector) => vector ?? new Float32Array(width));
  }

  /**
   * @param {string[]} texts
   * @param {string|null} role
   * @returns {Promise<(Float32Array|null)[]>} null of a text without words
   */
  async vectors(texts, role) {
    if (!Array.isArray(texts)) throw new TypeError("encode reads a list of texts: encode([text])");
    const wrong = texts.findIndex((text) => typeof text !== "string");
    if (wrong >= 0) throw new TypeError(`text ${wrong} is not a string`);
    const vectors = [];
    let begin = performance.now();
    for (const [number, text] of texts.entries()) {
      if (performance.now() - begin > BUSY) {
        await pause();
        begin = performance.now();
      }
      const { vector, error } = /** @type {any} */ (await this.embed(text, role));
      vectors.push(error ? null : Float32Array.from(vector));
    }
    return vectors;
  }

  /**
   * @param {string[]} texts
   * @param {string} role if the model has it
   * @returns {Promise<Float32Array[]>} rejected where a text has no words, to search by
   */
  async directed(texts, role) {
    const vectors = await this.vectors(texts, roleOf(this.bundle, role));
    const empty = vectors.indexOf(null);
    if (empty < 0) return /** @type {Float32Array[]} */ (vectors);
    throw new Error(`text ${empty}, ${JSON.stringify(texts[empty].slice(0, 60))}: ${NO_WORDS}`);
  }

  /**
   * The documents whose vectors have the highest cosines with that of a text, the best first. A model with roles reads
   * the text as a "query", and documents that are texts as a "passage".
   *
   * @param {string} query
   * @param {Index|ArrayLike<number>[]|string[]} documents an index, vectors of `encode`, or texts, which are encoded in
   *   every call
   * @param {number} top at most so many
   * @returns {Promise<import("./search.js").Match[]>} of equal cosines the lower row first; rejected where a text has no
   *   words
   */
  async search(query, documents, top = 10) {
    checkTop(top);
    const [vector] = await this.directed([query], "query");
    if (documents instanceof Index) return documents.search(vector, top);
    const given = /** @type {any[]} */ (documents);
    return new Index(typeof given[0] === "string" ? await this.directed(given, "passage") : given).search(vector, top);
  }
}

/**
 * The files in the zip archive at the end of a .tflite file.
 *
 * @param {Uint8Array} bytes
 * @returns {{begin: number, files: Record<string, Uint8Array>}} and where the archive begins
 */
export function unzipped(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= Math.max(0, bytes.length - 22 - 0xffff) && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0 || view.getUint32(end, true) !== 0x06054b50) {
    throw new Error("no bundle in this file: write it with `ctxrep tflite`");
  }
  const [size, recorded] = [view.getUint32(end + 12, true), view.getUint32(end + 16, true)];
  const moved = end - size - recorded; // by what stands before the archive, if its offsets do not count it
  let begin = bytes.length;
  /** @type {Record<string, Uint8Array>} */
  const files = {};
  for (let entry = end - size; entry < end; ) {
    const [stored, packed] = [view.getUint16(entry + 10, true) === 0, view.getUint32(entry + 20, true)];
    const lengths = [28, 30, 32].map((offset) => view.getUint16(entry + offset, true));
    const name = new TextDecoder().decode(bytes.subarray(entry + 46, entry + 46 + lengths[0]));
    const header = view.getUint32(entry + 42, true) + moved;
    const data = header + 30 + view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
    if (stored) files[name] = bytes.subarray(data, data + packed);
    begin = Math.min(begin, header);
    entry += 46 + lengths[0] + lengths[1] + lengths[2];
  }
  return { begin, files };
}

/**
 * @param {any} bundle the contents of bundle.json
 * @param {(name: string) => Uint8Array} read a file beside it
 * @param {Unicode} unicode
 * @returns {string[]|Subwords} the lines of vocab.txt, or the tokenizer of tokenizer.json, if there is one of them
 */
export function vocabularyOf({ files = {} }, read, unicode) {
  const text = (/** @type {string} */ name) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(read(name));
  if ("tokenizer.json" in files) return new Subwords(JSON.parse(text("tokenizer.json")), unicode);
  return "vocab.txt" in files ? text("vocab.txt").replace(/\n$/, "").split("\n") : [];
}

/** @param {string|URL} url @returns {Promise<Uint8Array>} */
async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** @param {Uint8Array} bytes @param {string|undefined} expected SHA-256; checked where the browser can do it */
async function check(bytes, expected) {
  if (!expected || !globalThis.crypto?.subtle) return;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {BufferSource} */ (bytes)));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (hex !== expected) throw new Error("the model in this file is damaged: load it again, or convert again");
}

/** @param {any} bundle @returns {string} the signatures that answer: KIND_N reads up to N tokens */
function signatureKind({ task, settings }) {
  if (task !== "translate") return "length";
  return settings.beams > 1 ? "beam" : "greedy";
}

/**
 * A model in a .tflite file that `ctxrep tflite` wrote; each text runs through the signature of the smallest length
 * that holds it. A language model in one direction is a `Generator`, a masked one a `Filler`.
 *
 * @param {string|URL|Uint8Array} source the address of the file, or its bytes
 * @param {{litert?: any, wasm?: string|URL, threads?: number, model?: string}} options the module "@litertjs/core"; the
 *   folder of its .wasm files (default: where the module was found); threads, for a page that is cross-origin isolated;
 *   the name of the model, in a file of several
 * @returns {Promise<any>} a `Predictor`, or one of the two
 */
export async function load(source, { litert, wasm, threads = 1, model: part } = {}) {
  const tables = fetched(new URL("unicode.json", import.meta.url));
  const [core, bytes] = await Promise.all([
    litert ?? import("@litertjs/core"),
    source instanceof Uint8Array ? source : fetched(source),
  ]);
  const { begin, files } = unzipped(bytes);
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const prefix = part ? `${part}/` : "";
  const bundleBytes = files[`${prefix}bundle.json`];
  if (!bundleBytes) {
    const parts = Object.keys(files).filter((name) => name.endsWith("/bundle.json")).map((name) => name.split("/")[0]);
    if (parts.length) throw new Error(`several models in this file: name one of ${parts.join(", ")}`);
    throw new Error("no bundle in this file: write it with `ctxrep tflite`");
  }
  const bundle = JSON.parse(decoder.decode(bundleBytes));
  const model = bytes.subarray(0, begin);
  await check(model, bundle.files?.["model.tflite"]);
  const folder = () => String(wasm ?? new URL("../wasm/", import.meta.resolve("@litertjs/core")));
  const parallel = threads > 1 && globalThis.crossOriginIsolated;
  await (core.getGlobalLiteRtPromise() ?? core.loadLiteRt(folder(), { threads: parallel }));
  const options = parallel ? { cpuOptions: { numThreads: threads } } : {};
  const compiled = await core.loadAndCompile(model, { accelerator: "wasm", ...options });
  const unicode = new Unicode(JSON.parse(decoder.decode(await tables)));
  const vocab = vocabularyOf(bundle, (name) => files[prefix + name] ?? files[name], unicode);
  const all = Object.entries(compiled.signatures).filter(([name]) => name.startsWith(prefix));
  const signatures = Object.fromEntries(all.map(([name, signature]) => [name.slice(prefix.length), signature]));
  const kind = signatureKind(bundle);
  const names = Object.keys(signatures).filter((name) => name.startsWith(`${kind}_`));
  if (bundle.task === "translate" && !names.length) throw new Error("no search in this file: convert the model again");
  const lengths = names.map((name) => Number(name.slice(kind.length + 1)));
  const run = (/** @type {Record<string, any>} */ inputs) => {
    const length = Math.min(...lengths.filter((length) => length >= inputs.mask.length));
    return ran(core, signatures[`${kind}_${length}`], inputs);
  };
  if (bundle.task === "causal_language_model") {
    const { Generator } = await import("./generator.js");
    return new Generator(bundle, vocab, unicode, (inputs) => ran(core, signatures.step, inputs));
  }
  if (bundle.task === "pretrainer") {
    const { Filler } = await import("./filling.js");
    const [signature] = /** @type {any[]} */ (Object.values(signatures));
    const positions = [...signature.getInputDetails()].find(({ name }) => name === "mlm_positions").shape[1];
    return new Filler(bundle, vocab, unicode, run, positions);
  }
  return new Predictor(bundle, vocab, unicode, run);
}

/**
 * @param {any} core the module "@litertjs/core"
 * @param {any} signature
 * @param {Record<string, any>} inputs of one row, without padding; null are zeros
 * @returns {Promise<Record<string, Output>>}
 */
async function ran(core, signature, inputs) {
  const tensors = [...signature.getInputDetails()].map(({ name, shape, dtype }) => {
    const size = [...shape].reduce((product, axis) => product * axis, 1);
    const padded = new (dtype === "float32" ? Float32Array : Int32Array)(size);
    padded.set(Array.isArray(inputs[name]) ? inputs[name].flat() : (inputs[name] ?? []));
    return [name, new core.Tensor(padded, shape)];
  });
  /** @type {Record<string, any>} */
  let outputs = {};
  try {
    outputs = await signature.run(Object.fromEntries(tensors));
    return Object.fromEntries(
      Object.entries(outputs).map(([name, tensor]) => {
        return [name, { data: tensor.toTypedArray().slice(), shape: [...tensor.type.layout.dimensions].slice(1) }];
      }),
    );
  } finally {
    for (const tensor of [...tensors.map(([, tensor]) => tensor), ...Object.values(outputs)]) tensor.delete();
  }
}
