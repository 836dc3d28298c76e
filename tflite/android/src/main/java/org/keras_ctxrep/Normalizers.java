package org.keras_ctxrep;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** The normalizers of a tokenizer.json, with the spans that the Python package {@code tokenizers} gives. */
final class Normalizers {
    private static final String DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"; // in base 64

    private Normalizers() {}

    /** One normalizer. */
    interface Step {
        Letters of(Letters text);
    }

    /**
     * What an entry "normalizer" does; null does nothing.
     *
     * @throws IllegalArgumentException it is of a kind that is not supported
     */
    static Step of(Map<String, Object> entry) {
        String type = (String) entry.get("type");
        if (type == null) {
            return text -> text;
        }
        switch (type) {
            case "Sequence":
                List<Step> steps = new ArrayList<>();
                for (Object each : (List<?>) entry.get("normalizers")) {
                    steps.add(of(Bundle.object(each)));
                }
                return text -> {
                    Letters result = text;
                    for (Step step : steps) {
                        result = step.of(result);
                    }
                    return result;
                };
            case "Precompiled":
                return new Precompiled(bytes((String) entry.get("precompiled_charsmap")));
            case "NFC":
            case "NFKC":
                return text -> composed(text, type.equals("NFKC"));
            case "Lowercase":
                return Normalizers::lowered;
            case "Replace": // of several spaces, which is the only one that is written
                int content = ((String) entry.get("content")).codePointAt(0);
                return text -> oneSpace(text, content);
            case "Strip":
                boolean left = (Boolean) entry.get("strip_left");
                boolean right = (Boolean) entry.get("strip_right");
                return text -> stripped(text, left, right);
            default:
                throw new IllegalArgumentException("tokenizer.json: the normalizer " + type + " is not supported");
        }
    }

    private static byte[] bytes(String base64) {
        int size = base64.length();
        while (size > 0 && base64.charAt(size - 1) == '=') {
            size--;
        }
        byte[] bytes = new byte[size * 6 / 8];
        for (int i = 0, bits = 0; i < size; i++) {
            bits = bits << 6 | DIGITS.indexOf(base64.charAt(i));
            if (i % 4 > 0) { // the second to fourth digit of four each complete a byte
                bytes[i - i / 4 - 1] = (byte) (bits >> 2 * (3 - i % 4));
            }
        }
        return bytes;
    }

    private static Letters lowered(Letters text) {
        Letters lowered = new Letters(text.size);
        for (int i = 0; i < text.size; i++) {
            lowered.add(Characters.lower(text.codes[i]), text, i);
            if (Characters.lowerSecond(text.codes[i]) >= 0) {
                lowered.add(Characters.lowerSecond(text.codes[i]), text, i);
            }
        }
        return lowered;
    }

    private static Letters oneSpace(Letters text, int content) {
        Letters result = new Letters(text.size);
        for (int i = 0; i < text.size; i++) {
            boolean space = text.codes[i] == ' ';
            if (!space || i + 1 == text.size || text.codes[i + 1] != ' ') {
                result.add(space && i > 0 && text.codes[i - 1] == ' ' ? content : text.codes[i], text, i);
            }
        }
        return result;
    }

    private static Letters stripped(Letters text, boolean left, boolean right) {
        int begin = 0;
        int end = text.size;
        while (left && begin < end && Characters.isSpace(text.codes[begin])) {
            begin++;
        }
        while (right && end > begin && Characters.isSpace(text.codes[end - 1])) {
            end--;
        }
        return text.part(begin, end);
    }

    /** The normal form C or KC of a text. */
    private static Letters composed(Letters text, boolean compatible) {
        Changes apart = decomposed(text, compatible);
        Changes parts = new Changes(apart.size);
        int starter = -1; // the place of the last starter
        int highest = 0; // the class of the last part behind it
        for (int i = 0; i < apart.size; i++) {
            int code = apart.codes[i];
            int order = Characters.combiningClass(code);
            boolean open = starter >= 0 && (starter == parts.size - 1 || highest < order);
            int both = open ? Characters.composed(parts.codes[starter], code) : -1;
            if (both >= 0) {
                parts.codes[starter] = both;
                parts.changes[starter] += apart.changes[i] - 1;
                continue;
            }
            starter = order == 0 ? parts.size : starter;
            highest = order;
            parts.add(code, apart.changes[i]);
        }
        return parts.of(text);
    }

    /** The normal form D or KD of a text. */
    private static Changes decomposed(Letters text, boolean compatible) {
        Changes parts = new Changes(text.size);
        int first = 0; // of the parts that canonical ordering may move
        for (int i = 0; i < text.size; i++) {
            int code = text.codes[i];
            int flags = Characters.flags(code);
            String canonical = (flags & Characters.DECOMPOSED) == 0 ? null : Characters.decomposed(code);
            String string = canonical == null ? new String(text.codes, i, 1) : canonical;
            int[] codes = Letters.codes(compatible ? compatible(string) : string);
            for (int j = 0; j < codes.length; j++) {
                if (Characters.combiningClass(codes[j]) == 0) {
                    parts.order(first);
                    first = parts.size + 1;
                }
                parts.add(codes[j], Math.min(j, 1));
            }
        }
        parts.order(first);
        return parts;
    }

    private static String compatible(String text) {
        StringBuilder result = new StringBuilder();
        for (int code : Letters.codes(text)) {
            if ((Characters.flags(code) & Characters.COMPATIBLE) == 0) {
                result.appendCodePoint(code);
            } else {
                result.append(Characters.compatible(code));
            }
        }
        return result.toString();
    }

    /**
     * SentencePiece's map of characters: a trie of bytes in a double array, and the texts that it leads to.
     *
     * <p>A cluster of few bytes is looked up as a whole, of another one each character; the shortest beginning of it that
     * is in the map stands for all of it.
     */
    private static final class Precompiled implements Step {
        private static final int WHOLE = 6; // bytes of a cluster that is not looked up as a whole

        private final int[] trie;
        private final byte[] texts;

        Precompiled(byte[] map) {
            ByteBuffer data = ByteBuffer.wrap(map).order(ByteOrder.LITTLE_ENDIAN);
            trie = new int[data.getInt() / 4];
            data.asIntBuffer().get(trie);
            texts = Arrays.copyOfRange(map, 4 + 4 * trie.length, map.length);
        }

        @Override
        public Letters of(Letters text) {
            Changes parts = new Changes(text.size);
            Clusters clusters = new Clusters();
            boolean any = false;
            for (int begin = 0, end = 0; begin < text.size; begin = end) {
                if (end == 0) {
                    clusters.joins(text.codes[0]);
                }
                end = begin + 1;
                while (end < text.size && clusters.joins(text.codes[end])) {
                    end++;
                }
                int[] whole = end > begin + 1 && bytes(text, begin, end) < WHOLE ? found(text, begin, end) : null;
                if (whole != null) {
                    any = true;
                    parts.replace(end - begin, whole);
                }
                for (int i = begin; whole == null && i < end; i++) {
                    int[] codes = found(text, i, i + 1);
                    if (codes == null) {
                        parts.add(text.codes[i], 0);
                    } else {
                        any = true;
                        parts.replace(1, codes);
                    }
                }
            }
            return any ? parts.of(text) : text;
        }

        private static int bytes(Letters text, int begin, int end) {
            int bytes = 0;
            for (int i = begin; i < end && bytes < WHOLE; i++) {
                int code = text.codes[i];
                bytes += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
            }
            return bytes;
        }

        /** What stands for the shortest beginning of some letters that is in the map, or null. */
        private int[] found(Letters text, int begin, int end) {
            int node = below(trie[0]);
            for (int i = begin; i < end; i++) {
                int code = text.codes[i];
                int size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
                for (int j = size - 1; j >= 0; j--) { // the bytes of UTF-8
                    int bits = code >> 6 * j;
                    int value = size == 1 ? bits : j < size - 1 ? 0x80 | bits & 0x3F : 0xF00 >> size & 0xFF | bits;
                    node ^= value;
                    int unit = node < trie.length ? trie[node] : 0;
                    if (value == 0 || (unit & 0x800000FF) != value) {
                        return null;
                    }
                    node ^= below(unit);
                    if ((unit & 0x100) != 0) {
                        return text(trie[node] & 0x7FFFFFFF);
                    }
                }
            }
            return null;
        }

        private static int below(int unit) {
            return (unit >>> 10) << ((unit & 0x200) >>> 6);
        }

        private int[] text(int begin) {
            int end = begin;
            while (texts[end] != 0) {
                end++;
            }
            return Letters.codes(new String(texts, begin, end - begin, StandardCharsets.UTF_8));
        }
    }
}
