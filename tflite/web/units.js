/** The tokens of a language model, as keras_ctxrep/text/units.py: words, word pieces or characters, and text again. */

import { beginning, letters, Splitter, windowBegins, WordPieces, written } from "./text.js";

/** What Python takes for white space, between the brackets of a regular expression. */
export const WHITE_SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

const MARKERS = ["<S>", "</S>", "<UNK>"];
const ALONE = /[\ud800-\udfff]/gu; // a surrogate without its pair, which words and pieces are read without
const PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/**
 * Texts as ids of tokens, and ids as text. Unless they are of a byte-level BPE, one mark, the end of a line, stands before each line. It also makes the
 * inputs of a model over a language model, or over embeddings of characters.
 *
 * @typedef {{id: number, begin: number, end: number}} Token and where it stands in its text; 0, 0 of a mark
 */
export class TokenFeatures {
  /**
   * @param {any} bundle the contents of bundle.json
   * @param {any} vocab see `vocabularyOf`
   * @param {import("./text.js").Unicode} unicode
   */
  constructor(bundle, vocab, unicode) {
    this.units = bundle.config.units;
    this.maxLength = bundle.max_length;
    /** @type {import("./subwords.js").Subwords|null} a byte-level BPE, which has no marks */
    this.subwords = Array.isArray(vocab) ? null : vocab;
    if (this.subwords) {
      this.units = "subwords";
      this.vocab = this.subwords.vocab;
      this.end = this.vocab.indexOf(bundle.special_tokens.sep);
      this.never = [];
      return;
    }
    if (this.units === "pieces") {
      const pieces = new WordPieces(bundle, vocab, unicode);
      const [pad, unknown, cls, sep, mask] = PIECES.map((piece) => pieces.special(piece));
      this.end = sep;
      this.never = [pad, unknown, cls, mask]; // ids that are not generated
      this.vocab = vocab;
      this.line = (/** @type {string} */ line) => pieces.pieces(line.replace(ALONE, ""));
      return;
    }
    if (this.units !== "words" && this.units !== "characters") {
      throw new Error(`units ${this.units}: not one of words, pieces, characters`);
    }
    this.vocab = vocab.filter((word) => word !== "!!!MAXTERMID");
    const ids = new Map(this.vocab.map((word, id) => [word, id]));
    if (MARKERS.some((marker, id) => ids.get(marker) !== id)) {
      throw new Error(`the vocabulary does not begin with ${MARKERS.join(", ")}`);
    }
    this.end = 1;
    this.never = [0, 2];
    const splitter = new Splitter(unicode, { lowercase: false, stripAccents: false, splitCjk: true });
    const words = this.units === "words";
    this.line = (/** @type {string} */ line) => {
      const tokens = words ? splitter.words(line.replace(ALONE, "")) : letters(line).map((letter) => [letter]);
      return tokens.map((token) => {
        return { id: ids.get(written(token)) ?? 2, begin: token[0].begin, end: token[token.length - 1].end };
      });
    };
  }

  /** @param {string} text @returns {Token[]} a mark before each of its lines, and none at its end */
  read(text) {
    if (this.subwords) {
      const pieces = this.subwords.pieces(text);
      return pieces.length ? pieces : [{ id: this.end, begin: 0, end: 0 }];
    }
    let place = 0;
    return text.split("\n").flatMap((line) => {
      const first = place;
      place += line.length + 1;
      const tokens = this.line(line).map(({ id, begin, end }) => ({ id, begin: first + begin, end: first + end }));
      return [{ id: this.end, begin: 0, end: 0 }, ...tokens];
    });
  }

  /** @param {string} text to be continued @returns {number[]} the ids of its tokens */
  prompt(text) {
    return this.read(text).map(({ id }) => id);
  }

  /** @param {string|string[]} text @returns {import("./text.js").Row} */
  encode(text) {
    const all = beginning(/** @type {string} */ (text), this.maxLength, (part) => this.read(part));
    const used = all.slice(0, this.maxLength);
    return {
      tokens: used.map(({ id }) => id),
      truncated: used.length < all.length,
      first: 0,
      starts: null,
      offsets: used.map(({ begin, end }) => [begin, end]),
      words: null,
    };
  }

  /** @param {string} text @param {number} stride @returns {import("./text.js").Row[]} */
  textWindows(text, stride) {
    const ids = this.prompt(text);
    const marks = this.subwords ? [] : ids.splice(0, 1);
    const room = this.maxLength - marks.length;
    return windowBegins(ids.length, room, stride).map((begin) => {
      const tokens = [...marks, ...ids.slice(begin, begin + room)];
      return { tokens, truncated: false, first: 0, starts: null, offsets: null, words: null };
    });
  }

  /** @param {import("./text.js").Row} row @returns {Record<string, any[]>} */
  inputs(row) {
    return { token_ids: row.tokens, mask: row.tokens.map(() => 1) };
  }

  /** @param {number} before the last token of a text @returns {(token: number) => string} what each adds to the text */
  writer(before) {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const { subwords } = this;
    if (subwords) return (token) => (token === this.end ? "" : decoder.decode(subwords.bytes(token), { stream: true }));
    return (token) => {
      const text = this.string(token, before);
      before = token;
      return text;
    };
  }

  /** @param {number} token @param {number} before the token before it @returns {string} what it adds to the text */
  string(token, before) {
    if (token === this.end) return "\n";
    const word = this.vocab[token];
    if (this.units === "pieces" && word.startsWith("##")) return word.slice(2);
    return this.units === "characters" || before === this.end ? word : ` ${word}`;
  }
}
