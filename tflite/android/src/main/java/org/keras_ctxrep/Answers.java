package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The best answer spans of a context over its windows.
 *
 * <p>Devlin et al. 2018, sections 4.2 and 4.3: a span's score is the sum of its start logit and its end logit. Ties go
 * to the earlier window and position. An answer begins and ends with whole words.
 */
final class Answers {
    private static final int MOST = 20; // answers kept for each window, and returned

    private final int maxAnswer;
    private final Map<Long, Double> scores = new LinkedHashMap<>(); // by where a span begins and ends

    Answers(int maxAnswer) {
        this.maxAnswer = maxAnswer;
    }

    /** Adds the best spans of a window. */
    void add(Row row, float[] starts, float[] ends) {
        double[] top = new double[MOST];
        int[] firsts = new int[MOST];
        int[] lasts = new int[MOST];
        int count = 0;
        int behind = row.size - 1; // [SEP]
        for (int first = row.first; first < behind; first++) {
            for (int last = first; last < Math.min(first + maxAnswer, behind); last++) {
                double score = (double) starts[first] + ends[last];
                if (!(Math.abs(score) < Double.POSITIVE_INFINITY) || (count == MOST && score <= top[MOST - 1])) {
                    continue;
                }
                int place = count < MOST ? count++ : MOST - 1;
                for (; place > 0 && top[place - 1] < score; place--) {
                    top[place] = top[place - 1];
                    firsts[place] = firsts[place - 1];
                    lasts[place] = lasts[place - 1];
                }
                top[place] = score;
                firsts[place] = first;
                lasts[place] = last;
            }
        }
        for (int i = 0; i < count; i++) {
            long span = (long) row.wordBegins[firsts[i]] << 32 | row.wordEnds[lasts[i]];
            if (!scores.containsKey(span) || top[i] > scores.get(span)) {
                scores.put(span, top[i]);
            }
        }
    }

    /** Up to 20 spans, the best first. */
    List<Prediction.Candidate> best(String context) {
        List<Map.Entry<Long, Double>> sorted = new ArrayList<>(scores.entrySet());
        Collections.sort(sorted, (a, b) -> compare(b.getValue(), a.getValue()));
        double[] kept = new double[Math.min(MOST, sorted.size())];
        for (int i = 0; i < kept.length; i++) {
            kept[i] = sorted.get(i).getValue();
        }
        double[] probabilities = Decoder.softmax(kept.clone());
        List<Prediction.Candidate> best = new ArrayList<>();
        for (int i = 0; i < kept.length; i++) {
            long span = sorted.get(i).getKey();
            int start = (int) (span >> 32);
            int end = (int) span;
            best.add(new Prediction.Candidate(context.substring(start, end), start, end, kept[i], probabilities[i]));
        }
        return best;
    }

    /** As {@code Double.compare}, but 0 and -0 are equal. */
    private static int compare(double a, double b) {
        return a < b ? -1 : a > b ? 1 : 0;
    }
}
