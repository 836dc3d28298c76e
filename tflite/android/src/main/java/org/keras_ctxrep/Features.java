package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Converts texts to a model's inputs, as {@code keras_ctxrep.text.features} does. */
abstract class Features {
    final int maxLength;

    Features(int maxLength) {
        this.maxLength = maxLength;
    }

    /**
     * The text preparation of a model.
     *
     * @throws IllegalArgumentException its family is not known, or it reads character n-grams, the texts of a pair
     *     apart, or words or marked spans by a language model
     */
    static Features of(Bundle bundle) {
        if (bundle.network.equals("esim") || bundle.network.equals("bidaf")) {
            throw new IllegalArgumentException(
                    "the task network " + bundle.network
                            + ", which reads the texts of a pair apart, is not supported here");
        }
        switch (bundle.family) {
            case "elmo":
                return new WordFeatures(bundle);
            case "static":
                if (Bundle.flag(bundle.config, "pieces", false)) { // a table that does not read segment ids
                    return new WordPieceFeatures(bundle, false);
                }
                return new WordFeatures(bundle);
            case "lm":
                if (bundle.readsWords || bundle.marks > 0) {
                    throw new IllegalArgumentException(
                            "the task " + bundle.task() + " over a language model is not supported here");
                }
                return new TokenFeatures(bundle);
            default:
                if (Bundle.number(bundle.config, "heads", 0) > 0) { // a Transformer encoder
                    boolean segments = Bundle.number(bundle.config, "segments", 1) > 1;
                    return new WordPieceFeatures(bundle, bundle.indicate && segments);
                }
                throw new IllegalArgumentException(
                        "family " + bundle.family + ": neither elmo, static, lm nor a Transformer encoder");
        }
    }

    /** The row of a query; what is longer than the model reads is cut off. */
    abstract Row encode(Query query);

    /** The rows of a query's single text in overlapping windows. */
    abstract List<Row> textWindows(Query query, int stride);

    /** The rows of a question, the query's text, with overlapping windows of its context, the query's pair. */
    abstract List<Row> windows(Query query, int stride);

    /** The tokens of a text without words. */
    abstract int empty();

    /** The inputs by name, padded to a length, without the batch axis; several axes one row behind the other. */
    abstract Map<String, int[]> inputs(Row row, int length);

    /** The inputs that are the same for all features. */
    static Map<String, int[]> inputs(Row row, int length, boolean withMarks) {
        Map<String, int[]> inputs = new LinkedHashMap<>();
        int[] mask = new int[length];
        Arrays.fill(mask, 0, row.size, 1);
        inputs.put("mask", mask);
        if (withMarks && row.marks != null) {
            int[] marks = new int[2 * row.marks.length];
            for (int i = 0; i < marks.length; i++) {
                marks[i] = row.marks[i / 2][i % 2];
            }
            inputs.put("marks", marks);
        }
        return inputs;
    }

    /** Where the windows of a text begin that together have all of its tokens. */
    static List<Integer> windowBegins(int size, int room, int stride) {
        int step = stride < room ? stride : Math.max(1, room / 2);
        List<Integer> begins = new ArrayList<>();
        for (int begin = 0; begin < Math.max(size - room, 0) + step; begin += step) {
            begins.add(begin);
        }
        return begins;
    }

    /** The first token that overlaps a span and the one after the last; 0, 0 if there is none. */
    static int[] covered(int[] begins, int[] ends, int size, int[] span) {
        int first = -1;
        int last = -1;
        for (int i = 0; i < size; i++) {
            if (begins[i] < span[1] && ends[i] > span[0]) {
                first = first < 0 ? i : first;
                last = i;
            }
        }
        return new int[] {Math.max(first, 0), last + 1};
    }

    /** The spans, or 0, 0 for each that is empty or does not end by {@code last}. */
    static int[][] within(int[][] spans, int last) {
        int[][] kept = new int[spans.length][2];
        for (int i = 0; i < spans.length; i++) {
            if (spans[i][0] < spans[i][1] && spans[i][1] <= last) {
                kept[i] = spans[i];
            }
        }
        return kept;
    }
}
