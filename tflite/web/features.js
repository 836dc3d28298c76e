/** The inputs of each family of encoders, see `Bundle.features` in keras_ctxrep/text/bundle.py. */

import { beginning, letters, Splitter, windowBegins, WordPieces, written } from "./text.js";
import { TokenFeatures } from "./units.js";

/**
 * @typedef {import("./text.js").Letter} Letter
 * @typedef {import("./text.js").Row} Row
 * @typedef {import("./text.js").Unicode} Unicode
 * @typedef {WordPieces|Words|TokenFeatures} Features
 */

/** The inputs of models of words: ELMo and static vectors. */
class Words {
  /**
   * @param {any} bundle
   * @param {Unicode} unicode
   * @param {Record<string, (word: string) => number|number[]>} ids of a word, by the names of the inputs
   */
  constructor(bundle, unicode, ids) {
    this.maxLength = bundle.max_length;
    this.ids = ids;
    this.splitter = new Splitter(unicode, { lowercase: false, stripAccents: false, splitCjk: true });
  }

  /** @param {string|string[]} text @returns {{text: string, span: number[]}[]} */
  words(text) {
    if (typeof text !== "string") return text.map((word) => ({ text: word, span: [0, word.length] }));
    return this.splitter.words(text).map((word) => {
      return { text: written(word), span: [word[0].begin, word[word.length - 1].end] };
    });
  }

  /** @param {string|string[]} text @returns {Row} */
  encode(text) {
    const all = typeof text === "string" ? beginning(text, this.maxLength, (part) => this.words(part)) : this.words(text);
    const used = all.slice(0, this.maxLength);
    const spans = used.map((word) => word.span);
    return {
      tokens: used.map((word) => word.text),
      truncated: used.length < all.length,
      first: 0,
      starts: all.map((_, i) => (i < used.length ? i : null)),
      offsets: spans,
      words: spans,
    };
  }

  /** @param {string} text @param {number} stride @returns {Row[]} */
  textWindows(text, stride) {
    const all = this.words(text).map((word) => word.text);
    return windowBegins(all.length, this.maxLength, stride).map((begin) => {
      const tokens = all.slice(begin, begin + this.maxLength);
      return { tokens, truncated: false, first: 0, starts: null, offsets: null, words: null };
    });
  }

  /** @param {Row} row @returns {Record<string, any[]>} */
  inputs(row) {
    const inputs = Object.entries(this.ids).map(([name, ids]) => [name, row.tokens.map(ids)]);
    return { ...Object.fromEntries(inputs), mask: row.tokens.map(() => 1) };
  }
}

/** @param {number} width @returns {(word: string) => number[]} ELMo's character ids */
function characterIds(width) {
  const encoder = new TextEncoder();
  return (word) => {
    const marker = ["<S>", "</S>"].indexOf(word);
    const bytes = [...encoder.encode(word).slice(0, width - 2)].map((byte) => byte + 1);
    const row = [259, ...(marker < 0 ? bytes : [257 + marker]), 260];
    return [...row, ...Array(width - row.length).fill(261)];
  };
}

/** @param {string[]} vocab @param {string} unknown @returns {(word: string) => number} line numbers, from 1 on */
function lineNumbers(vocab, unknown) {
  const ids = new Map(vocab.map((word, line) => [word, line + 1]));
  return (word) => ids.get(word) ?? /** @type {number} */ (ids.get(unknown));
}

/** @param {any} config of static vectors @param {string[]} vocab @param {Unicode} unicode */
function staticIds(config, vocab, unicode) {
  if (config.buckets) throw new Error("word vectors with character n-grams are not supported in the browser");
  const number = lineNumbers(vocab, "<UNK>");
  if (!config.lowercase) return number;
  const lower = (/** @type {Letter} */ letter) => String.fromCodePoint(...(unicode.lower.get(letter.code) ?? [letter.code]));
  return (/** @type {string} */ word) => number(letters(word).map(lower).join(""));
}

/**
 * The text preparation of a model.
 *
 * @param {any} bundle the contents of bundle.json
 * @param {any} vocab see `vocabularyOf`
 * @param {Unicode} unicode
 * @returns {Features}
 */
export function featuresOf(bundle, vocab, unicode) {
  const { family, config, extra_embeddings: extra, stack, reads } = bundle;
  if (["esim", "bidaf"].includes(stack?.kind)) {
    throw new Error(`the task network ${stack.kind}, which reads the texts of a pair apart, is not supported in the browser`);
  }
  if (family === "static" && config.pieces) return new WordPieces(bundle, vocab, unicode);
  if (family === "static") return new Words(bundle, unicode, { word_ids: staticIds(config, vocab, unicode) });
  if (family === "lm") {
    if (reads.words) throw new Error("a tagger over a language model is not supported in the browser");
    return new TokenFeatures(bundle, vocab, unicode);
  }
  if (family !== "elmo" && config.heads) return new WordPieces(bundle, vocab, unicode); // a Transformer encoder
  if (family !== "elmo") throw new Error(`family ${family}: neither elmo, static, lm nor a Transformer encoder`);
  if (config.words) return new Words(bundle, unicode, { word_ids: lineNumbers(vocab, "<UNK>") });
  /** @type {Record<string, (word: string) => number|number[]>} */
  const ids = { char_ids: characterIds(config.max_characters) };
  if (extra && Object.keys(extra).length) ids.word_ids = staticIds(extra, vocab, unicode);
  return new Words(bundle, unicode, ids);
}

/**
 * The rows of a text that a model reads: one, or one for each window.
 *
 * @param {any} bundle
 * @param {Features} features
 * @param {string|string[]} text
 * @param {string|null} pair
 * @returns {Row[]}
 */
export function rowsOf(bundle, features, text, pair) {
  const { stride, windows } = bundle.settings;
  const string = /** @type {string} */ (text);
  if (bundle.reads.windows) return /** @type {WordPieces} */ (features).windows(string, pair ?? "", stride);
  return windows ? features.textWindows(string, stride) : [features.encode(text, pair)];
}

/** @param {any} bundle @param {string|null} role @returns {string} what an encoder reads before a text of this role */
export function prefixOf({ roles = {}, task }, role) {
  if (task === "embed" && (role === null || Object.hasOwn(roles, role))) return roles[role ?? ""] ?? "";
  if (role === null) return "";
  const names = Object.keys(roles).filter((name) => name).join(", ");
  throw new RangeError(`role=${role}: this model has ${names || "no roles"}`);
}

/** @param {any} bundle @param {string} role @returns {string|null} the role, if the model has it */
export function roleOf({ roles = {} }, role) {
  return Object.hasOwn(roles, role) ? role : null;
}
