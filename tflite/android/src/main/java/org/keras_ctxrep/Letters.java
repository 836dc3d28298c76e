package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Code points, and where each comes from in a text, in UTF-16 units. */
final class Letters {
    int[] codes;
    int[] begins;
    int[] ends;
    int size;

    /** A class of code points. */
    interface Kind {
        boolean has(int code);
    }

    Letters(int capacity) {
        codes = new int[capacity];
        begins = new int[capacity];
        ends = new int[capacity];
    }

    /** The letters of a text; a surrogate that is not one of a pair is read as U+FFFD. */
    static Letters of(String text) {
        Letters letters = new Letters(text.length());
        for (int i = 0, next; i < text.length(); i = next) {
            int code = text.codePointAt(i);
            next = i + Character.charCount(code);
            letters.add(code >= 0xD800 && code < 0xE000 ? 0xFFFD : code, i, next);
        }
        return letters;
    }

    void add(int code, int begin, int end) {
        if (size == codes.length) {
            codes = Arrays.copyOf(codes, 2 * size + 2);
            begins = Arrays.copyOf(begins, 2 * size + 2);
            ends = Arrays.copyOf(ends, 2 * size + 2);
        }
        codes[size] = code;
        begins[size] = begin;
        ends[size++] = end;
    }

    /** Adds a code point with the span of a letter of a text. */
    void add(int code, Letters from, int place) {
        add(code, from.begins[place], from.ends[place]);
    }

    Letters part(int from, int to) {
        Letters part = new Letters(to - from);
        part.size = to - from;
        System.arraycopy(codes, from, part.codes, 0, part.size);
        System.arraycopy(begins, from, part.begins, 0, part.size);
        System.arraycopy(ends, from, part.ends, 0, part.size);
        return part;
    }

    /** The text, which begins with a code point; without letters it stays so. */
    Letters prefixed(int code) {
        if (size == 0 || codes[0] == code) {
            return this;
        }
        Letters longer = new Letters(size + 1);
        longer.add(code, this, 0);
        for (int i = 0; i < size; i++) {
            longer.add(codes[i], this, i);
        }
        return longer;
    }

    /** The code points of a text. */
    static int[] codes(String text) {
        Letters letters = of(text);
        return Arrays.copyOf(letters.codes, letters.size);
    }

    /** The parts of the text, of which each but the first begins with a letter of a kind. */
    List<Letters> cutBefore(Kind begins) {
        List<Letters> words = new ArrayList<>();
        for (int from = 0, to; from < size; from = to) {
            to = from + 1;
            while (to < size && !begins.has(codes[to])) {
                to++;
            }
            words.add(part(from, to));
        }
        return words;
    }
}
