package org.keras_ctxrep;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The inputs of models that read words: ELMo's character ids, and the ids of words in a vocabulary. */
final class WordFeatures extends Features {
    private static final int BEGIN_SENTENCE = 257;
    private static final int END_SENTENCE = 258;
    private static final int BEGIN_WORD = 259;
    private static final int END_WORD = 260;
    private static final int PADDING = 261;

    private final Splitter splitter = new Splitter(false, false, true);
    private final int width; // characters per word, 0 if none are read
    private final Map<String, Integer> ids; // of words, or null
    private final int unknown;
    private final boolean lowercase;

    WordFeatures(Bundle bundle) {
        super(bundle.maxLength);
        boolean elmo = bundle.family.equals("elmo");
        boolean wordIds = elmo && Bundle.number(bundle.config, "words", 0) > 0;
        boolean extra = elmo && !wordIds && !bundle.extraEmbeddings.isEmpty();
        Map<String, Object> table = extra ? bundle.extraEmbeddings : bundle.config;
        if (!(elmo && !extra) && Bundle.number(table, "buckets", 0) > 0) {
            throw new IllegalArgumentException("word vectors with character n-grams are not supported here");
        }
        width = elmo && !wordIds ? Bundle.number(bundle.config, "max_characters", 50) : 0;
        lowercase = !(elmo && !extra) && Bundle.flag(table, "lowercase", false);
        unknown = wordIds ? 3 : 1; // the line of <UNK>
        ids = elmo && !wordIds && !extra ? null : new HashMap<>();
        for (int line = 0; ids != null && line < bundle.vocab.size(); line++) {
            ids.put(bundle.vocab.get(line), line + 1);
        }
    }

    @Override
    Row encode(Query query) {
        Row row = new Row();
        int count;
        if (query.text == null) {
            count = query.words.size();
            row.tokens = query.words.subList(0, Math.min(count, maxLength));
            row.begins = new int[row.tokens.size()];
            row.ends = new int[row.tokens.size()];
            for (int i = 0; i < row.ends.length; i++) {
                row.ends[i] = row.tokens.get(i).length();
            }
            row.marks = query.marks;
        } else {
            Splitter.Words words = splitter.split(query.text, maxLength);
            count = words.count;
            int[] begins = new int[count];
            int[] ends = new int[count];
            row.tokens = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                begins[i] = words.begin(i);
                ends[i] = words.end(i);
                if (i < maxLength) {
                    row.tokens.add(words.word(i));
                }
            }
            row.begins = Arrays.copyOf(begins, row.tokens.size());
            row.ends = Arrays.copyOf(ends, row.tokens.size());
            if (query.marks != null) {
                row.marks = new int[query.marks.length][];
                for (int i = 0; i < row.marks.length; i++) {
                    row.marks[i] = covered(begins, ends, count, query.marks[i]);
                }
            }
        }
        row.size = row.tokens.size();
        row.truncated = row.size < count;
        row.wordBegins = row.begins;
        row.wordEnds = row.ends;
        row.starts = new int[count];
        for (int i = 0; i < count; i++) {
            row.starts[i] = i < row.size ? i : -1;
        }
        row.marks = row.marks == null ? null : within(row.marks, row.size);
        return row;
    }

    @Override
    List<Row> textWindows(Query query, int stride) {
        List<String> tokens = query.words;
        if (tokens == null) {
            Splitter.Words words = splitter.split(query.text);
            tokens = new ArrayList<>();
            for (int i = 0; i < words.count; i++) {
                tokens.add(words.word(i));
            }
        }
        List<Row> rows = new ArrayList<>();
        for (int begin : windowBegins(tokens.size(), maxLength, stride)) {
            Row row = new Row();
            row.tokens = tokens.subList(begin, Math.min(begin + maxLength, tokens.size()));
            row.size = row.tokens.size();
            rows.add(row);
        }
        return rows;
    }

    @Override
    List<Row> windows(Query query, int stride) {
        throw new IllegalArgumentException("a model of words reads one text, not a question and its context");
    }

    @Override
    int empty() {
        return 0;
    }

    @Override
    Map<String, int[]> inputs(Row row, int length) {
        Map<String, int[]> inputs = inputs(row, length, true);
        if (width > 0) {
            int[] characters = new int[length * width];
            for (int i = 0; i < row.size; i++) {
                fill(characters, i * width, row.tokens.get(i));
            }
            inputs.put("char_ids", characters);
        }
        if (ids != null) {
            int[] words = new int[length];
            for (int i = 0; i < row.size; i++) {
                String word = row.tokens.get(i);
                Integer id = ids.get(lowercase ? Characters.lower(word) : word);
                words[i] = id == null ? unknown : id;
            }
            inputs.put("word_ids", words);
        }
        return inputs;
    }

    /** Writes the character ids of a word: of the bytes of its UTF-8, or of the marker that it is. */
    private void fill(int[] characters, int begin, String word) {
        int end = begin;
        characters[end++] = BEGIN_WORD;
        if (word.equals("<S>") || word.equals("</S>")) {
            characters[end++] = word.equals("<S>") ? BEGIN_SENTENCE : END_SENTENCE;
        } else {
            byte[] bytes = word.getBytes(StandardCharsets.UTF_8);
            for (int i = 0; i < Math.min(bytes.length, width - 2); i++) {
                characters[end++] = (bytes[i] & 0xFF) + 1;
            }
        }
        characters[end++] = END_WORD;
        Arrays.fill(characters, end, begin + width, PADDING);
    }
}
