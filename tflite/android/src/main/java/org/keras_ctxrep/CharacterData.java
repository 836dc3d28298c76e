package org.keras_ctxrep;

/**
 * Characters by their class, as the Python package {@code tokenizers} has them; written by character_data.py.
 *
 * <p>Each table is a list of ranges: the number of code points between the range before and this one, and those in it,
 * then the values of the table if it has any, all in base 36.
 */
final class CharacterData {
    /** Characters that are removed: control, format and private-use characters, U+FFFD and surrogates. */
    static final String REMOVED =
            "0 9 2 2 1 i 2n x d 1 11u 6 m 1 5c 1 1d 1 3cu 1 1ks 5 q 5 1d 5 1 a 109c 6io 16n 1 6x 3 1 1 3b3 1 xya "
            + "4 43z 8 h406 1 u 2o 1egw 1eke 2 1eke ";

    /** White space. */
    static final String SPACE =
            "9 2 2 1 i 1 3j 1 4bj 1 1vj b t 2 5 1 1b 1 334 1 ";

    /** Characters that are words of their own, unless that is switched off. */
    static final String CJK =
            "a9s 534 1s g74 hkw e8 1fk0 wyo w 3ds 74 49c 85s f4 ";

    /** Characters that are words of their own. */
    static final String PUNCTUATION =
            "x f a 7 q 6 q 4 y 1 5 1 3 1 a 2 3 1 3 1 ji 1 8 1 cy 6 15 2 1f 1 1 1 2 1 2 1 18 2 k 2 1 2 d 1 2 2 22 "
            + "4 2u 1 17 e 6h 3 1i f v 1 79 2 a 1 an 1 lf 1 2i 1 a 2 4o f 1 1 11 4 1z 1 22 5 4 2 33 6 4r 1 h0 9 47 "
            + "1 h8 2 18 2 26 3 1z 2 4d 3 1 3 11 b 8p 2 60 2 3k 7 1 6 4s 7 4b 4 1n 5 1q 2 1s 8 b 1 n0 o 8 k 1 d 1 c "
            + "u 2 e 2 hl 4 t 2 u5 e 27 2 v a b7 m 1r 4 w 2 l7 4 1 2 34 1 3z 1b 1 j ce 3 4 a 2 c g 1 c 1 2q 1 2i 1 "
            + "mwy 2 7h 3 2r 1 a 1 37 6 ak 4 2e 2 14 3 1 1 1d 2 1b 1 2p d g 2 3g 4 3i 2 g 2 6x 1 g2a 2 5s a m z 1 e "
            + "1 1 4 1 1 2 45 3 1 6 1 4 a 2 3 2 q 3 1 1 r 1 1 1 1 7 be 3 ik 1 1c 1 bi 1 kn 1 5j 1 v 1 7k 9 12 1 34 "
            + "7 1u 7 2h 4 x6 7 31 2 1 4 3i 4 1c 2 27 5 3 1 d 1 1 3 2g 6 2z 1 f0 1 6y n 2x 3 6w 3 2lt 5 dtl 2 3p 1 "
            + "1t 5 8 1 g2i 1 5wn 5 ";

    /** Accents, which are removed if they are stripped. */
    static final String MARK =
            "lc 34 7n 5 7d 19 1 1 1 2 1 2 1 1 20 b 1c l g 1 2t 7 2 6 2 2 1 4 z 1 u r 2j b 1m 9 y 4 1 9 1 3 1 5 17 "
            + "3 3r w 1j 1 1 1 4 8 4 1 3 7 a 2 t 1 1m 1 4 4 8 1 k 2 t 2 1l 1 4 2 4 2 2 3 3 1 u 2 3 1 b 2 1l 1 4 5 1 "
            + "2 4 1 k 2 t 1 1m 1 2 1 1 4 8 1 8 1 b 2 u 1 1p 1 c 1 1e 1 1p 3 5 3 1 4 7 2 b 2 t 1 1m 1 2 1 6 1 5 2 k "
            + "2 t 1 1r 4 8 1 k 2 2u 1 7 3 1 1 2i 1 2 7 c 8 2q 1 2 6 1 2 b 6 22 2 r 1 1 1 1 1 1j e 1 5 1 2 5 b 1 10 "
            + "9 1 2u 4 1 6 1 2 2 2 p 2 4 3 g 4 d 1 2 2 6 1 f 1 jj 3 qa 3 t 3 t 2 u 2 1s 2 1 7 8 1 2 b 9 1 19 3 4b "
            + "1 3a 3 4 2 9 1 6 3 63 2 2 1 1m 1 1 7 1 1 1 1 2 8 6 a 2 1 1c e 1u 4 1c 1 1 5 1 1 5 1 14 9 c 2 w 4 2 2 "
            + "1 3 1k 1 1 2 3 1 1 3 1m 8 2 2 48 3 1 d 1 7 4 1 6 1 3 2 5i 1i 6 4 k0 d 4 1 3 c 2da 3 3x 1 2o w fe 4 "
            + "2z 2 n9w 1 4 a w 2 28 2 7k 1 3 1 4 1 p 2 4d 1 r i 1g 8 p b 1a 3 1c 1 2 4 2 1 14 1 1v 6 2 2 2 2 c 1 8 "
            + "1 1b 1 1f 1 1 3 2 2 5 2 1 1 16 2 8 1 6m 1 2 1 4 1 fn4 1 kh g g g r1 1 6a 1 45 5 1ae 3 1 2 5 4 14 3 4 "
            + "1 4l 2 10a 1 1i f 1k 3 1d 4 2 2 1x 3 10 5 1 8 1q 1 c 2 1g 9 b 3 2q 3 2 1 1 2 4n 1 3 8 l 2 1m 1 3 1 "
            + "11 7 3 5 8u 6 1 1 4 2 1 2 6m 4 6 2 1 2 r 2 2d 8 2 1 1 2 2y 1 1 1 2 6 1 1 2t 3 2 4 1 5 gjo 5 1n 7 uw "
            + "4 f7u 2 43s 3 h 8 2 7 u 4 44 3 1iz 1j 4 1e 8 1 e 1 m 5 1 f 2sg 7 gzl5 6o ";

    /** Characters with a canonical decomposition. */
    static final String DECOMPOSED =
            "5c 6 1 9 1 6 2 5 2 6 1 9 1 6 2 5 1 h 2 k 2 9 3 4 1 6 4 6 3 6 2 i 2 n x 2 d 2 s g 1 6 2 b 3 2 2 10 2 "
            + "2 6 e 7g 2 1 2 1b 1 9 1 6 6 1 1 1 3 p 7 p 5 4 2 17 2 1 1 3 1 4 3 a 1 v 1 m 2 1 1 3 1 4 3 n 2 21 2 d "
            + "4 2 2 2 6 2 6 2 c 2 2 88 5 49 1 1 1 g 1 gl 1 7 1 2 1 z 8 2z 2 f 2 1 1 2b 1 2 1 y 3 2 1 6h 1 2 2 f 2 "
            + "1i 1 1h 3 3f 1 3b 1 6 2 1 2 3i 3 3x 1 1 3 9w 1 9 1 4 1 4 1 4 1 c 1 9 1 1 2 1 1 8 1 h 1 9 1 4 1 4 1 4 "
            + "1 c 1 30 1 25b 1 1 1 1 1 1 1 1 1 3 1 14 1 1 1 2 2 1 1 jg 4a 1 1 4 2i 6 m 2 6 2 12 2 6 2 8 1 1 1 1 1 "
            + "1 1 v 2 1h 1 7 1 1 2 4 1 e 2 6 1 j 2 3 1 8 2 2 84 1 3 2 32 2 i 1 u 3 1g 1 4 1 2 1 n 1 1 1 q 1 2 1 2 "
            + "1 1 1 m 1 1 1 a 5 2 2 2 2 6 2 2 2 2 2 y 4 1c 4 6 4 1n 2 1ip 1 12n 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 "
            + "1 1 1 1 1 1 2 1 1 1 1 1 6 2 1 2 1 2 1 2 1 2 m 1 9 1 d 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 "
            + "2 1 1 1 1 1 6 2 1 2 1 2 1 2 1 2 m 1 2 4 3 1 oap 8mc 6l8 7i 2 1 1 1 2 a 1 1 1 1 2 2 3 1w 2 2y 1v 1 1 "
            + "1 a d 1 5 1 1 1 2 1 2 1 9 47f 1 1 1 e 1 3m 2 ez 2 a6 2 1 1 6z 2 112a 7 2e 6 1m4f f2 ";

    /** Characters that canonical ordering may move, and the combining class of each range. */
    static final String ORDER =
            "lc l 6e 0 1 6g 0 4 64 0 1 6g 0 1 60 0 5 64 0 2 5m 0 4 64 0 2 5m 0 b 64 0 5 1 0 4 64 0 3 6e 2 1 6e 2 "
            + "1 6o 0 1 6e 0 3 64 0 3 6e 0 2 64 1 3 6e 0 4 64 0 1 6e 0 1 6g 0 2 64 0 1 6e 0 1 6h 0 2 6i 0 1 6h 0 2 "
            + "6i 0 1 6h 0 d 6e 7n 5 6e 7d 1 64 0 4 6e 0 1 64 0 3 6e 0 1 66 0 1 64 0 6 6e 0 6 64 0 2 6e 0 1 64 0 2 "
            + "6e 0 1 66 0 1 6c 0 1 6e 0 1 a 0 1 b 0 1 c 0 1 d 0 1 e 0 1 f 0 1 g 0 1 h 0 1 i 0 2 j 0 1 k 0 1 l 0 1 "
            + "m 1 1 n 1 1 o 0 1 p 1 1 6e 0 1 64 1 1 i 20 8 6e 0 1 u 0 1 v 0 1 w 1c 1 r 0 1 s 0 1 t 0 1 u 0 1 v 0 1 "
            + "w 0 1 x 0 1 y 0 2 6e 0 2 64 0 5 6e 0 1 64 0 2 6e 0 1 64 g 1 z 2t 7 6e 2 4 6e 0 1 64 0 1 6e 2 2 6e 1 "
            + "1 64 0 2 6e 0 1 64 z 1 10 u 1 6e 0 1 64 0 2 6e 0 1 64 0 2 6e 0 3 64 0 1 6e 0 2 64 0 1 6e 0 1 64 0 3 "
            + "6e 0 1 64 0 1 6e 0 1 64 0 1 6e 0 1 64 0 1 6e 0 1 64 0 2 6e 4g 7 6e 0 1 64 0 1 6e y 4 6e 1 9 6e 1 3 "
            + "6e 1 5 6e 17 3 64 3c e 6e 1 1 64 0 2 6e 0 1 64 0 2 6e 0 1 64 0 3 6e 0 3 64 0 1 r 0 1 s 0 1 t 0 3 6e "
            + "0 1 64 0 2 6e 0 2 64 0 5 6e 1o 1 7 g 1 9 3 1 6e 0 1 64 0 2 6e 2v 1 7 g 1 9 32 1 7 g 1 9 32 1 7 g 1 9 "
            + "32 1 7 g 1 9 3j 1 9 3j 1 9 7 1 2c 0 1 2j 2t 1 7 g 1 9 3j 1 9 3g 1 9 31 2 2v 0 1 9 d 4 2z 30 2 3a e 4 "
            + "3e 24 2 64 r 1 64 1 1 64 1 1 60 1j 1 3l 0 1 3m 1 1 3o 5 4 3m 2 1 3m 1 2 6e 0 1 9 1 2 6e 1q 1 64 34 1 "
            + "7 1 2 9 2a 1 64 jz 3 6e qc 1 9 v 1 9 4d 1 9 a 1 6e 5n 1 6c 3z 1 66 0 1 6e 0 1 64 63 1 6e 0 1 64 1z 1 "
            + "9 k 8 6e 2 1 64 1c 5 6e 0 6 64 0 2 6e 0 1 64 3a 1 7 f 1 9 12 1 6e 0 1 64 0 7 6e 1i 2 9 1m 1 7 b 2 9 "
            + "1v 1 7 48 3 6e 1 1 1 0 5 64 0 2 6e 0 4 64 0 1 6e 1 7 1 4 1 64 6 1 6e 3 2 6e 5i 2 6e 0 1 64 0 7 6e 0 "
            + "1 64 0 2 6e 0 1 6i 0 1 5y 0 1 64 0 1 5m 0 11 6e 5 1 6e 0 1 6h 0 1 64 0 1 6e 0 1 64 k0 2 6e 0 2 1 0 4 "
            + "6e 0 3 1 0 2 6e 4 1 6e 3 2 1 0 1 6e 0 1 64 0 1 6e 0 2 1 0 4 64 0 1 6e 2da 3 6e 3x 1 9 2o w 6e fe 1 "
            + "62 0 1 6c 0 1 6g 0 1 66 0 2 68 2x 2 8 n9w 1 6e 4 a 6e w 2 6e 28 2 6e 7o 1 9 59 1 9 r i 6e 1l 3 64 11 "
            + "1 9 2n 1 7 c 1 9 6n 1 6e 1 2 6e 0 1 64 2 2 6e 5 2 6e 1 1 6e 1g 1 9 6u 1 9 fn4 1 q ld 7 6e 0 7 64 0 2 "
            + "6e r1 1 64 6a 1 64 45 5 6e 1aq 1 64 1 1 6e 14 1 6e 0 1 1 0 1 64 4 1 9 4l 1 6e 0 1 64 127 1 9 1k 1 9 "
            + "1l 1 9 0 1 7 1x 3 6e 1c 2 9 1q 1 7 24 1 9 9 1 7 2y 1 9 0 1 7 4y 1 7 0 1 9 29 1 7 g 1 9 o 7 6e 3 5 6e "
            + "5p 1 9 3 1 7 3f 1 9 0 1 7 6z 1 9 0 1 7 3i 1 9 3a 1 9 0 1 7 37 1 9 103 1 9 fjk 5 1 1n 7 6e g2v 1 1 "
            + "43q 2 60 0 3 1 3 1 6a 0 5 60 8 8 64 2 5 6e 0 2 64 u 4 6e 44 3 6e 2pn 7 6e 1 h 6e 2 7 6e 1 2 6e 1 5 "
            + "6e 1ph 7 64 31 6 6e 0 1 7 ";

    /** Characters in upper case, not a range but every STEP-th of them, the step, and how far lower case is. */
    static final String LOWER =
            "1t q 1 w 2t n 1 w 1 7 1 w x o 2 1 q 3 2 1 4 8 2 1 9 n 2 1 n 1 1 -3d 0 3 2 1 5 1 1 5u 0 2 2 1 2 1 1 "
            + "5q 0 1 2 1 1 2 1 5p 0 1 2 1 2 1 1 27 0 1 1 5m 0 1 1 5n 0 1 2 1 1 1 1 5p 0 1 2 5r 1 1 1 5v 0 1 1 5t 0 "
            + "1 2 1 3 1 1 5v 0 1 2 5x 1 1 1 5y 0 3 2 1 3 1 1 62 0 1 2 1 1 1 2 62 2 1 2 1 1 1 1 62 0 1 2 1 1 2 1 61 "
            + "0 2 2 1 2 1 1 63 0 1 2 1 3 1 2 1 7 1 1 2 0 1 2 1 1 1 1 2 0 1 2 1 1 1 1 2 0 9 2 1 a 9 2 1 a 1 1 2 0 2 "
            + "2 1 2 1 1 -2p 0 1 1 -1k 0 k 2 1 k 1 2 -3m 1 9 2 1 f 1 1 8bv 0 1 2 1 1 1 1 -4j 0 1 2 8bs 2 1 2 1 1 1 "
            + "1 -5f 0 1 1 1x 0 1 1 1z 0 5 2 1 85 2 2 1 4 1 2 1 8 1 2 38 6 1 2 12 1 3 1 11 1 1 2 1s 1 2 1 1r 1 h 1 "
            + "w 1 9 1 w z 1 2 8 8 c 2 1 g 1 2 -1o 2 1 2 1 1 1 1 -7 0 1 2 1 2 3 1 -3m 0 g 1 28 0 w 1 w 1c h 2 1 p r "
            + "2 1 r 1 1 f 0 7 2 1 8 1c 2 1 1d 12 1 1c 289 12 1 5ls 1 1 2 5ls 5 1 2 5ls k2 28 1 tzk 0 6 1 8 1oz 1 2 "
            + "1 6 17 1 -2bk 2 3 1 -2bk 8w 23 2 1 2b 1 2 -5vj 1 1c 2 1 1k 8 1 -8 8 6 1 -8 a 8 1 -8 8 8 1 -8 8 6 1 "
            + "-8 b 4 2 -8 b 8 1 -8 o 8 1 -8 8 8 1 -8 8 8 1 -8 8 2 1 -8 0 2 1 -22 0 1 2 -9 b 4 1 -2e 0 1 2 -9 b 2 1 "
            + "-8 0 2 1 -2s c 2 1 -8 0 2 1 -34 0 1 2 -7 b 2 1 -3k 0 2 1 -3i 0 1 2 -9 89 1 2 -5st 3 1 1 -6gv 0 1 2 "
            + "-6di 6 1 2 s 19 g 1 g j 1 2 1 mq q 1 q 1f4 1c 1 1c 1c 1 2 1 1 1 1 -8af 0 1 1 -2xy 0 1 2 -89z 2 3 2 1 "
            + "3 1 1 -8bg 0 1 1 -8al 0 1 1 -8bj 0 1 2 -8bi 1 1 2 1 2 1 2 1 8 2 1 -8cf 0 1e 2 1 1l 2 2 1 5 1 2 1 nyl "
            + "n 2 1 15 e 2 1 44 7 2 1 9 v 2 1 14 2 2 1 2 1 1 -r9g 0 5 2 1 8 1 2 1 1 1 2 -wmg 2 2 2 1 4 a 2 1 a 1 1 "
            + "-wn8 0 1 1 -wnj 0 1 1 -wnf 0 1 1 -wn5 0 1 2 -wn8 1 1 1 -wlu 0 1 1 -wmi 0 1 1 -wlx 0 1 1 ps 0 8 2 1 8 "
            + "1 1 -1c 0 1 1 -wn7 0 1 1 -raw 0 2 2 1 2 1 1 -wo7 0 8 2 1 8 1 2 -wu9 o 1 2 1 h7v q 1 w xx 14 1 14 3s "
            + "10 1 14 4c b 1 13 1 f 1 13 1 7 1 13 1 2 1 13 1d6 1f 1 1s 4d m 1 w 27u w 1 w gw0 w 1 w 1s p 1 r o5j y "
            + "1 y ";

    private CharacterData() {}
}
