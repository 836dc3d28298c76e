package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * Texts that a decoder wrote, as the task translate of {@code keras_ctxrep.tasks}. The search is in the file, which gives
 * its hypotheses, the best first.
 */
final class Translations {
    static final List<String> OUTPUTS = Arrays.asList("tokens", "scores", "finished", "attention");
    private static final double LOWEST = -1e38; // a score below is that of no text

    private final boolean beams;
    private final boolean characters;
    private final String[] strings; // what each token adds to a text; a space at its beginning is left out

    Translations(Bundle bundle) {
        beams = Bundle.number(bundle.settings, "beams", 1) > 1;
        String units = String.valueOf(bundle.settings.get("units"));
        characters = units.equals("characters");
        strings = bundle.labels().toArray(new String[0]);
        for (int i = 0; i < strings.length && !characters; i++) {
            strings[i] = units.equals("words") ? " " + strings[i] : strings[i].replace('\u2581', ' ');
        }
    }

    /** How the names of the signatures begin that search; the number of tokens follows. */
    String signatures() {
        return beams ? "beam_" : "greedy_";
    }

    /** Adds what the task answers to a prediction. */
    void decode(Row row, Map<String, float[]> outputs, Prediction prediction) {
        float[] tokens = outputs.get("tokens");
        float[] scores = outputs.get("scores");
        float[] attention = outputs.get("attention");
        int length = tokens.length / scores.length;
        int width = attention.length / tokens.length;
        prediction.texts = new ArrayList<>();
        for (int beam = 0; beam < scores.length; beam++) {
            if (scores[beam] > LOWEST) {
                prediction.texts.add(new Prediction.Text(text(tokens, beam * length, length), scores[beam]));
            }
        }
        prediction.finished = outputs.get("finished")[0] != 0;
        prediction.alignment = new ArrayList<>();
        for (int i = 0; i < length && tokens[i] >= 0; i++) {
            prediction.alignment.add(aligned(strings[(int) tokens[i]], row, attention, i * width));
        }
    }

    private String text(float[] tokens, int from, int length) {
        StringBuilder text = new StringBuilder();
        for (int i = from; i < from + length && tokens[i] >= 0; i++) {
            text.append(strings[(int) tokens[i]]);
        }
        boolean spaced = !characters && text.length() > 0 && text.charAt(0) == ' ';
        return text.substring(spaced ? 1 : 0);
    }

    /** A token with that of the text, no marker, whose weight is the largest. */
    private static Prediction.Aligned aligned(String token, Row row, float[] weights, int from) {
        int best = -1;
        for (int i = 0; i < row.size; i++) {
            if (row.begins[i] < row.ends[i] && (best < 0 || weights[from + i] > weights[from + best])) {
                best = i;
            }
        }
        String stripped = stripped(token);
        token = stripped.isEmpty() ? " " : stripped;
        return best < 0
                ? new Prediction.Aligned(token, 0, 0, 0)
                : new Prediction.Aligned(token, row.begins[best], row.ends[best], weights[from + best]);
    }

    /** Without white space around it, as Python's strip. */
    private static String stripped(String token) {
        int begin = 0;
        int end = token.length();
        while (begin < end && Generator.SPACES.indexOf(token.charAt(begin)) >= 0) {
            begin++;
        }
        while (begin < end && Generator.SPACES.indexOf(token.charAt(end - 1)) >= 0) {
            end--;
        }
        return token.substring(begin, end);
    }
}
