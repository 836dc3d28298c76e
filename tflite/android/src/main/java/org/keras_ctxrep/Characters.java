package org.keras_ctxrep;

import java.text.Normalizer;

/** The classes of characters and their mappings, the same with every JDK and Android release. */
final class Characters {
    static final int REMOVED = 1;
    static final int SPACE = 2;
    static final int CJK = 4;
    static final int PUNCTUATION = 8;
    static final int MARK = 16;
    static final int DECOMPOSED = 32;
    static final int COMBINING = 64;
    static final int LOWERED = 128;
    static final int LETTER = 256;
    static final int NUMBER = 512;
    static final int COMPATIBLE = 1024;

    // the classes of characters in clusters; those after T are not in the table
    static final int CONTROL = 1;
    static final int EXTEND = 2;
    static final int LINKER = 3;
    static final int SPACING = 4;
    static final int PREPEND = 5;
    static final int CONSONANT = 6;
    static final int PICTOGRAPH = 7;
    static final int L = 8;
    static final int V = 9;
    static final int T = 10;
    static final int LV = 11;
    static final int LVT = 12;
    static final int REGIONAL = 13;

    private static final int CAPITAL_I_WITH_DOT = 0x130; // the only one whose lower case is two characters
    private static final int DOT_ABOVE = 0x307;
    private static final String WHITE_SPACE =
            "\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
                    + "\u205f\u3000"; // but ASCII's
    private static final short[][] FLAGS = new short[0x1100][]; // by the upper and the lower bits of a code point
    private static final short[] NONE = new short[256];
    private static final int[] COMBINING_RANGES;
    private static final int[] LOWERED_RANGES;
    private static final int[] CLUSTER_RANGES = ranges(CharacterData.GRAPHEMES, 1);

    static {
        mark(ranges(CharacterData.REMOVED, 0), 2, REMOVED);
        mark(ranges(CharacterData.SPACE, 0), 2, SPACE);
        mark(ranges(CharacterData.CJK, 0), 2, CJK);
        mark(ranges(CharacterData.PUNCTUATION, 0), 2, PUNCTUATION);
        mark(ranges(CharacterData.MARK, 0), 2, MARK);
        mark(ranges(CharacterData.DECOMPOSED, 0), 2, DECOMPOSED);
        mark(ranges(CharacterData.LETTER, 0), 2, LETTER);
        mark(ranges(CharacterData.NUMBER, 0), 2, NUMBER);
        mark(ranges(CharacterData.COMPATIBLE, 0), 2, COMPATIBLE);
        COMBINING_RANGES = ranges(CharacterData.ORDER, 1);
        mark(COMBINING_RANGES, 3, COMBINING);
        LOWERED_RANGES = ranges(CharacterData.LOWER, 2);
        for (int row = 0; row < LOWERED_RANGES.length; row += 4) {
            int step = LOWERED_RANGES[row + 2];
            int count = LOWERED_RANGES[row + 1] - LOWERED_RANGES[row] + 1;
            for (int code = LOWERED_RANGES[row]; count > 0; code += step, count--) {
                mark(new int[] {code, code}, 2, LOWERED);
            }
        }
        mark(new int[] {CAPITAL_I_WITH_DOT, CAPITAL_I_WITH_DOT}, 2, LOWERED);
    }

    private Characters() {}

    /** The classes of a code point, a sum of the constants. */
    static int flags(int code) {
        short[] block = FLAGS[code >> 8];
        return block == null ? 0 : block[code & 0xFF];
    }

    /** The canonical combining class of a code point; 0 does not take part in canonical ordering. */
    static int combiningClass(int code) {
        return (flags(code) & COMBINING) == 0 ? 0 : COMBINING_RANGES[row(COMBINING_RANGES, 3, code) + 2];
    }

    /** The lower case of a code point; of U+0130 its first character. */
    static int lower(int code) {
        if ((flags(code) & LOWERED) == 0) {
            return code;
        }
        if (code == CAPITAL_I_WITH_DOT) {
            return 'i';
        }
        return code + LOWERED_RANGES[row(LOWERED_RANGES, 4, code) + 3];
    }

    /** The second character of the lower case of a code point, or -1. */
    static int lowerSecond(int code) {
        return code == CAPITAL_I_WITH_DOT ? DOT_ABOVE : -1;
    }

    /** A text in lower case, character by character. */
    static String lower(String text) {
        StringBuilder lowered = new StringBuilder(text.length());
        for (int i = 0; i < text.length(); i += Character.charCount(text.codePointAt(i))) {
            int code = text.codePointAt(i);
            lowered.appendCodePoint(lower(code));
            if (lowerSecond(code) >= 0) {
                lowered.appendCodePoint(lowerSecond(code));
            }
        }
        return lowered.toString();
    }

    /** The canonical decomposition of a code point of the class {@code DECOMPOSED}. */
    static String decomposed(int code) {
        return Normalizer.normalize(new String(Character.toChars(code)), Normalizer.Form.NFD);
    }

    /** The compatible decomposition of a code point of the class {@code COMPATIBLE}. */
    static String compatible(int code) {
        return Normalizer.normalize(new String(Character.toChars(code)), Normalizer.Form.NFKD);
    }

    /** The code point that two compose to, or -1. */
    static int composed(int first, int second) {
        if (second < 0x300) {
            return -1;
        }
        String both = new String(Character.toChars(first)) + new String(Character.toChars(second));
        String text = Normalizer.normalize(both, Normalizer.Form.NFC);
        int code = text.codePointAt(0);
        boolean known = (flags(code) & DECOMPOSED) != 0; // and not only to this platform
        return known && text.length() == Character.charCount(code) ? code : -1;
    }

    /** The class of a code point in clusters of characters, or 0. */
    static int clusterClass(int code) {
        if (code >= 0xAC00 && code < 0xD7A4) {
            return (code - 0xAC00) % 28 == 0 ? LV : LVT;
        }
        if (code >= 0x1F1E6 && code < 0x1F200) {
            return REGIONAL;
        }
        int row = row(CLUSTER_RANGES, 3, code);
        return code <= CLUSTER_RANGES[row + 1] ? CLUSTER_RANGES[row + 2] : 0;
    }

    /** Whether a code point is white space, of Unicode's property White_Space. */
    static boolean isSpace(int code) {
        return code == ' ' || code >= 9 && code < 14 || code > 0x7F && WHITE_SPACE.indexOf(code) >= 0;
    }

    /** The text with "?" for each surrogate that is not one of a pair, as the Python package reads them. */
    static String wellFormed(String text) {
        StringBuilder replaced = null;
        for (int i = 0; i < text.length(); i++) {
            char unit = text.charAt(i);
            if (!Character.isSurrogate(unit)) {
                continue;
            }
            if (Character.isHighSurrogate(unit)
                    && i + 1 < text.length()
                    && Character.isLowSurrogate(text.charAt(i + 1))) {
                i++;
                continue;
            }
            if (replaced == null) {
                replaced = new StringBuilder(text);
            }
            replaced.setCharAt(i, '?');
        }
        return replaced == null ? text : replaced.toString();
    }

    /** The ranges of a table: first, last, values... of each. */
    private static int[] ranges(String table, int values) {
        String[] numbers = table.split(" ");
        int[] ranges = new int[numbers.length];
        int end = 0;
        for (int i = 0; i < ranges.length; i += 2 + values) {
            ranges[i] = end + Integer.parseInt(numbers[i], 36);
            end = ranges[i] + Integer.parseInt(numbers[i + 1], 36);
            ranges[i + 1] = end - 1;
            for (int j = i + 2; j < i + 2 + values; j++) {
                ranges[j] = Integer.parseInt(numbers[j], 36);
            }
        }
        return ranges;
    }

    private static void mark(int[] ranges, int width, int flag) {
        for (int row = 0; row < ranges.length; row += width) {
            for (int code = ranges[row]; code <= ranges[row + 1]; code++) {
                short[] block = FLAGS[code >> 8];
                if (block == null) {
                    block = FLAGS[code >> 8] = NONE.clone();
                }
                block[code & 0xFF] |= (short) flag;
            }
        }
    }

    /** The index of the last range that begins at or before a code point. */
    private static int row(int[] ranges, int width, int code) {
        int low = 0;
        int high = ranges.length / width - 1;
        while (low < high) {
            int middle = (low + high + 1) >>> 1;
            if (ranges[middle * width] <= code) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low * width;
    }
}
