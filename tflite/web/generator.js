/** Text from a language model, as keras_ctxrep/inference/generator.py: one call of the model for each token. */

import { BUSY, pause } from "./pause.js";
import { sample } from "./sampling.js";
import { TokenFeatures, WHITE_SPACE } from "./units.js";

const ENDS_IN_SPACE = new RegExp(`[${WHITE_SPACE}]$`);

/**
 * @typedef {{
 *   length?: number, lines?: number|null, seed?: number|bigint, temperature?: number, top_k?: number|null,
 *   top_p?: number|null, min_p?: number|null, signal?: AbortSignal,
 * }} Options of `ctxrep generate`: tokens to generate (100), an end after so many lines, and what is drawn from;
 *   a text ends where its signal is aborted
 * @typedef {{logits: {data: Float32Array}, state: {data: Float32Array}}} Step
 */

/** @type {Record<string, [string, (value: any) => boolean]>} what each option may be */
const VALUES = {
  length: ["a whole number above 0", (value) => Number.isInteger(value) && value > 0],
  lines: ["a whole number above 0", (value) => Number.isInteger(value) && value > 0],
  seed: ["a whole number", (value) => typeof value === "bigint" || Number.isSafeInteger(value)],
  temperature: ["a number of at least 0", (value) => value >= 0 && value < Infinity],
  top_k: ["a whole number above 0", (value) => Number.isInteger(value) && value > 0],
  top_p: ["above 0 and at most 1", (value) => value > 0 && value <= 1],
  min_p: ["a number from 0 to 1", (value) => value >= 0 && value <= 1],
  signal: ["an AbortSignal", (value) => typeof value?.aborted === "boolean"],
};

/** @param {Options} options @returns {any} those that are given */
function checked(options) {
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null);
  for (const [name, value] of given) {
    if (!(name in VALUES)) throw new TypeError(`option ${name}: not one of ${Object.keys(VALUES).join(", ")}`);
    const [needed, valid] = VALUES[name];
    if (!valid(value)) throw new RangeError(`${name}=${value}: ${needed} is needed`);
  }
  return Object.fromEntries(given);
}

/** Continues texts. */
export class Generator {
  /**
   * @param {any} bundle the contents of bundle.json
   * @param {any} vocab see `vocabularyOf`
   * @param {import("./text.js").Unicode} unicode
   * @param {(inputs: {token_ids: number[], mask: number[], state: Float32Array|null}) => Promise<any>} run of a
   *   token; a state of null is that before a text: zeros
   */
  constructor(bundle, vocab, unicode, run) {
    this.bundle = bundle;
    this.features = new TokenFeatures(bundle, vocab, unicode);
    this.run = run;
  }

  /** The name of its task. @returns {string} */
  get task() {
    return this.bundle.task;
  }

  /**
   * The continuation of a text, without it.
   *
   * @param {string} prompt
   * @param {Options} options
   * @returns {Promise<string>}
   */
  async generate(prompt, options = {}) {
    let text = "";
    for await (const part of this.stream(prompt, options)) text += part;
    return text;
  }

  /**
   * As `generate`, a string for each token as soon as it is drawn; between two tokens the page reacts and draws.
   *
   * @param {string} prompt
   * @param {Options} options
   * @returns {AsyncGenerator<string, void>}
   */
  async *stream(prompt, options = {}) {
    const { features } = this;
    const { length = 100, lines = 0, seed = 0, signal, ...filters } = checked(options);
    const tokens = features.prompt(prompt);
    let begin = performance.now();
    /** @type {Float32Array|null} */
    let state = null;
    /** @param {number} token @returns {Promise<Float32Array|null>} the logits after it; null: aborted */
    const after = async (token) => {
      if (performance.now() - begin >= BUSY) {
        await pause();
        begin = performance.now();
      }
      if (signal?.aborted) return null;
      const outputs = await this.run({ token_ids: [token], mask: [1], state });
      state = outputs.state.data;
      return outputs.logits.data;
    };
    /** @type {Float32Array|null} */
    let logits = null;
    for (const token of tokens) if (!(logits = await after(token))) return;
    const write = features.writer(tokens[tokens.length - 1]);
    for (let step = 0, ended = 0; step < length; step++) {
      const allowed = Float32Array.from(/** @type {Float32Array} */ (logits));
      for (const id of features.never) allowed[id] = -Infinity;
      const token = sample(allowed, seed, step, filters);
      const text = write(token);
      const spaced = !step && ["words", "pieces"].includes(features.units) && ENDS_IN_SPACE.test(prompt);
      yield spaced ? text.replace(/^ /, "") : text;
      if (token === features.end && ++ended === lines) return;
      if (step + 1 < length && !(logits = await after(token))) return;
    }
  }
}
