package org.keras_ctxrep;

/** Extended grapheme clusters, Unicode's annex 29, letter by letter. */
final class Clusters {
    private static final int ZWNJ = 0x200C;
    private static final int ZWJ = 0x200D;

    private int code; // of the letter before
    private int before = Characters.CONTROL; // its class
    private int conjunct; // 1: behind a consonant, 2: and a linker
    private int pictograph; // 1: behind a pictograph, 2: and a joiner
    private int regional; // indicators before

    /** Whether the next letter is of the cluster of the one before it. */
    boolean joins(int next) {
        int own = Characters.clusterClass(next);
        boolean extend = own == Characters.EXTEND || own == Characters.LINKER;
        boolean joined;
        if (before == Characters.CONTROL || own == Characters.CONTROL) {
            joined = code == '\r' && next == '\n';
        } else {
            joined = extend
                    || next == ZWJ
                    || own == Characters.SPACING
                    || before == Characters.PREPEND
                    || syllable(before, own)
                    || own == Characters.CONSONANT && conjunct == 2
                    || own == Characters.PICTOGRAPH && pictograph == 2
                    || own == Characters.REGIONAL && regional % 2 == 1;
        }
        if (own == Characters.CONSONANT) {
            conjunct = 1;
        } else if (own == Characters.LINKER) {
            conjunct = conjunct > 0 ? 2 : 0;
        } else if (!extend && next != ZWJ || next == ZWNJ) {
            conjunct = 0;
        }
        if (own == Characters.PICTOGRAPH || pictograph > 0 && extend) {
            pictograph = 1;
        } else {
            pictograph = pictograph == 1 && next == ZWJ ? 2 : 0;
        }
        regional = own == Characters.REGIONAL ? regional + 1 : 0;
        before = own;
        code = next;
        return joined;
    }

    private static boolean syllable(int before, int own) {
        boolean vowel = own == Characters.V;
        switch (before) {
            case Characters.L:
                return vowel || own == Characters.L || own == Characters.LV || own == Characters.LVT;
            case Characters.V:
            case Characters.LV:
                return vowel || own == Characters.T;
            default:
                return (before == Characters.T || before == Characters.LVT) && own == Characters.T;
        }
    }
}
