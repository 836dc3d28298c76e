package org.keras_ctxrep;

import java.util.Arrays;

/** Pieces of a text: their ids, where each begins and ends in the text, and the numbers of their words. */
final class Pieces {
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
