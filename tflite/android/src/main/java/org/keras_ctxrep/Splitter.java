package org.keras_ctxrep;

import java.util.Arrays;

/**
 * Splits text into words at white space, punctuation and Chinese characters, as BERT does.
 *
 * <p>The rules are those of {@code BertNormalizer} and {@code BertPreTokenizer} of the Python package
 * {@code tokenizers}. Surrogates that are not one of a pair are removed like control characters.
 */
final class Splitter {
    private static final int[] FIRST = {0};

    private final boolean lowercase;
    private final boolean stripAccents;
    private final boolean splitCjk;

    Splitter(boolean lowercase, boolean stripAccents, boolean splitCjk) {
        this.lowercase = lowercase;
        this.stripAccents = stripAccents;
        this.splitCjk = splitCjk;
    }

    /** The words of a text, normalised, with their offsets in it. */
    Words split(String text) {
        return split(text, Integer.MAX_VALUE);
    }

    /** The first {@code needed} words of a text and at least one more, if it has more; of an ordinary one all. */
    Words split(String text, int needed) {
        int most = text.length() <= Math.max(4096, 64L * needed) ? Integer.MAX_VALUE : needed;
        Words words = new Words(Math.min(text.length(), 1 << 12));
        Marks marks = stripAccents ? new Marks(words) : null;
        int next;
        for (int i = 0; i < text.length() && words.count <= most; i = next) {
            int code = text.codePointAt(i);
            next = i + Character.charCount(code);
            int flags = Characters.flags(code);
            if ((flags & Characters.REMOVED) != 0) {
                continue;
            }
            boolean alone = splitCjk && (flags & Characters.CJK) != 0;
            if (alone || (flags & Characters.SPACE) != 0) {
                if (marks != null) {
                    marks.flush();
                }
                words.end();
            }
            if ((flags & Characters.SPACE) != 0) {
                continue;
            }
            if (marks == null) {
                lower(words, code, i, next);
            } else {
                marks.add(code, flags, i, next);
            }
            if (alone) {
                if (marks != null) {
                    marks.flush();
                }
                words.end();
            }
        }
        if (marks != null) {
            marks.flush();
        }
        words.end();
        return words;
    }

    private void lower(Words words, int code, int begin, int end) {
        if (!lowercase) {
            words.add(code, begin, end);
            return;
        }
        words.add(Characters.lower(code), begin, end);
        int second = Characters.lowerSecond(code);
        if (second >= 0) {
            words.add(second, begin, end);
        }
    }

    /** The words of a text: UTF-16 units of all words, one behind the other, and where each comes from. */
    static final class Words {
        char[] units;
        int[] begins; // of each unit's character in the text
        int[] ends;
        int[] firsts = new int[16]; // each word's first unit, then the number of all units
        int count; // of words
        private int size; // units

        Words(int capacity) {
            units = new char[capacity + 2];
            begins = new int[capacity + 2];
            ends = new int[capacity + 2];
        }

        /** Adds a character to the last word; punctuation is a word of its own. */
        void add(int code, int begin, int end) {
            boolean alone = (Characters.flags(code) & Characters.PUNCTUATION) != 0;
            if (alone) {
                end();
            }
            if (code < 0x10000) {
                add((char) code, begin, end);
            } else {
                add(Character.highSurrogate(code), begin, end);
                add(Character.lowSurrogate(code), begin, end);
            }
            if (alone) {
                end();
            }
        }

        private void add(char unit, int begin, int end) {
            if (size == units.length) {
                units = Arrays.copyOf(units, 2 * size);
                begins = Arrays.copyOf(begins, 2 * size);
                ends = Arrays.copyOf(ends, 2 * size);
            }
            units[size] = unit;
            begins[size] = begin;
            ends[size++] = end;
        }

        /** Ends the last word, unless it is empty. */
        void end() {
            if (size == firsts[count]) {
                return;
            }
            if (++count == firsts.length) {
                firsts = Arrays.copyOf(firsts, 2 * count);
            }
            firsts[count] = size;
        }

        /** The normalised text of a word. */
        String word(int number) {
            return new String(units, firsts[number], firsts[number + 1] - firsts[number]);
        }

        /** Where a word begins in the text, without removed characters before it. */
        int begin(int number) {
            return begins[firsts[number]];
        }

        /** Where a word ends in the text, without removed characters behind it. */
        int end(int number) {
            return ends[firsts[number + 1] - 1];
        }
    }

    /**
     * Canonical decomposition and ordering, after which accents are removed.
     *
     * <p>Characters that ordering may move wait until one comes that it may not. {@code tokenizers} aligns them by their
     * new order: each character takes the offsets of the next one of the text, and the later characters of a
     * decomposition those of the one before them.
     */
    private final class Marks {
        private final Words words;
        private int[] codes = new int[8];
        private int[] classes = new int[8];
        private boolean[] later = new boolean[8]; // not the first character of its decomposition
        private int size;
        private int[] begins = new int[8]; // of the waiting characters of the text
        private int[] ends = new int[8];
        private int waiting;
        private int begin; // of the last character that was written
        private int end;

        Marks(Words words) {
            this.words = words;
        }

        /** Adds a character of the text. */
        void add(int code, int flags, int from, int to) {
            if ((flags & (Characters.DECOMPOSED | Characters.COMBINING)) == 0) {
                flush();
                begin = from;
                end = to;
                write(code);
                return;
            }
            String parts = (flags & Characters.DECOMPOSED) == 0 ? null : Characters.decomposed(code);
            if (parts == null) {
                push(code, false, from, to);
                return;
            }
            for (int i = 0; i < parts.length(); i += Character.charCount(parts.codePointAt(i))) {
                push(parts.codePointAt(i), i > 0, from, to);
            }
        }

        private void push(int code, boolean behind, int from, int to) {
            int order = Characters.combiningClass(code);
            if (order == 0) {
                flush();
                if (!behind) {
                    begin = from;
                    end = to;
                }
                write(code);
                return;
            }
            if (size == codes.length) {
                codes = Arrays.copyOf(codes, 2 * size);
                classes = Arrays.copyOf(classes, 2 * size);
                later = Arrays.copyOf(later, 2 * size);
                begins = Arrays.copyOf(begins, 2 * size);
                ends = Arrays.copyOf(ends, 2 * size);
            }
            codes[size] = code;
            classes[size] = order;
            later[size++] = behind;
            if (!behind) {
                begins[waiting] = from;
                ends[waiting++] = to;
            }
        }

        /** Writes the waiting characters, in canonical order. */
        void flush() {
            int next = 0;
            int[] order = size > 1 ? order() : FIRST;
            for (int i = 0; i < size; i++) {
                if (!later[order[i]]) {
                    begin = begins[next];
                    end = ends[next++];
                }
                write(codes[order[i]]);
            }
            size = waiting = 0;
        }

        /** Indices of the waiting characters by their classes; those of one class stay in their order. */
        private int[] order() {
            int[] places = new int[257]; // combining classes are 1 to 254
            for (int i = 0; i < size; i++) {
                places[classes[i] + 1]++;
            }
            for (int i = 1; i < places.length; i++) {
                places[i] += places[i - 1];
            }
            int[] order = new int[size];
            for (int i = 0; i < size; i++) {
                order[places[classes[i]]++] = i;
            }
            return order;
        }

        private void write(int code) {
            if ((Characters.flags(code) & Characters.MARK) == 0) {
                lower(words, code, begin, end);
            }
        }
    }
}
