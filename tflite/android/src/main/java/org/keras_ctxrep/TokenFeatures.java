package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The tokens of a language model, as {@code keras_ctxrep.text.units}: words, word pieces or characters as ids, and ids as
 * text. One mark, the end of a line, stands before each line.
 */
final class TokenFeatures {
    private static final List<String> MARKERS = Arrays.asList("<S>", "</S>", "<UNK>");

    final int end;
    final int[] never; // ids that are not generated
    final List<String> vocab;
    private final String units;
    private final WordPiece pieces; // or null
    private final Map<String, Integer> ids = new HashMap<>();
    private final Splitter splitter = new Splitter(false, false, true);

    /**
     * @throws IllegalArgumentException the bundle is not of a language model in one direction, or its vocabulary has no
     *     markers
     */
    TokenFeatures(Bundle bundle) {
        if (!bundle.task().equals("causal_language_model")) {
            throw new IllegalArgumentException(
                    "this model's task is " + bundle.task() + ", not that of a language model in one direction");
        }
        units = String.valueOf(bundle.config.get("units"));
        vocab = new ArrayList<>(bundle.vocab);
        if (units.equals("pieces")) {
            pieces = new WordPiece(vocab, new Splitter(bundle.lowercase, bundle.stripAccents, bundle.splitCjk));
            end = pieces.separator;
            never = new int[] {pieces.pad, pieces.unknown, pieces.begin, pieces.mask};
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

    /** Whether tokens are characters, which have no spaces between them. */
    boolean characters() {
        return units.equals("characters");
    }

    /** The ids of a text that is to be continued: a mark before each of its lines, and none at its end. */
    int[] prompt(String text) {
        int[] tokens = new int[2 * text.length() + 1]; // a character is at most a token, and a line has a mark more
        int size = 0;
        for (String line : text.split("\n", -1)) {
            tokens[size++] = end;
            for (int id : line(line)) {
                tokens = size == tokens.length ? Arrays.copyOf(tokens, 2 * size) : tokens;
                tokens[size++] = id;
            }
            tokens = size == tokens.length ? Arrays.copyOf(tokens, 2 * size) : tokens;
        }
        return Arrays.copyOf(tokens, size);
    }

    private int[] line(String line) {
        if (pieces != null) {
            WordPiece.Pieces all = pieces.encode(line);
            return Arrays.copyOf(all.ids, all.size);
        }
        if (characters()) {
            int[] tokens = new int[line.codePointCount(0, line.length())];
            for (int i = 0, at = 0; i < tokens.length; i++) {
                String letter = new String(Character.toChars(line.codePointAt(at)));
                tokens[i] = id(letter);
                at += letter.length();
            }
            return tokens;
        }
        Splitter.Words words = splitter.split(line);
        int[] tokens = new int[words.count];
        for (int i = 0; i < tokens.length; i++) {
            tokens[i] = id(words.word(i));
        }
        return tokens;
    }

    private int id(String word) {
        Integer id = ids.get(word);
        return id == null ? 2 : id;
    }

    /** What a token adds to a text whose last token is {@code before}. */
    String string(int token, int before) {
        if (token == end) {
            return "\n";
        }
        String word = vocab.get(token);
        if (pieces != null && word.startsWith("##")) {
            return word.substring(2);
        }
        return characters() || before == end ? word : " " + word;
    }
}
