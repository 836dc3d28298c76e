/** The tokens of a language model, as keras_ctxrep/text/units.py: words, word pieces or characters, and text again. */

import { Splitter, WordPieces, written } from "./text.js";

const MARKERS = ["<S>", "</S>", "<UNK>"];
const ALONE = /[\ud800-\udfff]/gu; // a surrogate without its pair, which words and pieces are read without
const PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/** Texts as ids of tokens, and ids as text. One mark, the end of a line, stands before each line. */
export class TokenFeatures {
  /**
   * @param {any} bundle the contents of bundle.json
   * @param {string[]} vocab the lines of vocab.txt
   * @param {import("./text.js").Unicode} unicode
   */
  constructor(bundle, vocab, unicode) {
    this.units = bundle.config.units;
    if (this.units === "pieces") {
      const pieces = new WordPieces(bundle, vocab, unicode);
      const [pad, unknown, cls, sep, mask] = PIECES.map((piece) => pieces.special(piece));
      this.end = sep;
      this.never = [pad, unknown, cls, mask]; // ids that are not generated
      this.vocab = vocab;
      this.line = (/** @type {string} */ line) => pieces.pieces(line.replace(ALONE, "")).map(({ id }) => id);
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
      const tokens = words ? splitter.words(line.replace(ALONE, "")).map(written) : [...line];
      return tokens.map((token) => ids.get(token) ?? 2);
    };
  }

  /** @param {string} text to be continued @returns {number[]} a mark before each of its lines, and none at its end */
  prompt(text) {
    return text.split("\n").flatMap((line) => [this.end, ...this.line(line)]);
  }

  /** @param {number} token @param {number} before the token before it @returns {string} what it adds to the text */
  string(token, before) {
    if (token === this.end) return "\n";
    const word = this.vocab[token];
    if (this.units === "pieces" && word.startsWith("##")) return word.slice(2);
    return this.units === "characters" || before === this.end ? word : ` ${word}`;
  }
}
