package org.keras_ctxrep;

import java.util.List;
import java.util.Map;

/** Cuts texts into pieces of a vocabulary; its special pieces, such as "[SEP]", are never recognised in text. */
abstract class Tokenizer {
    final int pad;
    final int unknown;
    final int begin;
    final int separator;
    final int mask;
    final int separators; // between the texts of a pair

    /**
     * @param vocab the pieces in the order of their ids
     * @param special the names of special pieces, and "separators"; those of BERT are not there
     * @throws IllegalArgumentException a special piece is missing
     */
    Tokenizer(List<String> vocab, Map<String, Object> special) {
        pad = special(vocab, special, "pad", "[PAD]");
        unknown = special(vocab, special, "unk", "[UNK]");
        begin = special(vocab, special, "cls", "[CLS]");
        separator = special(vocab, special, "sep", "[SEP]");
        mask = special(vocab, special, "mask", "[MASK]");
        separators = Bundle.number(special, "separators", 1);
    }

    private static int special(List<String> vocab, Map<String, Object> names, String name, String otherwise) {
        String piece = names.containsKey(name) ? (String) names.get(name) : otherwise;
        int id = vocab.indexOf(piece);
        if (id < 0) {
            throw new IllegalArgumentException("vocabulary: " + piece + " is missing, a special piece");
        }
        return id;
    }

    /** The tokenizer of tokenizer.json, or the one of vocab.txt. */
    static Tokenizer of(Bundle bundle) {
        if (bundle.subwords != null) {
            return bundle.subwords;
        }
        Splitter splitter = new Splitter(bundle.lowercase, bundle.stripAccents, bundle.splitCjk);
        return new WordPiece(bundle.vocab, splitter, bundle.specialTokens);
    }

    /** The first {@code most} pieces of a text and at least one more, if it has more. */
    abstract Pieces encode(String text, int most);

    /** The pieces of a text, without [CLS] and [SEP]. */
    Pieces encode(String text) {
        return encode(text, Integer.MAX_VALUE);
    }

    /** The pieces of a word of a text that comes split. */
    Pieces encodeWord(String word) {
        return encode(word);
    }
}
