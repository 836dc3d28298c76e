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

    private static final int CAPITAL_I_WITH_DOT = 0x130; // the only one whose lower case is two characters
    private static final int DOT_ABOVE = 0x307;
    private static final byte[][] FLAGS = new byte[0x1100][]; // by the upper and the lower bits of a code point
    private static final byte[] NONE = new byte[256];
    private static final int[] COMBINING_RANGES;
    private static final int[] LOWERED_RANGES;

    static {
        mark(ranges(CharacterData.REMOVED, 0), 2, REMOVED);
        mark(ranges(CharacterData.SPACE, 0), 2, SPACE);
        mark(ranges(CharacterData.CJK, 0), 2, CJK);
        mark(ranges(CharacterData.PUNCTUATION, 0), 2, PUNCTUATION);
        mark(ranges(CharacterData.MARK, 0), 2, MARK);
        mark(ranges(CharacterData.DECOMPOSED, 0), 2, DECOMPOSED);
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
        byte[] block = FLAGS[code >> 8];
        return block == null ? 0 : block[code & 0xFF] & 0xFF;
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
                byte[] block = FLAGS[code >> 8];
                if (block == null) {
                    block = FLAGS[code >> 8] = NONE.clone();
                }
                block[code & 0xFF] |= (byte) flag;
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
