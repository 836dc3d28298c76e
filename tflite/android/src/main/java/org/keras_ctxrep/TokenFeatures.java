package org.keras_ctxrep;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The tokens of a language model, as {@code keras_ctxrep.text.units}: words, word pieces or characters as ids, and ids as
 * text. One mark, the end of a line, stands before each line. Models over a language model, or over embeddings of
 * characters, read them too.
 */
final class TokenFeatures extends Features {
    private static final List<String> MARKERS = Arrays.asList("<S>", "</S>", "<UNK>");

    final int end;
    final int[] never; // ids that are not generated
    final List<String> vocab;
    private final String units;
    private final Tokenizer pieces; // or null
    private final Subwords subwords; // a byte-level BPE, which has no marks, or null
    private final Map<String, Integer> ids = new HashMap<>();
    private final Splitter splitter = new Splitter(false, false, true);

    /**
     * @throws IllegalArgumentException its units are not known, or its vocabulary has no markers
     */
    TokenFeatures(Bundle bundle) {
        super(bundle.maxLength);
        units = String.valueOf(bundle.config.get("units"));
        subwords = bundle.subwords;
        vocab = new ArrayList<>(bundle.vocab);
        if (units.equals("pieces")) {
            pieces = Tokenizer.of(bundle);
            end = pieces.separator;
            never = subwords != null ? new int[0] : new int[] {pieces.pad, pieces.unknown, pieces.begin, pieces.mask};
            return;
        }
        if (!units.equals("words") && !units.equals("characters")) {
            throw new IllegalArgumentException("units " + units + ": words, pieces and characters are known");
        }
        vocab.remove("!!!MAXTERMID");
        if (vocab.size() < 3 || !vocab.subList(0, 3).equals(MARKERS)) {
            throw new IllegalArgumentException("vocabulary: it does not begin with " + MARKERS);
        }
        pieces = null;
        end = 1;
        never = new int[] {0, 2};
        for (int id = 0; id < vocab.size(); id++) {
            ids.put(vocab.get(id), id);
        }
    }

    /** Whether there are spaces between tokens. */
    boolean spaced() {
        return subwords == null && !units.equals("characters");
    }

    /** The ids of a text that is to be continued: a mark before each of its lines, and none at its end. */
    int[] prompt(String text) {
        Pieces tokens = read(text, Integer.MAX_VALUE);
        return Arrays.copyOf(tokens.ids, tokens.size);
    }

    /** The first {@code most} tokens of a text and at least one more, if it has more, with offsets, 0, 0 of a mark. */
    private Pieces read(String text, int most) {
        Pieces tokens = new Pieces(Math.min(text.length(), 1 << 12) + 2);
        if (subwords != null) {
            tokens = subwords.encode(text, most);
            if (tokens.size == 0) {
                tokens.add(end, 0, 0, 0);
            }
            return tokens;
        }
        for (int begin = 0, stop; begin <= text.length() && tokens.size <= most; begin = stop + 1) {
            stop = text.indexOf('\n', begin);
            stop = stop < 0 ? text.length() : stop;
            String line = text.substring(begin, stop);
            tokens.add(end, 0, 0, 0);
            if (pieces != null) {
                Pieces all = pieces.encode(line, most);
                for (int i = 0; i < all.size; i++) {
                    tokens.add(all.ids[i], begin + all.begins[i], begin + all.ends[i], 0);
                }
            } else if (units.equals("characters")) {
                for (int at = 0, next; at < line.length() && tokens.size <= most; at = next) {
                    next = at + Character.charCount(line.codePointAt(at));
                    tokens.add(id(line.substring(at, next)), begin + at, begin + next, 0);
                }
            } else {
                Splitter.Words words = splitter.split(line, most);
                for (int i = 0; i < words.count; i++) {
                    tokens.add(id(words.word(i)), begin + words.begin(i), begin + words.end(i), 0);
                }
            }
        }
        return tokens;
    }

    @Override
    Row encode(Query query) {
        Pieces tokens = read(string(query), maxLength);
        Row row = new Row();
        row.size = Math.min(tokens.size, maxLength);
        row.first = row.size;
        row.truncated = row.size < tokens.size;
        row.ids = Arrays.copyOf(tokens.ids, row.size);
        row.begins = Arrays.copyOf(tokens.begins, row.size);
        row.ends = Arrays.copyOf(tokens.ends, row.size);
        return row;
    }

    @Override
    List<Row> textWindows(Query query, int stride) {
        int[] tokens = prompt(string(query));
        int marks = subwords == null ? 1 : 0;
        List<Row> rows = new ArrayList<>();
        for (int begin : windowBegins(tokens.length - marks, maxLength - marks, stride)) {
            Row row = new Row();
            row.size = Math.min(maxLength, tokens.length - begin);
            row.first = row.size;
            row.ids = Arrays.copyOfRange(tokens, begin, begin + row.size);
            row.ids[0] = marks > 0 ? end : row.ids[0];
            rows.add(row);
        }
        return rows;
    }

    private static String string(Query query) {
        if (query.text == null) {
            throw new IllegalArgumentException("this model reads a text as one string");
        }
        return query.text;
    }

    @Override
    List<Row> windows(Query query, int stride) {
        throw new IllegalArgumentException("a language model reads one text, not a question and its context");
    }

    @Override
    int empty() {
        return subwords == null ? 1 : 0;
    }

    @Override
    Map<String, int[]> inputs(Row row, int length) {
        Map<String, int[]> inputs = inputs(row, length, false);
        inputs.put("token_ids", Arrays.copyOf(row.ids, length));
        return inputs;
    }

    private int id(String word) {
        Integer id = ids.get(word);
        return id == null ? 2 : id;
    }

    /** What a token adds to a text whose last token is {@code before}. */
    private String string(int token, int before) {
        if (token == end) {
            return "\n";
        }
        String word = vocab.get(token);
        if (pieces != null && word.startsWith("##")) {
            return word.substring(2);
        }
        return !spaced() || before == end ? word : " " + word;
    }

    /** The text of tokens, one after the other. */
    final class Writer {
        private final CharsetDecoder decoder = StandardCharsets.UTF_8
                .newDecoder()
                .onMalformedInput(CodingErrorAction.REPLACE)
                .onUnmappableCharacter(CodingErrorAction.REPLACE);
        private int before;
        private byte[] rest = new byte[0]; // the first bytes of a letter, whose others are to come

        Writer(int before) {
            this.before = before;
        }

        /** What the next token adds to the text. */
        String next(int token) {
            if (subwords == null) {
                String text = string(token, before);
                before = token;
                return text;
            }
            if (token == end) {
                return "";
            }
            byte[] own = subwords.bytes(token);
            ByteBuffer bytes = ByteBuffer.allocate(rest.length + own.length);
            bytes.put(rest).put(own).flip();
            CharBuffer text = CharBuffer.allocate(bytes.remaining() + 1);
            decoder.decode(bytes, text, false);
            rest = new byte[bytes.remaining()];
            bytes.get(rest);
            text.flip();
            return text.toString();
        }
    }
}
