package org.keras_ctxrep;

import java.util.Arrays;

/**
 * The code points of a changed text. Each has a number: 0 if it is in the place of the next letter of the text, -n if it
 * is in that of this letter and n more, 1 if it is added.
 */
final class Changes {
    int[] codes;
    int[] changes;
    int size;

    Changes(int capacity) {
        codes = new int[capacity];
        changes = new int[capacity];
    }

    void add(int code, int change) {
        if (size == codes.length) {
            codes = Arrays.copyOf(codes, 2 * size + 2);
            changes = Arrays.copyOf(changes, 2 * size + 2);
        }
        codes[size] = code;
        changes[size++] = change;
    }

    /** Adds what stands for some letters; as {@code tokenizers}, nothing at the text's begin moves the spans behind it. */
    void replace(int letters, int[] by) {
        for (int i = 0; i < by.length; i++) {
            add(by[i], i < letters ? 0 : 1);
        }
        if (by.length < letters && size > 0) {
            changes[size - 1] += by.length - letters;
        }
    }

    /** Sorts those from a place on by their combining classes; those of one class stay in their order. */
    void order(int from) {
        if (size - from < 2) {
            return;
        }
        int[] places = new int[257]; // combining classes are 1 to 254
        for (int i = from; i < size; i++) {
            places[Characters.combiningClass(codes[i]) + 1]++;
        }
        for (int i = 1; i < places.length; i++) {
            places[i] += places[i - 1];
        }
        int[] before = Arrays.copyOfRange(codes, from, size);
        int[] changed = Arrays.copyOfRange(changes, from, size);
        for (int i = 0; i < before.length; i++) {
            int place = from + places[Characters.combiningClass(before[i])]++;
            codes[place] = before[i];
            changes[place] = changed[i];
        }
    }

    /** The changed text with the spans that {@code tokenizers} gives: those of the letters before, in their order. */
    Letters of(Letters text) {
        Letters changed = new Letters(size);
        int next = 0;
        for (int i = 0; i < size; i++) {
            int from = changes[i] > 0 ? next - 1 : next;
            changed.add(codes[i], from < 0 ? 0 : text.begins[from], from < 0 ? 0 : text.ends[from]);
            next += changes[i] > 0 ? 0 : 1 - changes[i];
        }
        return changed;
    }
}
