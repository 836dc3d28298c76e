package org.keras_ctxrep;

import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * BERT's WordPiece tokenizer: each word is cut into the longest pieces of a vocabulary, from its begin on.
 *
 * <p>Devlin et al. 2018, https://arxiv.org/abs/1810.04805. Special pieces such as "[SEP]" are never recognised in text;
 * a bundle's "special_tokens" names them where they are not BERT's.
 */
final class WordPiece {
    private static final int MAX_WORD = 100; // characters; a longer word is [UNK]

    final int pad;
    final int unknown;
    final int begin;
    final int separator;
    final int mask;
    final int separators; // between the texts of a pair
    private final Splitter splitter;
    private final String[] vocab;
    private final int[] hashes; // of each piece
    private final int[] slots; // open addressing: id + 1 of a piece, 0 where there is none
    private final int inside; // the hash of "##"
    private int longest;

    /**
     * @param vocab the pieces in the order of their ids
     * @param splitter splits text into words
     * @param special the names of special pieces, and "separators"; those of BERT are not there
     * @throws IllegalArgumentException a special piece is missing, or a piece occurs twice
     */
    WordPiece(List<String> vocab, Splitter splitter, Map<String, Object> special) {
        this.splitter = splitter;
        this.vocab = vocab.toArray(new String[0]);
        Set<String> distinct = new HashSet<>(vocab);
        if (distinct.size() < this.vocab.length) {
            throw new IllegalArgumentException("vocabulary: a piece occurs twice; the pieces must be distinct");
        }
        hashes = new int[this.vocab.length];
        slots = new int[Integer.highestOneBit(Math.max(8, this.vocab.length)) * 4];
        inside = hash(hash(0, '#'), '#');
        for (int id = 0; id < this.vocab.length; id++) {
            String piece = this.vocab[id];
            for (int i = 0; i < piece.length(); i++) {
                hashes[id] = hash(hashes[id], piece.charAt(i));
            }
            int slot = slot(hashes[id]);
            while (slots[slot] != 0) {
                slot = (slot + 1) & (slots.length - 1);
            }
            slots[slot] = id + 1;
            longest = Math.max(longest, piece.length());
        }
        pad = special(special, "pad", "[PAD]");
        unknown = special(special, "unk", "[UNK]");
        begin = special(special, "cls", "[CLS]");
        separator = special(special, "sep", "[SEP]");
        mask = special(special, "mask", "[MASK]");
        separators = Bundle.number(special, "separators", 1);
    }

    /** The pieces of a text, without [CLS] and [SEP]. */
    Pieces encode(String text) {
        return encode(text, Integer.MAX_VALUE);
    }

    /** The first {@code most} pieces of a text and at least one more, if it has more. */
    Pieces encode(String text, int most) {
        Splitter.Words words = splitter.split(text, most);
        Pieces pieces = new Pieces(words.count + words.count / 2 + 4);
        int[] prefixes = new int[2 * MAX_WORD + 1];
        for (int word = 0; word < words.count; word++) {
            encode(words, word, prefixes, pieces);
        }
        return pieces;
    }

    private void encode(Splitter.Words words, int word, int[] prefixes, Pieces pieces) {
        int first = words.firsts[word];
        int last = words.firsts[word + 1];
        int before = pieces.size;
        boolean known = Character.codePointCount(words.units, first, last - first) <= MAX_WORD;
        for (int from = first; known && from < last; ) {
            // a piece "##ing" has two characters more than it covers
            int most = Math.min(last - from, from == first ? longest : longest - 2);
            prefixes[0] = from == first ? 0 : inside;
            for (int size = 1; size <= most; size++) {
                prefixes[size] = hash(prefixes[size - 1], words.units[from + size - 1]);
            }
            int id = -1;
            int size = most;
            for (; size > 0; size--) {
                id = find(prefixes[size], words.units, from, from + size, from > first);
                if (id >= 0) {
                    break;
                }
            }
            known = id >= 0;
            if (known) {
                pieces.add(id, words.begins[from], words.ends[from + size - 1], word);
                from += size;
            }
        }
        if (!known) {
            pieces.size = before;
            pieces.add(unknown, words.begin(word), words.end(word), word);
        }
    }

    private int find(int hash, char[] units, int from, int to, boolean behind) {
        int lead = behind ? 2 : 0;
        for (int slot = slot(hash); slots[slot] != 0; slot = (slot + 1) & (slots.length - 1)) {
            int id = slots[slot] - 1;
            if (hashes[id] == hash && vocab[id].length() == to - from + lead) {
                String piece = vocab[id];
                boolean equal = !behind || piece.startsWith("##");
                for (int i = from; equal && i < to; i++) {
                    equal = piece.charAt(lead + i - from) == units[i];
                }
                if (equal) {
                    return id;
                }
            }
        }
        return -1;
    }

    private int special(Map<String, Object> names, String name, String otherwise) {
        String piece = (String) names.getOrDefault(name, otherwise);
        char[] units = piece.toCharArray();
        int hash = 0;
        for (char unit : units) {
            hash = hash(hash, unit);
        }
        int id = find(hash, units, 0, units.length, false);
        if (id < 0) {
            throw new IllegalArgumentException("vocabulary: " + piece + " is missing, a special piece");
        }
        return id;
    }

    private static int hash(int before, char unit) {
        return before * 31 + unit;
    }

    private int slot(int hash) {
        int mixed = hash * 0x9E3779B1;
        return (mixed ^ (mixed >>> 15)) & (slots.length - 1);
    }

    /** Word pieces: their ids, where each begins and ends in the text, and the numbers of their words. */
    static final class Pieces {
        int[] ids;
        int[] begins;
        int[] ends;
        int[] words;
        int size;

        Pieces(int capacity) {
            ids = new int[capacity];
            begins = new int[capacity];
            ends = new int[capacity];
            words = new int[capacity];
        }

        void add(int id, int begin, int end, int word) {
            if (size == ids.length) {
                ids = Arrays.copyOf(ids, 2 * size);
                begins = Arrays.copyOf(begins, 2 * size);
                ends = Arrays.copyOf(ends, 2 * size);
                words = Arrays.copyOf(words, 2 * size);
            }
            ids[size] = id;
            begins[size] = begin;
            ends[size] = end;
            words[size++] = word;
        }

        /** Adds pieces of others, {@code from} to {@code to}. */
        void addAll(Pieces other, int from, int to) {
            for (int i = from; i < to; i++) {
                add(other.ids[i], other.begins[i], other.ends[i], other.words[i]);
            }
        }
    }
}
