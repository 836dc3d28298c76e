/** Words for the [MASK]s of a text, as keras_ctxrep/inference/filling.py. */

import { softmax } from "./sampling.js";
import { wellFormed, WordPieces } from "./text.js";

export const MASK = "[MASK]";

/** @typedef {{piece: string, probability: number}} Filling see `Filling` of filling.py */

/** A masked language model that names pieces for masks. */
export class Filler {
  /**
   * @param {any} bundle the contents of bundle.json
   * @param {any} vocab see `vocabularyOf`
   * @param {import("./text.js").Unicode} unicode
   * @param {(inputs: Record<string, number[]>) => Promise<Record<string, any>>} run of one row
   * @param {number} positions masks that are answered in one call
   */
  constructor(bundle, vocab, unicode, run, positions) {
    this.bundle = bundle;
    this.features = new WordPieces(bundle, vocab, unicode);
    this.names = this.features.tokenizer.names;
    this.mask = this.features.special(this.features.maskPiece);
    this.run = run;
    this.positions = positions;
  }

  /** The name of its task. @returns {string} */
  get task() {
    return this.bundle.task;
  }

  /**
   * The most probable pieces for each mask of a text.
   *
   * @param {string} text with one [MASK] or more
   * @param {number} top pieces for a mask
   * @returns {Promise<Filling[][]>} for each mask in their order, the most probable piece first
   */
  async fill(text, top = 5) {
    const tokens = this.tokens(wellFormed(text));
    const places = [...tokens.keys()].filter((place) => tokens[place] === this.mask);
    const answers = [];
    for (let begin = 0; begin < places.length; begin += this.positions) {
      const part = places.slice(begin, begin + this.positions);
      const segments = tokens.map(() => 0);
      const inputs = { token_ids: tokens, segment_ids: segments, mask: tokens.map(() => 1), mlm_positions: part };
      const { data } = (await this.run(inputs)).mlm_logits;
      const size = this.names.length;
      answers.push(...part.map((_, i) => this.best(data.slice(i * size, (i + 1) * size), top)));
    }
    return answers;
  }

  /** @param {string} text @returns {number[]} [CLS] text [SEP], with the piece for a mask where the text has the word [MASK] */
  tokens(text) {
    const parts = text.split(MASK);
    if (parts.length === 1) throw new RangeError(`no ${MASK} in this text: write ${MASK} where a word is to be found`);
    const { cls, sep, maxLength, tokenizer } = this.features;
    const ids = tokenizer.aroundMasks(parts, this.mask).map((pieces) => pieces.map(({ id }) => id));
    const tokens = [cls, ...ids.flatMap((part, i) => (i ? [this.mask, ...part] : part)), sep];
    if (tokens.length > maxLength) throw new RangeError(`${tokens.length} pieces; the model reads ${maxLength}: shorten the text`);
    return tokens;
  }

  /** @param {ArrayLike<number>} logits @param {number} top @returns {Filling[]} */
  best(logits, top) {
    const probabilities = softmax(logits);
    const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a] || a - b);
    return order.slice(0, top).map((id) => ({ piece: this.names[id], probability: probabilities[id] }));
  }
}
