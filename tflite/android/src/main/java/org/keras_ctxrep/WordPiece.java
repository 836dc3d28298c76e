package org.keras_ctxrep;

import java.util.HashSet;
import java.util.List;
import java.util.Map;

/**
 * BERT's WordPiece tokenizer: each word is cut into the longest pieces of a vocabulary, from its begin on.
 *
 * <p>Devlin et al. 2018, https://arxiv.org/abs/1810.04805.
 */
final class WordPiece extends Tokenizer {
    private static final int MAX_WORD = 100; // characters; a longer word is [UNK]
    private static final String INSIDE = "##";

    private final Splitter splitter;
    private final PieceTable table;

    /**
     * @param vocab the pieces in the order of their ids
     * @param splitter splits text into words
     * @param special the names of special pieces, and "separators"; those of BERT are not there
     * @throws IllegalArgumentException a special piece is missing, or a piece occurs twice
     */
    WordPiece(List<String> vocab, Splitter splitter, Map<String, Object> special) {
        super(vocab, special);
        this.splitter = splitter;
        if (new HashSet<>(vocab).size() < vocab.size()) {
            throw new IllegalArgumentException("vocabulary: a piece occurs twice; the pieces must be distinct");
        }
        table = new PieceTable(vocab.toArray(new String[0]));
    }

    @Override
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
            String lead = from == first ? "" : INSIDE;
            int most = Math.min(last - from, table.longest - lead.length());
            prefixes[0] = PieceTable.hash(0, lead.toCharArray(), 0, lead.length());
            for (int size = 1; size <= most; size++) {
                prefixes[size] = PieceTable.hash(prefixes[size - 1], words.units, from + size - 1, from + size);
            }
            int id = -1;
            int size = most;
            for (; size > 0; size--) {
                id = table.find(prefixes[size], lead, words.units, from, from + size);
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
}
