package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/**
 * BERT's inputs: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP], whose special pieces and number of [SEP] between the
 * texts a bundle may name.
 *
 * <p>If this is too long, the longer of text and pair is truncated at its end, piece by piece; if both are and the room
 * is odd, the longer one gets the odd piece, or the pair if both are equal.
 */
final class WordPieceFeatures extends Features {
    private final Tokenizer tokenizer;
    private final boolean withStarts;
    private final boolean indicate;
    private final boolean pairs;

    WordPieceFeatures(Bundle bundle, boolean indicate) {
        super(bundle.maxLength);
        if (maxLength < 4) {
            throw new IllegalArgumentException("max_length " + maxLength + ": at least 4 are needed");
        }
        tokenizer = Tokenizer.of(bundle);
        withStarts = bundle.readsWords;
        this.indicate = indicate;
        pairs = bundle.readsPair;
    }

    @Override
    Row encode(Query query) {
        Pieces first;
        int[] starts = null;
        Row row = new Row();
        if (query.text == null) {
            first = new Pieces(2 * query.words.size() + 2);
            starts = new int[query.words.size()];
            for (int i = 0; i < starts.length; i++) {
                Pieces word = tokenizer.encodeWord(query.words.get(i));
                starts[i] = word.size > 0 ? 1 + first.size : -1;
                first.addAll(word, 0, word.size);
            }
        } else {
            first = tokenizer.encode(query.text, maxLength);
            if (withStarts) {
                starts = words(first, row);
            }
        }
        Pieces second = query.pair == null ? null : tokenizer.encode(query.pair, maxLength);
        if (second != null && Math.min(first.size, second.size) > maxLength) { // the longer one may have a piece more
            first = query.text == null ? first : tokenizer.encode(query.text);
            second = tokenizer.encode(query.pair);
            starts = query.text != null && withStarts ? words(first, row) : starts;
        }
        int[][] marks = query.marks == null ? null : positions(query, first, starts);
        int[] kept = truncated(first.size, second == null ? -1 : second.size, maxLength - markers(second != null));
        Pieces pieces = new Pieces(maxLength);
        add(pieces, first, 0, kept[0], true, second != null);
        row.first = pieces.size;
        row.truncated = kept[0] < first.size;
        if (second != null) {
            add(pieces, second, 0, kept[1], false, true);
            row.truncated |= kept[1] < second.size;
        }
        take(row, pieces);
        for (int i = 0; starts != null && i < starts.length; i++) {
            starts[i] = starts[i] <= kept[0] ? starts[i] : -1;
        }
        row.starts = starts;
        row.marks = marks == null ? null : within(marks, kept[0] + 1);
        return row;
    }

    /** The positions of the words' first pieces behind [CLS]; the row takes the words' spans. */
    private static int[] words(Pieces pieces, Row row) {
        int[] starts = new int[pieces.size];
        int[] begins = new int[pieces.size];
        int[] ends = new int[pieces.size];
        int count = 0;
        for (int first = 0, end; first < pieces.size; first = end) {
            end = first + 1;
            while (end < pieces.size && pieces.words[end] == pieces.words[first]) {
                end++;
            }
            if (pieces.begins[first] < pieces.ends[end - 1]) { // not of white space
                starts[count] = 1 + first;
                begins[count] = pieces.begins[first];
                ends[count++] = pieces.ends[end - 1];
            }
        }
        row.wordBegins = Arrays.copyOf(begins, count);
        row.wordEnds = Arrays.copyOf(ends, count);
        return Arrays.copyOf(starts, count);
    }

    /** The positions of the marked spans' pieces. */
    private static int[][] positions(Query query, Pieces pieces, int[] starts) {
        int[][] marks = new int[query.marks.length][];
        int[] begins = null;
        if (query.text == null) { // a word without pieces begins where the next word does
            begins = Arrays.copyOf(starts, starts.length + 1);
            begins[starts.length] = 1 + pieces.size;
            for (int i = starts.length - 1; i >= 0; i--) {
                begins[i] = begins[i] < 0 ? begins[i + 1] : begins[i];
            }
        }
        for (int i = 0; i < marks.length; i++) {
            int[] span = query.marks[i];
            if (begins == null) {
                int[] inside = covered(pieces.begins, pieces.ends, pieces.size, span);
                marks[i] = new int[] {1 + inside[0], 1 + inside[1]};
            } else {
                marks[i] = new int[] {begins[span[0]], begins[span[1]]};
            }
        }
        return marks;
    }

    /** How much of two texts is kept; a second one of -1 pieces does not exist. */
    private static int[] truncated(int first, int second, int room) {
        if (second < 0 || first + second <= room) {
            return new int[] {Math.min(first, room), second};
        }
        int shorter = Math.min(Math.min(first, second), room / 2);
        int kept = first <= second ? shorter : room - shorter;
        return new int[] {kept, Math.min(second, room - kept)};
    }

    @Override
    List<Row> textWindows(Query query, int stride) {
        Pieces all = new Pieces(16);
        for (String part : query.text == null ? query.words : Collections.singletonList(query.text)) {
            Pieces pieces = query.text == null ? tokenizer.encodeWord(part) : tokenizer.encode(part);
            all.addAll(pieces, 0, pieces.size);
        }
        List<Row> rows = new ArrayList<>();
        for (int begin : windowBegins(all.size, maxLength - 2, stride)) {
            Pieces pieces = new Pieces(maxLength);
            add(pieces, all, begin, Math.min(begin + maxLength - 2, all.size), true, false);
            Row row = new Row();
            row.first = pieces.size;
            take(row, pieces);
            rows.add(row);
        }
        return rows;
    }

    @Override
    List<Row> windows(Query query, int stride) {
        Pieces question = tokenizer.encode(query.text, maxLength);
        Pieces context = tokenizer.encode(query.pair);
        int asked = Math.min(question.size, Math.min(64, (maxLength - markers(true)) / 2));
        int room = maxLength - asked - markers(true);
        List<Row> rows = new ArrayList<>();
        for (int begin : windowBegins(context.size, room, stride)) {
            Pieces pieces = new Pieces(maxLength);
            add(pieces, question, 0, asked, true, true);
            Row row = new Row();
            row.first = pieces.size;
            row.truncated = asked < question.size;
            add(pieces, context, begin, Math.min(begin + room, context.size), false, true);
            take(row, pieces);
            row.wordBegins = new int[row.size];
            row.wordEnds = new int[row.size];
            for (int i = row.first; i < row.size - 1; i++) {
                int first = begin + i - row.first;
                int last = first;
                while (first > 0 && context.words[first - 1] == context.words[first]) {
                    first--;
                }
                while (last + 1 < context.size && context.words[last + 1] == context.words[last]) {
                    last++;
                }
                row.wordBegins[i] = context.begins[first];
                row.wordEnds[i] = context.ends[last];
            }
            rows.add(row);
        }
        return rows;
    }

    @Override
    int empty() {
        return markers(pairs);
    }

    @Override
    Map<String, int[]> inputs(Row row, int length) {
        Map<String, int[]> inputs = inputs(row, length, !indicate);
        int[] ids = Arrays.copyOf(row.ids, length);
        Arrays.fill(ids, row.size, length, tokenizer.pad);
        int[] segments = new int[length];
        Arrays.fill(segments, Math.min(row.first, row.size), row.size, tokenizer.separators == 1 ? 1 : 0);
        if (indicate && row.marks != null) {
            for (int[] span : row.marks) {
                Arrays.fill(segments, span[0], span[1], 1);
            }
        }
        inputs.put("token_ids", ids);
        inputs.put("segment_ids", segments);
        if (withStarts) {
            int[] starts = new int[length];
            int count = 0;
            for (int start : row.starts) {
                if (start >= 0) {
                    starts[count++] = start;
                }
            }
            inputs.put("starts", starts);
        }
        return inputs;
    }

    /** The special pieces of a row. */
    private int markers(boolean pair) {
        return pair ? 2 + tokenizer.separators : 2;
    }

    /** Adds pieces {@code from} to {@code to} and [SEP], the first ones behind [CLS]. */
    private void add(Pieces pieces, Pieces text, int from, int to, boolean first, boolean pair) {
        if (first) {
            pieces.add(tokenizer.begin, 0, 0, 0);
        }
        pieces.addAll(text, from, to);
        for (int i = first && pair ? tokenizer.separators : 1; i > 0; i--) {
            pieces.add(tokenizer.separator, 0, 0, 0);
        }
    }

    private static void take(Row row, Pieces pieces) {
        row.size = pieces.size;
        row.ids = Arrays.copyOf(pieces.ids, pieces.size);
        row.begins = Arrays.copyOf(pieces.begins, pieces.size);
        row.ends = Arrays.copyOf(pieces.ends, pieces.size);
    }
}
