/**
 * Sampling of the next token, as keras_ctxrep/text/sampling.py defines it: the same seed gives the same text here too.
 *
 * @typedef {{temperature?: number, top_k?: number|null, top_p?: number|null, min_p?: number|null}} Filters
 */

const ROTATIONS = [[13, 15, 26, 6], [17, 29, 16, 24]];

/** @param {ArrayLike<number>} logits @returns {number[]} probabilities */
export function softmax(logits) {
  const values = Array.from(logits);
  const highest = values.reduce((most, value) => Math.max(most, value), -Infinity);
  const exponentials = values.map((value) => Math.exp(value - highest));
  const sum = exponentials.reduce((total, value) => total + value, 0);
  return exponentials.map((value) => value / sum);
}

/**
 * Threefry-2x32 with 20 rounds (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405).
 *
 * @param {[number, number]} key
 * @param {number} first half of the counter
 * @param {number} second half of the counter
 * @returns {[number, number]} 64 random bits, as two whole numbers from 0 to 2^32 - 1
 */
export function threefry(key, first, second) {
  const keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bda];
  let [a, b] = [(first + keys[0]) | 0, (second + keys[1]) | 0];
  for (let group = 0; group < 5; group++) {
    for (const distance of ROTATIONS[group % 2]) {
      a = (a + b) | 0;
      b = ((b << distance) | (b >>> (32 - distance))) ^ a;
    }
    a = (a + keys[(group + 1) % 3]) | 0;
    b = (b + keys[(group + 2) % 3] + group + 1) | 0;
  }
  return [a >>> 0, b >>> 0];
}

/**
 * The noise of a token in a step: -log(-log(u)).
 *
 * @param {number|bigint} seed a whole number, of which 64 bits count
 * @param {number} step
 * @param {number} id
 * @returns {number}
 */
export function gumbel(seed, step, id) {
  return noise(keyOf(seed), step, id);
}

/** @param {number|bigint} seed @returns {[number, number]} */
function keyOf(seed) {
  const bits = BigInt.asUintN(64, BigInt(seed));
  return [Number(bits & 0xffffffffn), Number(bits >> 32n)];
}

/** @param {[number, number]} key @param {number} step @param {number} id */
function noise(key, step, id) {
  return -Math.log(-Math.log((threefry(key, id, step)[0] + 0.5) / 2 ** 32));
}

/**
 * The log-probabilities, up to a constant, of the tokens that may be drawn; -Infinity of the others. The filters are
 * applied in this order: temperature (0: the likeliest token alone), top_k, top_p, min_p.
 *
 * @param {ArrayLike<number>} logits -Infinity of a token that is never drawn
 * @param {Filters} filters
 * @returns {Float64Array}
 */
export function filtered(logits, { temperature = 1, top_k = null, top_p = null, min_p = null } = {}) {
  const scores = Float64Array.from(logits);
  const most = scores.reduce((highest, score) => Math.max(highest, score), -Infinity);
  if (temperature === 0) {
    const best = scores.indexOf(most);
    return scores.map((_, id) => (id === best ? 0 : -Infinity));
  }
  for (let id = 0; id < scores.length; id++) scores[id] /= temperature;
  const keep = (/** @type {number} */ least) => {
    for (let id = 0; id < scores.length; id++) if (scores[id] < least) scores[id] = -Infinity;
  };
  if (top_k !== null && top_k < scores.length) keep(scores.slice().sort()[scores.length - top_k]);
  if (top_p !== null && top_p < 1) {
    const order = Uint32Array.from(scores.keys()).filter((id) => scores[id] > -Infinity);
    order.sort((a, b) => scores[b] - scores[a] || a - b);
    const likely = Float64Array.from(order, (id) => Math.exp(scores[id] - scores[order[0]]));
    const sum = likely.reduce((total, value) => total + value, 0);
    let upTo = 0;
    order.forEach((id, rank) => {
      const probability = likely[rank] / sum;
      upTo += probability;
      if (upTo - probability >= top_p) scores[id] = -Infinity; // the probability of all that are likelier
    });
  }
  if (min_p) keep(most / temperature + Math.log(min_p));
  return scores;
}

/**
 * Draws a token: the argmax of its log-probability plus Gumbel noise.
 *
 * @param {ArrayLike<number>} logits
 * @param {number|bigint} seed
 * @param {number} step the number of the token in the text
 * @param {Filters} filters
 * @returns {number} its id
 */
export function sample(logits, seed, step, filters = {}) {
  const scores = filtered(logits, filters);
  const key = keyOf(seed);
  let best = -1;
  let highest = -Infinity;
  scores.forEach((score, id) => {
    if (score === -Infinity) return;
    const sum = score + noise(key, step, id);
    if (best < 0 || sum > highest) [best, highest] = [id, sum];
  });
  return best;
}
