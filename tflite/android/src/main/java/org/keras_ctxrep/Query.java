package org.keras_ctxrep;

import java.util.List;

/** What a model is asked about one text. */
final class Query {
    final String text; // null if it is split into words
    final List<String> words; // null unless it is split into words
    final String pair; // null if there is none
    final int[][] marks; // [begin, end) of each marked span, in UTF-16 units, or in words

    Query(String text, List<String> words, String pair, int[][] marks) {
        this.text = text;
        this.words = words;
        this.pair = pair;
        this.marks = marks;
    }
}
