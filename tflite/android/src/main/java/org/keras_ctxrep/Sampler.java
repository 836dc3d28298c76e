package org.keras_ctxrep;

import java.util.Arrays;

/**
 * Draws tokens from a language model's logits, as {@code keras_ctxrep.text.sampling} defines it.
 *
 * <p>A token is the argmax of its log-probability plus Gumbel noise, which is a function of seed, step and token by
 * Threefry-2x32 with 20 rounds (Salmon et al. 2011): the same seed draws the same tokens in every language.
 */
public final class Sampler {
    private static final int[][] ROTATIONS = {{13, 15, 26, 6}, {17, 29, 16, 24}};

    private final int[] keys;
    private final double temperature;
    private final int topK;
    private final double topP;
    private final double minP;

    /**
     * A sampler from all tokens.
     *
     * @param seed of the text
     */
    public Sampler(long seed) {
        this(seed, 1, 0, 1, 0);
    }

    /**
     * A sampler from the likely tokens; the filters are applied in this order.
     *
     * @param seed of the text
     * @param temperature divides the logits; 0: always the likeliest token
     * @param topK leaves the likeliest tokens; 0: all
     * @param topP leaves the likeliest tokens whose probabilities sum to it; 1: all
     * @param minP leaves tokens of at least so many times the probability of the likeliest one; 0: all
     * @throws IllegalArgumentException a value is out of its range
     */
    public Sampler(long seed, double temperature, int topK, double topP, double minP) {
        check(temperature >= 0 && temperature < Double.POSITIVE_INFINITY, "temperature " + temperature + ": at least 0");
        check(topK >= 0, "topK " + topK + ": at least 0");
        check(topP > 0 && topP <= 1, "topP " + topP + ": above 0 and at most 1");
        check(minP >= 0 && minP <= 1, "minP " + minP + ": from 0 to 1");
        int low = (int) seed;
        int high = (int) (seed >>> 32);
        keys = new int[] {low, high, low ^ high ^ 0x1BD11BDA};
        this.temperature = temperature;
        this.topK = topK;
        this.topP = topP;
        this.minP = minP;
    }

    private static void check(boolean valid, String message) {
        if (!valid) {
            throw new IllegalArgumentException(message);
        }
    }

    /**
     * Draws a token.
     *
     * @param logits of the tokens; negative infinity of one that is never drawn
     * @param step the number of the token in the text
     * @return its id
     */
    public int sample(float[] logits, int step) {
        double[] scores = filtered(logits);
        int best = -1;
        double highest = 0;
        for (int id = 0; id < scores.length; id++) {
            if (scores[id] == Double.NEGATIVE_INFINITY) {
                continue;
            }
            double sum = scores[id] + noise(step, id);
            if (best < 0 || sum > highest) {
                best = id;
                highest = sum;
            }
        }
        return best;
    }

    /** The log-probabilities, up to a constant, of the tokens that may be drawn; negative infinity of the others. */
    double[] filtered(float[] logits) {
        double[] scores = new double[logits.length];
        int best = 0;
        for (int id = 0; id < scores.length; id++) {
            best = logits[id] > logits[best] ? id : best;
            scores[id] = temperature == 0 ? Double.NEGATIVE_INFINITY : logits[id] / temperature;
        }
        if (temperature == 0) {
            scores[best] = 0;
            return scores;
        }
        double most = scores[best];
        if (topK > 0 && topK < scores.length) {
            double[] sorted = scores.clone();
            Arrays.sort(sorted);
            keep(scores, sorted[sorted.length - topK]);
        }
        if (topP < 1) {
            keepLikely(scores);
        }
        if (minP > 0) {
            keep(scores, most + Math.log(minP));
        }
        return scores;
    }

    private static void keep(double[] scores, double least) {
        for (int id = 0; id < scores.length; id++) {
            if (scores[id] < least) {
                scores[id] = Double.NEGATIVE_INFINITY;
            }
        }
    }

    private void keepLikely(double[] scores) {
        Integer[] order = new Integer[scores.length];
        for (int id = 0; id < order.length; id++) {
            order[id] = id;
        }
        Arrays.sort(order, (a, b) -> Double.compare(scores[b], scores[a])); // stable: of equal ones the lower id first
        double[] likely = new double[order.length];
        double sum = 0;
        for (int rank = 0; rank < order.length; rank++) {
            likely[rank] = Math.exp(scores[order[rank]] - scores[order[0]]);
            sum += likely[rank];
        }
        double upTo = 0;
        for (int rank = 0; rank < order.length; rank++) {
            double probability = likely[rank] / sum;
            upTo += probability;
            if (upTo - probability >= topP) {
                scores[order[rank]] = Double.NEGATIVE_INFINITY;
            }
        }
    }

    /** The Gumbel noise of a token in a step. */
    double noise(int step, int id) {
        int a = id + keys[0];
        int b = step + keys[1];
        for (int group = 0; group < 5; group++) {
            for (int distance : ROTATIONS[group % 2]) {
                a += b;
                b = Integer.rotateLeft(b, distance) ^ a;
            }
            a += keys[(group + 1) % 3];
            b += keys[(group + 2) % 3] + group + 1;
        }
        return -Math.log(-Math.log(((a & 0xFFFFFFFFL) + 0.5) / 4294967296.0));
    }
}
