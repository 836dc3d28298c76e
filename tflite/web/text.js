/**
 * Converts texts to the models' inputs, as `keras_ctxrep.text` does, with offsets into the original text.
 *
 * All offsets are in UTF-16 units, so that `text.slice(begin, end)` is the token. What is done with each code point is
 * in unicode.json, so that nothing depends on the Unicode version of the browser.
 *
 * @typedef {{code: number, begin: number, end: number}} Letter a code point, and the span in the text it comes from
 * @typedef {{code: number, change: number}} Change a code point of a changed text: in the place of the next letter (0),
 *   of this and n more (-n), or one that is added (1)
 * @typedef {{id: number, begin: number, end: number, word: number}} Piece
 * @typedef {{
 *   vocab: string[], names: string[], pieces: (text: string, place?: "text"|"word"|"later") => Piece[],
 *   aroundMasks: (parts: string[], mask: number) => Piece[][],
 * }} Tokenizer with the pieces by their ids, and as they are read; those of a text, of one word of a text that comes
 *   split, or of a part of a text behind a mask; and those of the parts between masks
 * @typedef {{
 *   tokens: any[], truncated: boolean, first: number, starts: (number|null)[]|null,
 *   offsets: number[][]|null, words: number[][]|null,
 * }} Row one encoded text or window, see `Row` in keras_ctxrep/text/features.py
 */

const REMOVED = 1, SPACE = 2, PUNCTUATION = 4, CJK = 8, MARK = 16, LETTER = 32, NUMBER = 64, COMPATIBLE = 128;
const FLAGS = {
  removed: REMOVED, space: SPACE, punctuation: PUNCTUATION, cjk: CJK, mark: MARK, letter: LETTER, number: NUMBER,
  compatible: COMPATIBLE,
};
const BLANK = 0x20;
const LONGEST_WORD = 100; // code points; a longer word is [UNK]

/** What is done with each code point. */
export class Unicode {
  /** @param {Record<string, any>} tables the contents of unicode.json */
  constructor(tables) {
    this.flags = new Uint8Array(0x110000);
    for (const [name, flag] of Object.entries(FLAGS)) {
      const ranges = tables[name];
      for (let i = 0, code = 0; i < ranges.length; i += 2) {
        code += ranges[i];
        for (const end = code + ranges[i + 1]; code < end; code++) this.flags[code] |= flag;
      }
    }
    /** @type {Map<number, number[]>} */
    this.lower = new Map(Object.entries(tables.lower_more).map(([code, codes]) => [Number(code), codes]));
    for (let i = 0; i < tables.lower.length; i += 4) {
      const [code, count, step, difference] = tables.lower.slice(i, i + 4);
      for (let n = 0; n < count; n++) this.lower.set(code + n * step, [code + n * step + difference]);
    }
    /** @type {Map<number, number[]>} */
    this.decomposed = new Map();
    for (const [length, values] of Object.entries(tables.decomposed)) {
      for (let i = 0, code = 0; i < values.length; i += Number(length) + 1) {
        code += values[i];
        this.decomposed.set(code, values.slice(i + 1, i + 1 + Number(length)));
      }
    }
    /** @type {Map<number, number>} */
    this.order = new Map();
    for (let i = 0, code = 0; i < tables.order.length; i += 3) {
      code += tables.order[i];
      for (const end = code + tables.order[i + 1]; code < end; code++) this.order.set(code, tables.order[i + 2]);
    }
    /** @type {Uint8Array|null} */
    this.classes = null;
    this.ranges = tables.graphemes;
  }

  /** The classes of code points in clusters of characters, see `clusterEnds`. @returns {Uint8Array} */
  get graphemes() {
    if (this.classes) return this.classes;
    const classes = new Uint8Array(0x110000);
    for (let i = 0, code = 0; i < this.ranges.length; i += 3) {
      code += this.ranges[i];
      classes.fill(this.ranges[i + 2], code, (code += this.ranges[i + 1]));
    }
    return (this.classes = classes);
  }

  /** @param {number} code @returns {number} one of letters, one of numbers, and 1 of others */
  kind(code) {
    return this.flags[code] & (LETTER | NUMBER) || 1;
  }

  /** @param {Letter} letter @returns {Letter[]} in lower case */
  lowered(letter) {
    return (this.lower.get(letter.code) ?? [letter.code]).map((code) => ({ ...letter, code }));
  }

  /** @param {number} code @returns {number[]} its compatible decomposition */
  decomposeCompatible(code) {
    return this.decompose(code).flatMap((part) => {
      if (!(this.flags[part] & COMPATIBLE)) return [part];
      return letters(String.fromCodePoint(part).normalize("NFKD")).map((letter) => letter.code);
    });
  }

  /** @param {number} code @returns {number[]} its canonical decomposition */
  decompose(code) {
    const syllable = code - 0xac00;
    if (syllable < 0 || syllable >= 11172) return this.decomposed.get(code) ?? [code];
    const final = syllable % 28;
    const jamo = [0x1100 + Math.floor(syllable / 588), 0x1161 + Math.floor((syllable % 588) / 28)];
    return final ? [...jamo, 0x11a7 + final] : jamo;
  }
}

/** @param {string} text @returns {string} without lone surrogates, which cannot be encoded */
export function wellFormed(text) {
  return text.replace(/[\ud800-\udfff]/gu, "?");
}

/** @param {string} text @returns {Letter[]} */
export function letters(text) {
  const result = [];
  let begin = 0;
  for (const letter of text) {
    result.push({ code: /** @type {number} */ (letter.codePointAt(0)), begin, end: begin + letter.length });
    begin += letter.length;
  }
  return result;
}

/**
 * The tokens of a text of which the first ones are needed: of a longer text those of its beginning, of whose last word
 * the tokens may be others.
 *
 * @template {{word?: number}} T
 * @param {string} text
 * @param {number} most tokens that are needed; there is one more if the text has more
 * @param {(text: string) => T[]} read the tokens of a text, with the numbers of their words if these may be long
 * @returns {T[]}
 */
export function beginning(text, most, read) {
  for (let size = Math.max(4096, 64 * most); size < text.length; size *= 4) {
    const pair = /[\ud800-\udbff]/.test(text[size - 1]);
    const tokens = read(text.slice(0, pair ? size - 1 : size));
    const last = tokens[tokens.length - 1]?.word;
    const whole = last === undefined ? tokens.length - LONGEST_WORD : tokens.findIndex(({ word }) => word === last);
    if (whole > most) return tokens;
  }
  return read(text);
}

/** BERT's normalizer and its split at white space and punctuation. */
export class Splitter {
  /**
   * @param {Unicode} unicode
   * @param {{lowercase: boolean, stripAccents: boolean, splitCjk: boolean}} rules
   */
  constructor(unicode, rules) {
    this.unicode = unicode;
    this.rules = rules;
  }

  /** @param {string} text @returns {Letter[][]} the letters of each word */
  words(text) {
    const words = [];
    /** @type {Letter[]} */
    let word = [];
    const end = () => {
      if (word.length) words.push(word);
      word = [];
    };
    for (const letter of this.normalized(text)) {
      if (letter.code === BLANK) {
        end();
      } else if (this.unicode.flags[letter.code] & PUNCTUATION) {
        end();
        words.push([letter]);
      } else {
        word.push(letter);
      }
    }
    end();
    return words;
  }

  /** @param {string} text @returns {Letter[]} */
  normalized(text) {
    const { flags } = this.unicode;
    let result = [];
    for (const letter of letters(text)) {
      const flag = flags[letter.code];
      if (flag & REMOVED) continue;
      if (flag & SPACE) result.push({ ...letter, code: BLANK });
      else if (flag & CJK && this.rules.splitCjk) {
        result.push({ ...letter, code: BLANK }, letter, { ...letter, code: BLANK });
      } else result.push(letter);
    }
    if (this.rules.stripAccents) result = this.decomposed(result).filter((letter) => !(flags[letter.code] & MARK));
    return this.rules.lowercase ? result.flatMap((letter) => this.unicode.lowered(letter)) : result;
  }

  /** @param {Letter[]} text @returns {Letter[]} in normal form D */
  decomposed(text) {
    return changed(text, decomposition(text, this.unicode, false));
  }
}

/**
 * @param {Letter[]} text
 * @param {Unicode} unicode
 * @param {boolean} compatible normal form KD, else D
 * @returns {Change[]}
 */
export function decomposition(text, unicode, compatible) {
  const { order } = unicode;
  const parts = text.flatMap(({ code }) => {
    const codes = compatible ? unicode.decomposeCompatible(code) : unicode.decompose(code);
    return codes.map((code, i) => ({ code, change: Math.min(i, 1), order: order.get(code) ?? 0 }));
  });
  for (let begin = 0; begin < parts.length; begin++) {
    let end = begin;
    while (end < parts.length && parts[end].order) end++;
    if (end - begin > 1) {
      const ordered = parts.slice(begin, end).sort((a, b) => a.order - b.order);
      for (let i = begin; i < end; i++) parts[i] = ordered[i - begin];
    }
    begin = Math.max(begin, end);
  }
  return parts;
}

/**
 * A changed text with the spans that `tokenizers` gives: those of the letters before, in their order.
 *
 * @param {Letter[]} text
 * @param {Change[]} parts
 * @returns {Letter[]} an added one has the span of the last letter whose place is taken
 */
export function changed(text, parts) {
  let next = 0;
  return parts.map(({ code, change }) => {
    const { begin, end } = (change > 0 ? text[next - 1] : text[next]) ?? { begin: 0, end: 0 };
    if (change <= 0) next += 1 - change;
    return { code, begin, end };
  });
}

/** @param {Letter[]} word @returns {string} */
export function written(word) {
  return word.map((letter) => String.fromCodePoint(letter.code)).join("");
}

/**
 * @param {number} size tokens of a text
 * @param {number} room tokens of a window
 * @param {number} stride tokens from one window to the next
 * @returns {number[]} where the windows begin that together have all tokens
 */
export function windowBegins(size, room, stride) {
  const step = stride < room ? stride : Math.max(1, Math.floor(room / 2));
  const begins = [];
  for (let begin = 0; begin < Math.max(size - room, 0) + step; begin += step) begins.push(begin);
  return begins;
}

/** @param {number} size @returns {number[]} 0, 1, ... */
const range = (size) => Array.from({ length: size }, (_, i) => i);

/** BERT's WordPiece tokenizer. */
class WordPiece {
  /** @param {any} bundle @param {string[]} vocab @param {Unicode} unicode */
  constructor(bundle, vocab, unicode) {
    this.splitter = new Splitter(unicode, {
      lowercase: bundle.lowercase,
      stripAccents: bundle.strip_accents ?? bundle.lowercase,
      splitCjk: bundle.split_cjk,
    });
    this.vocab = this.names = vocab;
    /** @type {Map<string, number>} */
    this.ids = new Map(vocab.map((piece, id) => [piece, id]));
    this.longest = vocab.reduce((most, piece) => Math.max(most, piece.length), 0);
    this.unknown = /** @type {number} */ (this.ids.get(bundle.special_tokens?.unk ?? "[UNK]"));
  }

  /** @param {string} text @returns {Piece[]} */
  pieces(text) {
    return this.splitter.words(text).flatMap((word, number) => this.split(word, number));
  }

  /** @param {string[]} parts of a text, between masks @returns {Piece[][]} */
  aroundMasks(parts) {
    return parts.map((part) => this.pieces(part));
  }

  /** @param {Letter[]} word @param {number} number @returns {Piece[]} the longest pieces, from left to right */
  split(word, number) {
    const span = (/** @type {number} */ first, /** @type {number} */ end) => ({
      begin: word[first].begin,
      end: word[end - 1].end,
      word: number,
    });
    const whole = { id: this.unknown, ...span(0, word.length) };
    if (word.length > LONGEST_WORD) return [whole];
    const pieces = [];
    for (let first = 0, end; first < word.length; first = end) {
      let id;
      for (end = Math.min(word.length, first + this.longest); end > first; end--) {
        id = this.ids.get((first ? "##" : "") + written(word.slice(first, end)));
        if (id !== undefined) break;
      }
      if (id === undefined) return [whole];
      pieces.push({ id, ...span(first, end) });
    }
    return pieces;
  }
}

/** BERT's inputs: pieces between [CLS] and [SEP], which the bundle's `special_tokens` may name differently. */
export class WordPieces {
  /**
   * @param {any} bundle
   * @param {string[]|Tokenizer} vocab the lines of vocab.txt, or a tokenizer
   * @param {Unicode} unicode
   */
  constructor(bundle, vocab, unicode) {
    this.maxLength = bundle.max_length;
    this.starts = bundle.reads.words;
    const special = { unk: "[UNK]", cls: "[CLS]", sep: "[SEP]", mask: "[MASK]", separators: 1, ...bundle.special_tokens };
    /** @type {number} tokens between the texts of a pair */
    this.separators = special.separators;
    this.maxQuestion = Math.min(64, Math.floor((this.maxLength - 2 - this.separators) / 2));
    /** @type {Tokenizer} */
    this.tokenizer = Array.isArray(vocab) ? new WordPiece(bundle, vocab, unicode) : vocab;
    this.special(special.unk);
    this.cls = this.special(special.cls);
    this.sep = this.special(special.sep);
    this.maskPiece = special.mask;
  }

  /** @param {string} piece @returns {number} */
  special(piece) {
    const id = this.tokenizer.vocab.indexOf(piece);
    if (id < 0) throw new Error(`the vocabulary has no ${piece}`);
    return id;
  }

  /**
   * @param {string} text
   * @param {number} most pieces that are needed, see `beginning`
   * @returns {Piece[]}
   */
  pieces(text, most = Infinity) {
    return beginning(text, most, (part) => this.tokenizer.pieces(part));
  }

  /**
   * @param {string|string[]} text
   * @param {string|null} pair
   * @returns {Row}
   */
  encode(text, pair) {
    let most = this.maxLength;
    let { pieces, starts, words } = typeof text === "string" ? this.raw(text, most) : this.joined(text);
    let second = pair === null ? null : this.pieces(pair, most);
    while (second && Math.min(pieces.length, second.length) > most && most < Math.max(text.length, pair?.length ?? 0)) {
      most *= 4; // the longer one of both may have one piece more
      if (typeof text === "string") ({ pieces, starts, words } = this.raw(text, most));
      second = this.pieces(/** @type {string} */ (pair), most);
    }
    const before = pieces.length + (second?.length ?? 0);
    [pieces, second] = truncatedPair(pieces, second, this.maxLength - (second ? 2 + this.separators : 2));
    const count = pieces.length;
    const edge = (/** @type {number} */ id) => ({ id, begin: 0, end: 0 });
    const between = Array.from({ length: second ? this.separators : 1 }, () => edge(this.sep));
    const all = [edge(this.cls), ...pieces, ...between, ...(second ? [...second, edge(this.sep)] : [])];
    return {
      tokens: all.map((piece) => piece.id),
      truncated: before > count + (second?.length ?? 0),
      first: 1 + count + between.length,
      starts: starts && starts.map((start) => (start !== null && start <= count ? start : null)),
      offsets: all.map((piece) => [piece.begin, piece.end]),
      words,
    };
  }

  /**
   * @param {string} text
   * @param {number} most pieces that are needed
   * @returns {{pieces: Piece[], starts: (number|null)[]|null, words: number[][]|null}}
   */
  raw(text, most) {
    const pieces = this.pieces(text, most);
    if (!this.starts) return { pieces, starts: null, words: null };
    const begins = range(pieces.length).filter((i) => !i || pieces[i].word !== pieces[i - 1].word);
    const ends = [...begins.slice(1), pieces.length];
    const words = begins.map((begin, i) => ({ start: 1 + begin, span: [pieces[begin].begin, pieces[ends[i] - 1].end] }));
    const read = words.filter(({ span: [begin, end] }) => begin < end); // not those of white space
    return { pieces, starts: read.map(({ start }) => start), words: read.map(({ span }) => span) };
  }

  /** @param {string[]} words @returns {{pieces: Piece[], starts: (number|null)[]|null, words: number[][]|null}} */
  joined(words) {
    /** @type {Piece[]} */
    const pieces = [];
    const starts = words.map((word) => {
      const start = pieces.length + 1;
      for (const piece of this.tokenizer.pieces(word, "word")) pieces.push(piece);
      return pieces.length >= start ? start : null;
    });
    return { pieces, starts, words: null };
  }

  /**
   * @param {string} question
   * @param {string} context
   * @param {number} stride
   * @returns {Row[]} the question with each window of the context
   */
  windows(question, context, stride) {
    const all = this.pieces(question, this.maxQuestion);
    const asked = all.slice(0, this.maxQuestion);
    const pieces = this.pieces(context);
    /** @type {number[][]} the span of each word */
    const spans = [];
    for (const { word, begin, end } of pieces) spans[word] = [spans[word]?.[0] ?? begin, end];
    const words = pieces.map(({ word }) => spans[word]);
    const room = this.maxLength - asked.length - 2 - this.separators;
    const before = asked.length + 1 + this.separators;
    const edge = (/** @type {number} */ id) => ({ id, begin: 0, end: 0 });
    return windowBegins(pieces.length, room, stride).map((begin) => {
      const part = pieces.slice(begin, begin + room);
      const between = Array.from({ length: this.separators }, () => edge(this.sep));
      const row = [edge(this.cls), ...asked, ...between, ...part, edge(this.sep)];
      return {
        tokens: row.map((piece) => piece.id),
        truncated: asked.length < all.length,
        first: before,
        starts: null,
        offsets: row.map((piece) => [piece.begin, piece.end]),
        words: [...row.slice(0, before).map(() => [0, 0]), ...words.slice(begin, begin + room), [0, 0]],
      };
    });
  }

  /** @param {string} text @param {number} stride @returns {Row[]} */
  textWindows(text, stride) {
    const ids = this.pieces(text).map((piece) => piece.id);
    const room = this.maxLength - 2;
    return windowBegins(ids.length, room, stride).map((begin) => {
      const tokens = [this.cls, ...ids.slice(begin, begin + room), this.sep];
      return { tokens, truncated: false, first: tokens.length, starts: null, offsets: null, words: null };
    });
  }

  /** @param {Row} row @returns {Record<string, any[]>} */
  inputs(row) {
    const inputs = {
      token_ids: row.tokens,
      segment_ids: row.tokens.map((_, i) => Number(this.separators === 1 && i >= row.first)),
      mask: row.tokens.map(() => 1),
    };
    if (!this.starts) return inputs;
    const starts = (row.starts ?? []).filter((start) => start !== null);
    return { ...inputs, starts: starts.length ? starts : [0] };
  }
}

/**
 * @template T
 * @param {T[]} first
 * @param {T[]|null} second
 * @param {number} room of both together
 * @returns {[T[], T[]|null]} cut at their ends; the shorter keeps up to half of the room, rounded down
 */
function truncatedPair(first, second, room) {
  if (second === null || first.length + second.length <= room) return [first.slice(0, room), second];
  const shorter = Math.min(first.length, second.length, Math.floor(room / 2));
  const kept = first.length <= second.length ? shorter : room - shorter;
  return [first.slice(0, kept), second.slice(0, room - kept)];
}
