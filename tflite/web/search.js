/**
 * Searches texts by the cosines of their vectors: the sentences of a text, and an index of vectors.
 *
 * @typedef {{text: string, start: number, end: number}} Sentence where it stands in the text, in UTF-16 units
 * @typedef {{row: number, score: number}} Match the number of a vector, from 0 on, and its cosine with the query's
 */

const CAPACITY = 64; // rows of an index at first; it doubles

// the rule where the browser has no Intl.Segmenter: a sentence ends behind . ! ? … and closing quotes or brackets, if
// white space and no lower-case letter follow, and behind the ends of sentences of Chinese and Japanese
const END = /[.!?…]+["'”’»)\]]*(?=\s+[^\s\p{Ll}])|[。！？]+["'”’」』）]*/gu;

/** @param {number} top how many are wanted; a RangeError below 1 */
export function checkTop(top) {
  if (!Number.isInteger(top) || top < 1) throw new RangeError(`top=${top}: a whole number of at least 1 is needed`);
}

/** A list of vectors that is searched exactly, by cosine. The vectors are copied. */
export class Index {
  /** @param {Iterable<ArrayLike<number>>} vectors of one length, as in `Predictor.encode` */
  constructor(vectors = []) {
    this.size = 0; // vectors
    this.width = 0; // numbers of each
    this.values = new Float32Array(0);
    this.norms = new Float64Array(0);
    for (const vector of vectors) this.add(vector);
  }

  /** @param {ArrayLike<number>} vector @returns {number} its row: the number of vectors before it */
  add(vector) {
    if (!this.size) this.width = vector.length;
    const norm = this.norm(vector, `vector ${this.size}`);
    if (this.size === this.norms.length) {
      const [values, norms] = [this.values, this.norms];
      const capacity = Math.max(CAPACITY, 2 * this.size);
      this.values = new Float32Array(capacity * this.width);
      this.norms = new Float64Array(capacity);
      this.values.set(values.subarray(0, this.size * this.width));
      this.norms.set(norms);
    }
    this.values.set(vector, this.size * this.width);
    this.norms[this.size] = norm;
    return this.size++;
  }

  /**
   * The vectors whose cosines with a vector are highest, the best first, of equal ones the lower row first. A vector of
   * zeros has the cosine 0.
   *
   * @param {ArrayLike<number>} vector
   * @param {number} top at most so many
   * @returns {Match[]}
   */
  search(vector, top = 10) {
    checkTop(top);
    if (!this.size) return [];
    const { values, norms, size, width } = this;
    const norm = this.norm(vector, "the query's vector");
    const query = Float32Array.from(vector);
    /** @type {Match[]} */
    const best = [];
    for (let row = 0, at = 0; row < size; row++) {
      let product = 0;
      for (let i = 0; i < width; i++) product += query[i] * values[at++];
      const score = product && product / (norm * norms[row]);
      if (best.length === top && score <= best[top - 1].score) continue;
      let place = best.length;
      while (place && best[place - 1].score < score) place--;
      best.splice(place, 0, { row, score });
      if (best.length > top) best.pop();
    }
    return best;
  }

  /** @param {ArrayLike<number>} vector @param {string} name for messages @returns {number} its length */
  norm(vector, name) {
    if (vector.length !== this.width || !vector.length) {
      const needed = this.width || "at least 1";
      throw new TypeError(`${name} has ${vector.length} numbers, not ${needed}: use one model for all`);
    }
    let square = 0;
    for (let i = 0; i < vector.length; i++) square += Math.fround(vector[i]) ** 2;
    if (!Number.isFinite(square)) throw new TypeError(`${name} has a value that is not a finite number`);
    return Math.sqrt(square);
  }
}

/**
 * The sentences of a text: its lines, divided at the ends of sentences of Unicode (UAX #29), by `Intl.Segmenter`. White
 * space around them is left out, and so are empty ones.
 *
 * @param {string} text
 * @param {any} Segmenter undefined: a simpler rule, for browsers without Intl.Segmenter
 * @returns {Sentence[]}
 */
export function sentencesOf(text, Segmenter = Intl.Segmenter) {
  const segmenter = Segmenter && new Segmenter("und", { granularity: "sentence" });
  /** @type {Sentence[]} */
  const sentences = [];
  for (const { 0: line, index } of text.matchAll(/[^\r\n\u2028\u2029]+/g)) {
    /** @type {string[]} */
    const parts = segmenter ? Array.from(segmenter.segment(line), ({ segment }) => segment) : divided(line);
    let begin = index;
    for (const part of parts) {
      const start = begin + part.length - part.trimStart().length;
      const sentence = part.trim();
      if (sentence) sentences.push({ text: sentence, start, end: start + sentence.length });
      begin += part.length;
    }
  }
  return sentences;
}

/** @param {string} line @returns {string[]} its sentences, by the simpler rule */
function divided(line) {
  const ends = Array.from(line.matchAll(END), (match) => match.index + match[0].length);
  return [...ends, line.length].map((end, i) => line.slice(ends[i - 1] ?? 0, end));
}
