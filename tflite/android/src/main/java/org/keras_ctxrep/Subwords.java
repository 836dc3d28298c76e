package org.keras_ctxrep;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A tokenizer of subwords, see {@code keras_ctxrep.text.subwords}: SentencePiece's unigram model, or byte-level BPE.
 *
 * <p>A text is normalised and split into words, which are cut into pieces. No text makes an added token, and the spans of
 * pieces have no white space at their ends.
 */
final class Subwords extends Tokenizer {
    private static final int CACHED = 10_000; // words
    private static final int CACHED_LENGTH = 256; // letters of the longest of them
    private static final String[] CONTRACTIONS = {"s", "t", "re", "ve", "m", "ll", "d"};

    final List<String> pieces;
    private final Normalizers.Step normalizer;
    private final boolean whitespace; // whether a text is split at white space first
    private final String prefix; // when a word begins with a space, or null of a BPE
    private final boolean prefixed; // the same of a BPE
    private final Model model;
    private final Map<String, int[]> cache = new ConcurrentHashMap<>(); // ids and numbers of letters, in turn

    /** Cuts words into pieces. */
    private interface Model {
        /** The id of each piece of a word and the number of its letters; 0 if they are those of the piece before. */
        int[] parts(int[] codes, int size);
    }

    private Subwords(List<String> pieces, Map<String, Object> special, Map<String, Object> fields) {
        super(pieces, special);
        this.pieces = pieces;
        normalizer = Normalizers.of(Bundle.object(fields.get("normalizer")));
        Map<String, Object> splitter = Bundle.object(fields.get("pre_tokenizer"));
        whitespace = "Sequence".equals(splitter.get("type"));
        if (whitespace) { // at white space, and as the second one
            splitter = Bundle.object(((List<?>) splitter.get("pretokenizers")).get(1));
        }
        prefix = (String) splitter.get("prepend_scheme");
        prefixed = Bundle.flag(splitter, "add_prefix_space", false);
        Map<String, Object> entries = Bundle.object(fields.get("model"));
        if (!entries.get("type").equals("Unigram")) {
            model = new Pairs(pieces, (List<?>) entries.get("merges"));
            return;
        }
        Set<Integer> hidden = new HashSet<>();
        for (Object added : (List<?>) fields.get("added_tokens")) {
            hidden.add(Bundle.number(Bundle.object(added), "id", 0));
        }
        model = new Unigram(pieces, hidden, entries);
    }

    /**
     * The tokenizer of a file tokenizer.json.
     *
     * @param fields its contents
     * @param special the names of special pieces, see {@link Tokenizer}
     * @throws IllegalArgumentException a special piece is missing, or a part of it is not supported
     */
    static Subwords of(Map<String, Object> fields, Map<String, Object> special) {
        Object vocab = Bundle.object(fields.get("model")).get("vocab");
        List<String> pieces = new ArrayList<>();
        if (vocab instanceof Map) {
            pieces.addAll(Collections.nCopies(((Map<?, ?>) vocab).size(), ""));
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) vocab).entrySet()) {
                pieces.set(((Number) entry.getValue()).intValue(), (String) entry.getKey());
            }
        } else {
            for (Object entry : (List<?>) vocab) {
                pieces.add((String) ((List<?>) entry).get(0));
            }
        }
        return new Subwords(pieces, special, fields);
    }

    /** The bytes that a piece of a byte-level BPE stands for. */
    byte[] bytes(int id) {
        return ((Pairs) model).bytes(pieces.get(id));
    }

    @Override
    Pieces encode(String text, int most) {
        for (long size = Math.max(4096, 64L * most); size < text.length(); size *= 4) {
            int end = (int) size - (Character.isHighSurrogate(text.charAt((int) size - 1)) ? 1 : 0);
            Pieces pieces = encode(text.substring(0, end), false);
            int whole = pieces.size;
            while (whole > 0 && pieces.words[whole - 1] == pieces.words[pieces.size - 1]) {
                whole--;
            }
            if (whole > most) { // the last word may go on
                return pieces;
            }
        }
        return encode(text, false);
    }

    @Override
    Pieces encodeWord(String word) {
        return encode(word, true);
    }

    private Pieces encode(String text, boolean word) {
        Pieces pieces = new Pieces(text.length() / 2 + 4);
        int number = 0;
        for (Letters letters : words(normalizer.of(Letters.of(text)), word)) {
            int[] parts = parts(letters);
            int begin = 0;
            int end = 0;
            for (int i = 0; i < parts.length; i += 2) {
                if (parts[i + 1] > 0) {
                    begin = end;
                    end += parts[i + 1];
                }
                int from = letters.begins[begin];
                int to = letters.ends[end - 1];
                while (from < to && Characters.isSpace(text.charAt(from))) {
                    from++;
                }
                while (from < to && Characters.isSpace(text.charAt(to - 1))) {
                    to--;
                }
                pieces.add(parts[i], from, to, number);
            }
            number++;
        }
        return pieces;
    }

    private int[] parts(Letters word) {
        if (word.size > CACHED_LENGTH) {
            return model.parts(word.codes, word.size);
        }
        String key = new String(word.codes, 0, word.size);
        int[] parts = cache.get(key);
        if (parts == null) {
            parts = model.parts(word.codes, word.size);
            if (cache.size() >= CACHED) {
                cache.clear();
            }
            cache.put(key, parts);
        }
        return parts;
    }

    /** The words of a text, or of one that is a word of a text that comes split. */
    private List<Letters> words(Letters text, boolean word) {
        if (prefix == null) {
            return contracted(word || prefixed ? text.prefixed(' ') : text);
        }
        if (!whitespace) {
            return marked(text, word);
        }
        List<Letters> words = new ArrayList<>();
        for (Letters part : text.cutBefore(Characters::isSpace)) {
            words.addAll(marked(Characters.isSpace(part.codes[0]) ? part.part(1, part.size) : part, word));
        }
        return words;
    }

    /** The words of a text, each of which begins with what stands for a space, but the first of some. */
    private List<Letters> marked(Letters text, boolean word) {
        Letters marked = text.part(0, text.size);
        for (int i = 0; i < text.size; i++) {
            marked.codes[i] = text.codes[i] == ' ' ? Unigram.SPACE : text.codes[i];
        }
        boolean begins = text.size > 0 && text.begins[0] == 0;
        boolean space = word || prefix.equals("always") || prefix.equals("first") && begins;
        return (space ? marked.prefixed(Unigram.SPACE) : marked).cutBefore(code -> code == Unigram.SPACE);
    }

    /** The words of GPT-2's rule, as bytes. */
    private static List<Letters> contracted(Letters text) {
        List<Letters> words = new ArrayList<>();
        for (int begin = 0, end; begin < text.size; begin = end) {
            int first = begin + (text.codes[begin] == ' ' && begin + 1 < text.size && kind(text.codes[begin + 1]) > 0 ? 1 : 0);
            int kind = kind(text.codes[first]);
            end = first;
            while (end < text.size && kind(text.codes[end]) == kind) {
                end++;
            }
            int contraction = text.codes[begin] == '\'' ? contraction(text, begin + 1) : 0;
            if (contraction > 0) {
                end = begin + 1 + contraction;
            } else if (kind == 0 && end < text.size && end > begin + 1) {
                end--; // the last space may be of the next word
            }
            Letters bytes = new Letters(2 * (end - begin));
            for (int i = begin; i < end; i++) {
                String letter = new String(text.codes, i, 1);
                for (byte value : letter.getBytes(StandardCharsets.UTF_8)) {
                    bytes.add(value & 0xFF, text, i);
                }
            }
            words.add(bytes);
        }
        return words;
    }

    /** 0 of white space, and other numbers of letters, numbers and other characters. */
    private static int kind(int code) {
        if (Characters.isSpace(code)) {
            return 0;
        }
        int kind = Characters.flags(code) & (Characters.LETTER | Characters.NUMBER);
        return kind == 0 ? 1 : kind;
    }

    private static int contraction(Letters text, int begin) {
        String behind = new String(text.codes, begin, Math.min(2, text.size - begin));
        for (String letters : CONTRACTIONS) {
            if (behind.startsWith(letters)) {
                return letters.length();
            }
        }
        return 0;
    }

    /** Kudo 2018, https://arxiv.org/abs/1804.10959: the pieces with the highest sum of scores. */
    private static final class Unigram implements Model {
        static final int SPACE = '\u2581'; // stands for a space
        private static final double PENALTY = 10; // by which an unknown letter is below the lowest score

        private final PieceTable table;
        private final double[] scores;
        private final int unknown;
        private final double lowest;
        private final int[] bytes = new int[256]; // the pieces that stand for bytes, -1 where there is none

        Unigram(List<String> pieces, Set<Integer> hidden, Map<String, Object> model) {
            String[] read = pieces.toArray(new String[0]);
            for (int id : hidden) {
                read[id] = null;
            }
            table = new PieceTable(read);
            scores = new double[read.length];
            List<?> vocab = (List<?>) model.get("vocab");
            double least = Double.POSITIVE_INFINITY;
            for (int id = 0; id < scores.length; id++) {
                scores[id] = ((Number) ((List<?>) vocab.get(id)).get(1)).doubleValue();
                least = Math.min(least, scores[id]);
            }
            lowest = least;
            unknown = ((Number) model.get("unk_id")).intValue();
            for (int value = 0; value < 256; value++) {
                boolean fallback = Bundle.flag(model, "byte_fallback", false);
                bytes[value] = fallback ? find(String.format("<0x%02X>", value).toCharArray()) : -1;
            }
        }

        private int find(char[] units) {
            return table.find(PieceTable.hash(0, units, 0, units.length), "", units, 0, units.length);
        }

        @Override
        public int[] parts(int[] codes, int size) {
            char[] units = new String(codes, 0, size).toCharArray();
            int[] places = new int[size + 1]; // of each letter in the units
            for (int i = 0; i < size; i++) {
                places[i + 1] = places[i] + Character.charCount(codes[i]);
            }
            double[] sums = new double[size + 1];
            int[] begins = new int[size + 1];
            int[] best = new int[size + 1];
            Arrays.fill(begins, -1);
            for (int begin = 0; begin < size; begin++) {
                int hash = 0;
                boolean single = false;
                for (int end = begin + 1; end <= size && places[end] - places[begin] <= table.longest; end++) {
                    hash = PieceTable.hash(hash, units, places[end - 1], places[end]);
                    int id = table.find(hash, "", units, places[begin], places[end]);
                    single |= id >= 0 && end == begin + 1;
                    if (id >= 0 && (begins[end] < 0 || scores[id] + sums[begin] > sums[end])) {
                        sums[end] = scores[id] + sums[begin];
                        begins[end] = begin;
                        best[end] = id;
                    }
                }
                double sum = lowest - PENALTY + sums[begin];
                if (!single && (begins[begin + 1] < 0 || sum > sums[begin + 1])) {
                    sums[begin + 1] = sum;
                    begins[begin + 1] = begin;
                    best[begin + 1] = unknown;
                }
            }
            Pieces parts = new Pieces(size); // from the last to the first
            for (int end = size, begin; end > 0; end = begin) {
                begin = begins[end];
                while (best[end] == unknown && begin > 0 && best[begin] == unknown) {
                    begin = begins[begin];
                }
                if (best[end] != unknown) {
                    parts.add(best[end], 0, end - begin, 0);
                } else {
                    unread(Arrays.copyOfRange(units, places[begin], places[end]), end - begin, parts);
                }
            }
            int[] result = new int[2 * parts.size];
            for (int i = 0; i < parts.size; i++) {
                result[2 * i] = parts.ids[parts.size - 1 - i];
                result[2 * i + 1] = parts.ends[parts.size - 1 - i];
            }
            return result;
        }

        /** Adds the piece that letters without pieces are together, or those of their bytes, or the unknown one. */
        private void unread(char[] units, int size, Pieces parts) {
            int id = find(units);
            byte[] encoded = new String(units).getBytes(StandardCharsets.UTF_8);
            boolean fallback = id < 0;
            for (byte value : encoded) {
                fallback &= bytes[value & 0xFF] >= 0;
            }
            if (!fallback) {
                parts.add(id < 0 ? unknown : id, 0, size, 0);
                return;
            }
            for (int i = encoded.length - 1; i >= 0; i--) {
                parts.add(bytes[encoded[i] & 0xFF], 0, i == 0 ? size : 0, 0);
            }
        }
    }

    /**
     * Sennrich et al. 2016, https://arxiv.org/abs/1508.07909: the pair of the lowest rank is merged, until there is none.
     */
    private static final class Pairs implements Model {
        private final String letters; // that stand for bytes
        private final int[] bytes = new int[256]; // the piece of each byte
        private final Map<Long, Integer> ranks = new HashMap<>();
        private final int[] made;

        Pairs(List<String> pieces, List<?> merges) {
            Map<String, Integer> ids = new HashMap<>();
            for (int id = 0; id < pieces.size(); id++) {
                ids.put(pieces.get(id), id);
            }
            StringBuilder written = new StringBuilder();
            char next = 0x100; // what is not printed is written as the letters from here on
            for (int value = 0; value < 256; value++) {
                boolean printed = value > 0x20 && value < 0x7F || value > 0xA0 && value != 0xAD;
                written.append(printed ? (char) value : next++);
                bytes[value] = ids.get(written.substring(value));
            }
            letters = written.toString();
            made = new int[merges.size()];
            for (int rank = 0; rank < made.length; rank++) {
                String first = (String) ((List<?>) merges.get(rank)).get(0);
                String second = (String) ((List<?>) merges.get(rank)).get(1);
                ranks.put(key(ids.get(first), ids.get(second)), rank);
                made[rank] = ids.get(first + second);
            }
        }

        byte[] bytes(String piece) {
            byte[] values = new byte[piece.length()];
            for (int i = 0; i < values.length; i++) {
                values[i] = (byte) letters.indexOf(piece.charAt(i));
            }
            return values;
        }

        private static long key(int first, int second) {
            return (long) first << 32 | second;
        }

        @Override
        public int[] parts(int[] codes, int size) {
            int[] own = new int[size];
            int[] ends = new int[size];
            int[] befores = new int[size];
            PriorityQueue<Long> waiting = new PriorityQueue<>();
            for (int i = 0; i < size; i++) {
                own[i] = bytes[codes[i]];
                ends[i] = i + 1;
                befores[i] = i - 1;
            }
            for (int i = 0; i < size; i++) {
                offer(i, own, ends, waiting);
            }
            int count = size;
            while (!waiting.isEmpty()) {
                long next = waiting.poll();
                int place = (int) next;
                int second = ends[place];
                if (own[place] < 0 || second >= size) {
                    continue;
                }
                Integer rank = ranks.get(key(own[place], own[second]));
                if (rank == null || made[rank] != made[(int) (next >> 32)]) {
                    continue; // one of both was merged before
                }
                own[place] = made[rank];
                own[second] = -1;
                ends[place] = ends[second];
                if (ends[place] < size) {
                    befores[ends[place]] = place;
                }
                count--;
                offer(befores[place], own, ends, waiting);
                offer(place, own, ends, waiting);
            }
            int[] parts = new int[2 * count];
            for (int place = 0, i = 0; place < size; place = ends[place]) {
                parts[i++] = own[place];
                parts[i++] = ends[place] - place;
            }
            return parts;
        }

        /** Puts the pair that begins at a place where it waits, if it can be merged. */
        private void offer(int place, int[] own, int[] ends, PriorityQueue<Long> waiting) {
            Integer rank = place < 0 || ends[place] >= own.length ? null : ranks.get(key(own[place], own[ends[place]]));
            if (rank != null) {
                waiting.add((long) rank << 32 | place);
            }
        }
    }
}
