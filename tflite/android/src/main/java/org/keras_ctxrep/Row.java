package org.keras_ctxrep;

import java.util.Arrays;
import java.util.List;

/** One input of a model, before padding: a text, a pair of texts, or a window of a long text. */
final class Row {
    int size; // tokens
    int[] ids; // of word pieces, with [CLS] and [SEP]
    List<String> tokens; // of models that read words
    boolean truncated;
    int first; // length of the first segment of word pieces, [CLS] and [SEP] included
    int[] starts; // each word's first token, -1 where the word was cut off or has none; or null
    int[] begins; // of each token in its text, in UTF-16 units; 0 for [CLS] and [SEP]
    int[] ends;
    int[] wordBegins; // of each word in the text, or null; of a window, of the word that each token is of
    int[] wordEnds;
    int[][] marks; // the first token of each marked span and the one after its last; 0, 0 where it was cut off

    /** Whether it has the tokens of another row; false of none. */
    boolean equalTokens(Row other) {
        return other != null
                && Arrays.equals(ids, other.ids)
                && (tokens == null ? other.tokens == null : tokens.equals(other.tokens));
    }
}
