package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A list of vectors that is searched exactly, by cosine. The vectors are copied.
 *
 * <p>Several threads may search it at the same time while none adds to it.
 */
public final class Index {
    private static final int CAPACITY = 64; // rows at first; it doubles

    private float[] values = new float[0];
    private double[] norms = new double[0];
    private int size;
    private int width;

    /**
     * Makes an index of vectors.
     *
     * @param vectors of one length, as of {@link Model#encode}
     * @throws IllegalArgumentException they differ in length, or a value is not a finite number
     */
    public Index(float[]... vectors) {
        for (float[] vector : vectors) {
            add(vector);
        }
    }

    /** The number of vectors. */
    public int size() {
        return size;
    }

    /**
     * Adds a vector.
     *
     * @param vector as long as those before
     * @return its row: the number of vectors before it
     * @throws IllegalArgumentException it has another length, or a value that is not a finite number
     */
    public int add(float[] vector) {
        if (size == 0) {
            width = vector.length;
        }
        double norm = norm(vector, "vector " + size);
        if (size == norms.length) {
            int capacity = Math.max(CAPACITY, 2 * size);
            values = Arrays.copyOf(values, Math.multiplyExact(capacity, width));
            norms = Arrays.copyOf(norms, capacity);
        }
        System.arraycopy(vector, 0, values, size * width, width);
        norms[size] = norm;
        return size++;
    }

    /**
     * The vectors whose cosines with a vector are highest, the best first, of equal ones the lower row first. A vector
     * of zeros has the cosine 0.
     *
     * @param vector as long as those of the index
     * @param top at most so many
     * @throws IllegalArgumentException the vector has another length, or {@code top} is below 1
     */
    public List<Match> search(float[] vector, int top) {
        checkTop(top);
        List<Match> best = new ArrayList<>();
        if (size == 0) {
            return best;
        }
        double norm = norm(vector, "the query's vector");
        for (int row = 0; row < size; row++) {
            double product = 0;
            for (int i = 0, at = row * width; i < width; i++, at++) {
                product += (double) vector[i] * values[at];
            }
            double score = product == 0 ? 0 : product / (norm * norms[row]);
            if (best.size() == top && score <= best.get(top - 1).score) {
                continue;
            }
            int place = best.size();
            while (place > 0 && best.get(place - 1).score < score) {
                place--;
            }
            best.add(place, new Match(row, score));
            if (best.size() > top) {
                best.remove(top);
            }
        }
        return best;
    }

    static void checkTop(int top) {
        if (top < 1) {
            throw new IllegalArgumentException("top=" + top + ": at least 1 is needed");
        }
    }

    /** The length of a vector; an exception, with its name, if it does not fit the others. */
    private double norm(float[] vector, String name) {
        if (vector.length != width || vector.length == 0) {
            String needed = width == 0 ? "at least 1" : String.valueOf(width);
            throw new IllegalArgumentException(
                    name + " has " + vector.length + " numbers, not " + needed + ": use one model for all");
        }
        double square = 0;
        for (float value : vector) {
            square += (double) value * value;
        }
        if (!(square < Double.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException(name + " has a value that is not a finite number");
        }
        return Math.sqrt(square);
    }

    /** A vector found, and how near it is. */
    public static final class Match {
        /** The number of the vector, from 0 on. */
        public final int row;
        /** Its cosine with the query's vector. */
        public final double score;

        Match(int row, double score) {
            this.row = row;
            this.score = score;
        }
    }
}
