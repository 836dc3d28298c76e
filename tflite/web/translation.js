/** Texts for texts, as keras_ctxrep/tasks/translate.py. The search is in the file, which gives its hypotheses. */

import { WHITE_SPACE } from "./units.js";

const LOWEST = -1e38; // a score below is that of no text
const WORD = "\u2581"; // before a subword that begins a word
const AROUND = new RegExp(`^[${WHITE_SPACE}]+|[${WHITE_SPACE}]+$`, "g");

/**
 * @typedef {{tokens: number[], score: number, finished: boolean, attention: ArrayLike<number>[]}} Hypothesis
 * @typedef {{token: string, start: number, end: number, weight: number}} Aligned a token of the text that was written,
 *   and where the decoder looked most
 * @typedef {{
 *   text: string, score: number, n_best?: {text: string, score: number}[], unfinished?: boolean, alignment: Aligned[],
 * }} Translation
 * @typedef {{inputs: number[][], weights: number[][]}} Attention where each token of the text stands, and for each token
 *   that was written their weights; markers of the input are left out
 * @typedef {import("./ctxrep.js").Ran} Ran
 */

/** @param {any} bundle @returns {string[]} what each token adds to a text; a space at its beginning is left out */
function stringsOf({ labels, settings }) {
  if (settings.units === "words") return labels.map((/** @type {string} */ label) => ` ${label}`);
  if (settings.units === "subwords") return labels.map((/** @type {string} */ label) => label.replaceAll(WORD, " "));
  return labels;
}

/** @param {Ran} ran @returns {Hypothesis[]} those of the search, the best first */
function hypothesesOf({ outputs: [{ tokens, scores, finished, attention }] }) {
  const [beams, length] = tokens.shape;
  const width = attention.shape[2];
  return Array.from({ length: beams }, (_, beam) => {
    const row = Array.prototype.slice.call(tokens.data, beam * length, (beam + 1) * length);
    const ids = row.filter((/** @type {number} */ id) => id >= 0);
    const looked = ids.map((/** @type {number} */ _, /** @type {number} */ i) => {
      const begin = (beam * length + i) * width;
      return Array.prototype.slice.call(attention.data, begin, begin + width);
    });
    return { tokens: ids, score: scores.data[beam], finished: Boolean(finished.data[beam]), attention: looked };
  }).filter(({ score }) => score > LOWEST);
}

/** @param {Ran} ran @returns {number[]} the positions of the tokens that are no markers */
function places({ rows: [row] }) {
  const offsets = /** @type {number[][]} */ (row.offsets);
  return [...offsets.keys()].filter((i) => offsets[i][0] < offsets[i][1]);
}

/** @param {Ran} ran @returns {Translation} */
export function translated(ran) {
  const strings = stringsOf(ran.bundle);
  const written = (/** @type {Hypothesis} */ { tokens }) => {
    const text = tokens.map((token) => strings[token]).join("");
    return ran.bundle.settings.units === "characters" ? text : text.replace(/^ /, "");
  };
  const all = hypothesesOf(ran);
  const [best] = all;
  const offsets = /** @type {number[][]} */ (ran.rows[0].offsets);
  const real = places(ran);
  const alignment = best.tokens.map((token, i) => {
    const weights = best.attention[i];
    const place = real.reduce((most, place) => (weights[place] > weights[most] ? place : most), real[0]);
    const [start, end] = real.length ? offsets[place] : [0, 0];
    return { token: strings[token].replace(AROUND, "") || " ", start, end, weight: real.length ? weights[place] : 0 };
  });
  return {
    text: written(best),
    score: best.score,
    ...(all.length > 1 ? { n_best: all.map((each) => ({ text: written(each), score: each.score })) } : {}),
    ...(best.finished ? {} : { unfinished: true }),
    alignment,
  };
}

/** @param {Ran} ran @returns {Attention} of the best hypothesis */
export function attention(ran) {
  const real = places(ran);
  const offsets = /** @type {number[][]} */ (ran.rows[0].offsets);
  const weights = hypothesesOf(ran)[0].attention.map((row) => real.map((place) => row[place]));
  return { inputs: real.map((place) => offsets[place]), weights };
}
