/** The normalizers of a tokenizer.json, with the spans that the Python package `tokenizers` gives to what they make. */

import { changed, decomposition, letters } from "./text.js";

/** @typedef {import("./text.js").Letter} Letter @typedef {import("./text.js").Change} Change */

const ZWNJ = 0x200c, ZWJ = 0x200d, CR = 0xd, LF = 0xa, SPACE = 0x20;
const CONTROL = 1, EXTEND = 2, LINKER = 3, SPACING = 4, PREPEND = 5, CONSONANT = 6, PICTOGRAPH = 7, L = 8, V = 9, T = 10;
const LV = 11, LVT = 12, REGIONAL = 13; // which are not in the table
/** @type {Record<number, number[]>} what continues a cluster behind a class, of Hangul */
const SYLLABLES = { [L]: [L, V, LV, LVT], [V]: [V, T], [LV]: [V, T], [T]: [T], [LVT]: [T] };
const ATTACHED = [EXTEND, LINKER, SPACING];
const WHOLE = 6; // a cluster of so many bytes of UTF-8 is looked up character by character
const WHITE_SPACE = /[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/; // Unicode's

/** @param {string} char @returns {boolean} */
export const isSpace = (char) => WHITE_SPACE.test(char);

/**
 * Extended grapheme clusters, Unicode's annex 29.
 *
 * @param {Letter[]} text
 * @param {Uint8Array} classes of each code point
 * @returns {number[]} where they end
 */
export function clusterEnds(text, classes) {
  const ends = [];
  let [before, conjunct, pictograph, regional] = [CONTROL, 0, 0, 0];
  text.forEach(({ code }, i) => {
    const own = graphemeClass(code, classes);
    const attached = code === ZWJ || ATTACHED.includes(own);
    const joined = before === CONTROL || own === CONTROL
      ? code === LF && i > 0 && text[i - 1].code === CR
      : attached || before === PREPEND || SYLLABLES[before]?.includes(own) || (own === CONSONANT && conjunct === 2)
        || (own === PICTOGRAPH && pictograph === 2) || (own === REGIONAL && regional % 2 === 1);
    if (i > 0 && !joined) ends.push(i);
    if (own === CONSONANT) conjunct = 1;
    else if (own === LINKER) conjunct &&= 2;
    else if (!(own === EXTEND || code === ZWJ) || code === ZWNJ) conjunct = 0;
    if (own === PICTOGRAPH) pictograph = 1;
    else if (pictograph === 1 && code === ZWJ) pictograph = 2;
    else if (pictograph && !(own === EXTEND || own === LINKER)) pictograph = 0;
    else pictograph &&= 1;
    regional = own === REGIONAL ? regional + 1 : 0;
    before = own;
  });
  if (text.length) ends.push(text.length);
  return ends;
}

/** @param {number} code @param {Uint8Array} classes @returns {number} */
function graphemeClass(code, classes) {
  if (code >= 0xac00 && code < 0xd7a4) return (code - 0xac00) % 28 ? LVT : LV;
  return code >= 0x1f1e6 && code < 0x1f200 ? REGIONAL : classes[code];
}

/**
 * SentencePiece's map of characters: a trie of bytes in a double array, and the texts that it leads to.
 *
 * @param {string} charsmap in base 64
 * @param {import("./text.js").Unicode} unicode
 * @returns {(text: Letter[]) => Letter[]}
 */
function precompiled(charsmap, unicode) {
  const bytes = Uint8Array.from(atob(charsmap), (char) => char.charCodeAt(0));
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const trie = new Uint32Array(bytes.buffer.slice(4, 4 + size));
  const texts = bytes.subarray(4 + size);
  const [encoder, decoder] = [new TextEncoder(), new TextDecoder("utf-8", { ignoreBOM: true })];
  /** @type {Map<string, number[]|null>} */
  const cache = new Map();
  const below = (/** @type {number} */ unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);

  /** @param {Uint8Array} key @returns {number[]|null} the code points for its shortest beginning in the map */
  function found(key) {
    let node = below(trie[0]);
    for (const byte of key) {
      node ^= byte;
      const unit = trie[node];
      if (!byte || (unit & 0x800000ff) !== byte) return null;
      node ^= below(unit);
      if (unit & 0x100) {
        const begin = trie[node] & 0x7fffffff;
        const text = decoder.decode(texts.subarray(begin, texts.indexOf(0, begin)));
        return letters(text).map(({ code }) => code);
      }
    }
    return null;
  }

  /** @param {Letter[]} part @returns {number[]|null} */
  function becomes(part) {
    const key = String.fromCodePoint(...part.map(({ code }) => code));
    let codes = cache.get(key);
    if (codes === undefined) {
      const encoded = encoder.encode(key);
      codes = part.length === 1 || encoded.length < WHOLE ? found(encoded) : null;
      cache.set(key, codes);
    }
    return codes;
  }

  return (text) => {
    /** @type {Change[]} */
    const parts = [];
    let any = false;
    /** @param {Letter[]} part @param {number[]} codes */
    const replace = (part, codes) => {
      any = true;
      const more = codes.length - part.length;
      codes.forEach((code, i) => parts.push({ code, change: i < codes.length - more ? 0 : 1 }));
      if (more < 0 && parts.length) parts[parts.length - 1].change += more;
    };
    let begin = 0;
    for (const end of clusterEnds(text, unicode.graphemes)) {
      const cluster = text.slice(begin, end);
      const whole = cluster.length > 1 && cluster.length < WHOLE ? becomes(cluster) : null;
      if (whole) replace(cluster, whole);
      for (const letter of whole ? [] : cluster) {
        const codes = becomes([letter]);
        if (codes) replace([letter], codes);
        else parts.push({ code: letter.code, change: 0 });
      }
      begin = end;
    }
    return any ? changed(text, parts) : text;
  };
}

/** @param {number} first @param {number} second @param {import("./text.js").Unicode} unicode @returns {number|null} */
function composed(first, second, unicode) {
  if (second < 0x300) return null;
  const text = String.fromCodePoint(first, second).normalize("NFC");
  const code = /** @type {number} */ (text.codePointAt(0));
  const known = unicode.decompose(code).length > 1; // and not only to the browser
  return known && text === String.fromCodePoint(code) ? code : null;
}

/** @param {import("./text.js").Unicode} unicode @param {boolean} compatible @returns {(text: Letter[]) => Letter[]} */
function composition(unicode, compatible) {
  return (text) => {
    /** @type {Change[]} */
    const parts = [];
    let [starter, highest] = [-1, 0]; // the place of the last starter, and the class of the last part behind it
    for (const { code, change } of decomposition(text, unicode, compatible)) {
      const order = unicode.order.get(code) ?? 0;
      const open = starter >= 0 && (starter === parts.length - 1 || highest < order);
      const both = open ? composed(parts[starter].code, code, unicode) : null;
      if (both !== null) {
        parts[starter] = { code: both, change: parts[starter].change + change - 1 };
        continue;
      }
      if (!order) starter = parts.length;
      highest = order;
      parts.push({ code, change });
    }
    return changed(text, parts);
  };
}

/**
 * @param {any} entry "normalizer" of a tokenizer.json
 * @param {import("./text.js").Unicode} unicode
 * @returns {(text: Letter[]) => Letter[]}
 */
export function normalizer(entry, unicode) {
  switch (entry?.type) {
    case undefined:
      return (text) => text;
    case "Sequence": {
      const all = entry.normalizers.map((/** @type {any} */ each) => normalizer(each, unicode));
      return (text) => all.reduce((/** @type {Letter[]} */ before, /** @type {any} */ next) => next(before), text);
    }
    case "Precompiled":
      return precompiled(entry.precompiled_charsmap, unicode);
    case "NFC":
    case "NFKC":
      return composition(unicode, entry.type === "NFKC");
    case "Lowercase":
      return (text) => text.flatMap((letter) => unicode.lowered(letter));
    case "Replace": // of several spaces, which is the only one that is written
      return (text) => {
        const space = text.map(({ code }) => code === SPACE);
        return text.flatMap((letter, i) => {
          if (!space[i] || space[i + 1]) return space[i] ? [] : [letter];
          return [space[i - 1] ? { ...letter, code: entry.content.codePointAt(0) } : letter];
        });
      };
    case "Strip":
      return (text) => {
        const space = text.map(({ code }) => isSpace(String.fromCodePoint(code)));
        const begin = entry.strip_left ? space.indexOf(false) : 0;
        return begin < 0 ? [] : text.slice(begin, entry.strip_right ? space.lastIndexOf(false) + 1 : text.length);
      };
    default:
      throw new Error(`tokenizer.json: the normalizer ${entry.type} is not supported`);
  }
}
