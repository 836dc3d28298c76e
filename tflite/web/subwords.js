/** SentencePiece's unigram model and byte-level BPE from a tokenizer.json, as the Python package `tokenizers` reads it. */

import { isSpace, normalizer } from "./normalizers.js";
import { letters, written } from "./text.js";

/**
 * @typedef {import("./text.js").Letter} Letter
 * @typedef {import("./text.js").Piece} Piece
 * @typedef {{id: number, size: number, first: boolean}} Part a piece of a word, and whether it is the first of these letters
 */

const PENALTY = 10; // by which an unknown letter is below the lowest score
const CACHED = 10_000; // words
const CACHED_LENGTH = 256; // letters of the longest of them
const APOSTROPHE = 0x27, SPACE = 0x20;
const CONTRACTIONS = ["s", "t", "re", "ve", "m", "ll", "d"];

/** A tokenizer of subwords, see keras_ctxrep/text/subwords.py: no text makes an added token, and spans have no white space. */
export class Subwords {
  /** @param {any} entries the contents of tokenizer.json @param {import("./text.js").Unicode} unicode */
  constructor({ normalizer: rules, pre_tokenizer: split, model, added_tokens: added }, unicode) {
    this.unicode = unicode;
    this.normalize = normalizer(rules, unicode);
    this.splitters = {
      text: splitter(split, unicode, (scheme, begins) => scheme === "always" || (scheme === "first" && begins)),
      word: splitter(split, unicode, () => true),
      later: splitter(split, unicode, (scheme) => scheme === "always"),
    };
    /** @type {Set<number>} */
    this.added = new Set(added.map(({ id }) => id));
    /** @type {Set<number>} those that take the white space before them */
    this.stripping = new Set(added.filter(({ lstrip }) => lstrip).map(({ id }) => id));
    /** @type {string[]} */
    this.vocab = [];
    if (model.type === "Unigram") this.vocab = model.vocab.map((/** @type {[string, number]} */ [piece]) => piece);
    else for (const [piece, id] of Object.entries(model.vocab)) this.vocab[id] = piece;
    this.ofBytes = model.type === "BPE";
    this.parts = model.type === "Unigram" ? unigram(model, this.added) : pairs(model);
    /** @type {Map<string, Part[]>} */
    this.cache = new Map();
  }

  /** The pieces as WordPiece writes them, with "##" before those that go on with a word. @returns {string[]} */
  get names() {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return this.vocab.map((piece, id) => {
      const text = this.ofBytes ? () => decoder.decode(this.bytes(id)) : () => piece.replaceAll("\u2581", " ");
      const name = this.added.has(id) ? piece : text();
      const inside = this.unicode.kind(name.codePointAt(0) ?? SPACE) > 1; // a letter or a number
      return inside ? `##${name}` : name.replace(/^ (?=.)/s, "");
    });
  }

  /** @param {number} id of a BPE's piece @returns {Uint8Array} what it stands for */
  bytes(id) {
    return Uint8Array.from(this.vocab[id], (letter) => /** @type {number} */ (READ.get(letter)));
  }

  /** @param {string} text @param {"text"|"word"|"later"} place see `Tokenizer` @returns {Piece[]} */
  pieces(text, place = "text") {
    const all = this.normalize(letters(text.replace(/[\ud800-\udfff]/gu, "\ufffd")));
    return this.splitters[place](all).flatMap((word, number) => {
      let used = 0;
      return this.cached(written(word)).map(({ id, size, first }) => {
        if (first) used += size;
        let [begin, end] = [word[used - size].begin, word[used - 1].end];
        while (begin < end && isSpace(text[begin])) begin++;
        while (begin < end && isSpace(text[end - 1])) end--;
        return { id, begin, end, word: number };
      });
    });
  }

  /** @param {string[]} parts of a text, between masks @param {number} mask its id @returns {Piece[][]} */
  aroundMasks(parts, mask) {
    return parts.map((part, i) => {
      let end = part.length;
      while (i < parts.length - 1 && this.stripping.has(mask) && end && isSpace(part[end - 1])) end--;
      return this.pieces(part.slice(0, end), i ? "later" : "text");
    });
  }

  /** @param {string} word @returns {Part[]} */
  cached(word) {
    if (word.length > CACHED_LENGTH) return this.parts(word);
    let parts = this.cache.get(word);
    if (parts === undefined) {
      if (this.cache.size >= CACHED) this.cache.clear();
      this.cache.set(word, (parts = this.parts(word)));
    }
    return parts;
  }
}

/**
 * @param {any} entry "pre_tokenizer" of a tokenizer.json
 * @param {import("./text.js").Unicode} unicode
 * @param {(scheme: string, begins: boolean) => boolean} prefixes whether a space is put before a word, by the scheme and
 *   whether the word begins the text
 * @returns {(text: Letter[]) => Letter[][]} the words, none of them empty
 */
function splitter(entry, unicode, prefixes) {
  switch (entry.type) {
    case "Sequence": {
      const [first, second] = entry.pretokenizers.map((/** @type {any} */ each) => splitter(each, unicode, prefixes));
      return (text) => first(text).flatMap(second);
    }
    case "WhitespaceSplit":
      return (text) => {
        const words = cutBefore(text, ({ code }) => isSpace(String.fromCodePoint(code)));
        return words.map((word) => word.slice(isSpace(written(word.slice(0, 1))) ? 1 : 0)).filter((word) => word.length);
      };
    case "Metaspace": {
      const mark = entry.replacement.codePointAt(0);
      const marks = (/** @type {Letter} */ { code }) => code === mark;
      return (text) => {
        const marked = text.map((letter) => (letter.code === SPACE ? { ...letter, code: mark } : letter));
        return cutBefore(prefixes(entry.prepend_scheme, text[0]?.begin === 0) ? prefixed(marked, mark) : marked, marks);
      };
    }
    case "ByteLevel":
      return (text) => {
        const all = prefixes(entry.add_prefix_space ? "always" : "never", true) ? prefixed(text, SPACE) : text;
        return contracted(all, unicode).map((word) => word.flatMap(inBytes));
      };
    default:
      throw new Error(`tokenizer.json: the pre-tokenizer ${entry.type} is not supported`);
  }
}

/** @param {Letter[]} text @param {number} code @returns {Letter[]} the text, which begins with the code point */
function prefixed(text, code) {
  return text.length && text[0].code !== code ? [{ ...text[0], code }, ...text] : text;
}

/** @param {Letter[]} text @param {(letter: Letter) => boolean} begins @returns {Letter[][]} */
function cutBefore(text, begins) {
  /** @type {Letter[][]} */
  const words = [];
  for (const letter of text) {
    if (!words.length || begins(letter)) words.push([]);
    words[words.length - 1].push(letter);
  }
  return words;
}

/** @param {Letter[]} text @param {import("./text.js").Unicode} unicode @returns {Letter[][]} the words of GPT-2's rule */
function contracted(text, unicode) {
  const kinds = text.map(({ code }) => (isSpace(String.fromCodePoint(code)) ? 0 : unicode.kind(code)));
  const words = [];
  for (let begin = 0, end; begin < text.length; begin = end) {
    const behind = text[begin].code === APOSTROPHE ? written(text.slice(begin + 1, begin + 3)) : "";
    const contraction = CONTRACTIONS.find((letters) => behind.startsWith(letters));
    const first = begin + Number(text[begin].code === SPACE && kinds[begin + 1] > 0);
    end = first;
    while (end < text.length && kinds[end] === kinds[first]) end++;
    if (behind && contraction) end = begin + 1 + contraction.length;
    else if (!kinds[first] && end < text.length && end - begin > 1) end--; // the last space may be of the next word
    words.push(text.slice(begin, end));
  }
  return words;
}

const encoder = new TextEncoder();
const PRINTED = Array.from({ length: 256 }, (_, byte) => byte).filter(
  (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad),
);
/** What stands for each byte: itself if it is printed, else the letters from U+0100 on. @type {number[]} */
const BYTES = [];
for (const byte of PRINTED) BYTES[byte] = byte;
for (let byte = 0, code = 0x100; byte < 256; byte++) BYTES[byte] ??= code++;

const READ = new Map(BYTES.map((code, byte) => [String.fromCodePoint(code), byte]));

/** @param {Letter} letter @returns {Letter[]} */
function inBytes(letter) {
  if (letter.code < 0x80) return [{ ...letter, code: BYTES[letter.code] }];
  return Array.from(encoder.encode(String.fromCodePoint(letter.code)), (byte) => ({ ...letter, code: BYTES[byte] }));
}

/**
 * Kudo 2018, https://arxiv.org/abs/1804.10959: the pieces with the highest sum of scores.
 *
 * @param {{vocab: [string, number][], unk_id: number, byte_fallback: boolean}} model
 * @param {Set<number>} hidden pieces that no text has
 * @returns {(word: string) => Part[]}
 */
function unigram({ vocab, unk_id: unknown, byte_fallback: fallback }, hidden) {
  /** @type {Map<string, number>} */
  const ids = new Map();
  const all = Float64Array.from(vocab, ([, score]) => score);
  let [lowest, longest] = [Infinity, 1];
  for (let id = 0; id < all.length; id++) {
    const [piece] = vocab[id];
    if (!hidden.has(id)) ids.set(piece, id);
    lowest = Math.min(lowest, all[id]);
    longest = Math.max(longest, piece.length);
  }

  /** @param {string} text without a piece @returns {number[]} */
  function unread(text) {
    const names = Array.from(encoder.encode(text), (byte) => byte.toString(16).toUpperCase().padStart(2, "0"));
    const bytes = fallback ? names.map((name) => ids.get(`<0x${name}>`)) : [undefined];
    return bytes.includes(undefined) ? [unknown] : /** @type {number[]} */ (bytes);
  }

  return (word) => {
    const size = word.length;
    const [scores, begins] = [new Float64Array(size + 1), new Int32Array(size + 1).fill(-1)];
    const best = new Int32Array(size + 1);
    /** @param {number} begin @param {number} end @param {number} id @param {number} score */
    const offer = (begin, end, id, score) => {
      const sum = score + scores[begin];
      if (begins[end] >= 0 && sum <= scores[end]) return;
      scores[end] = sum;
      begins[end] = begin;
      best[end] = id;
    };
    for (let begin = 0, next; begin < size; begin = next) {
      next = begin + (/** @type {number} */ (word.codePointAt(begin)) > 0xffff ? 2 : 1);
      let single = false;
      for (let end = next; end <= Math.min(size, begin + longest); end++) {
        const id = ids.get(word.slice(begin, end));
        if (id === undefined) continue;
        offer(begin, end, id, all[id]);
        single ||= end === next;
      }
      if (!single) offer(begin, next, unknown, lowest - PENALTY);
    }
    const pieces = [];
    for (let end = size, begin; end; end = begin) {
      begin = begins[end];
      if (best[end] === unknown) while (begin && best[begin] === unknown) begin = begins[begin];
      pieces.push(word.slice(begin, end));
    }
    return pieces.reverse().flatMap((piece) => {
      const id = ids.get(piece);
      const found = id === undefined ? unread(piece) : [id];
      return found.map((id, i) => ({ id, size: [...piece].length, first: i === 0 }));
    });
  };
}

/**
 * Sennrich et al. 2016, https://arxiv.org/abs/1508.07909: the pair of the lowest rank is merged, until there is none.
 *
 * @param {{vocab: Record<string, number>, merges: [string, string][]}} model
 * @returns {(word: string) => Part[]}
 */
function pairs({ vocab, merges }) {
  const ids = new Map(Object.entries(vocab));
  const id = (/** @type {string} */ piece) => /** @type {number} */ (ids.get(piece));
  const key = (/** @type {number} */ first, /** @type {number} */ second) => first * ids.size + second;
  const ranks = new Map(merges.map(([first, second], rank) => [key(id(first), id(second)), rank]));
  const made = merges.map(([first, second]) => id(first + second));

  return (word) => {
    const own = Array.from(word, id);
    const [ends, befores] = [own.map((_, i) => i + 1), own.map((_, i) => i - 1)]; // a piece ends where the next begins
    const waiting = new Heap();
    /** @param {number} place */
    const offer = (place) => {
      if (place < 0 || ends[place] >= own.length) return;
      const rank = ranks.get(key(own[place], own[ends[place]]));
      if (rank !== undefined) waiting.push(rank * (own.length + 1) + place);
    };
    own.forEach((_, place) => offer(place));
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      const [rank, place] = [Math.floor(next / (own.length + 1)), next % (own.length + 1)];
      const second = ends[place];
      if (own[place] < 0 || second >= own.length) continue;
      const now = ranks.get(key(own[place], own[second]));
      if (now === undefined || made[now] !== made[rank]) continue; // one of both was merged before
      own[place] = made[rank];
      own[second] = -1;
      ends[place] = ends[second];
      if (ends[place] < own.length) befores[ends[place]] = place;
      offer(befores[place]);
      offer(place);
    }
    return own.flatMap((id, place) => (id < 0 ? [] : [{ id, size: ends[place] - place, first: true }]));
  };
}

/** Numbers, of which the lowest is taken first. */
class Heap {
  /** @type {number[]} */
  items = [];

  /** @param {number} item */
  push(item) {
    const { items } = this;
    let at = items.length;
    for (let above; at && items[(above = (at - 1) >> 1)] > item; at = above) items[at] = items[above];
    items[at] = item;
  }

  /** @returns {number|undefined} */
  pop() {
    const { items } = this;
    const [top, item] = [items[0], /** @type {number} */ (items.pop())];
    let at = 0;
    for (let below; (below = 2 * at + 1) < items.length; at = below) {
      if (items[below + 1] < items[below]) below++;
      if (items[below] >= item) break;
      items[at] = items[below];
    }
    if (items.length) items[at] = item;
    return top;
  }
}
