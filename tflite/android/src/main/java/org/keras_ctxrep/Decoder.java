package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Converts a model's outputs to predictions, as the tasks of {@code keras_ctxrep.tasks} do. */
final class Decoder {
    private static final double THRESHOLD = 0.5; // smallest probability of a predicted label
    private static final String PREDICATE = "V"; // the type of a predicate's own words

    private final Bundle bundle;
    private final List<String> labels;
    private final Translations translations; // of the task "translate", else null

    /**
     * @throws IllegalArgumentException the model has no answers
     */
    Decoder(Bundle bundle) {
        this.bundle = bundle;
        labels = bundle.labels();
        outputs(); // raises for a task without answers
        translations = bundle.task().equals("translate") ? new Translations(bundle) : null;
    }

    /** The outputs that are read, of those that the model has; files before 0.3 have no "vector". */
    List<String> outputs() {
        switch (bundle.task()) {
            case "classify":
            case "multilabel":
            case "regress":
            case "coreference":
                return Arrays.asList("logits");
            case "tag":
            case "semantic_roles":
                return Arrays.asList("logits", "tags");
            case "answer":
                return Arrays.asList("start_logits", "end_logits");
            case "embed":
                return Arrays.asList("vector", "pooled");
            case "translate":
                return Translations.OUTPUTS;
            default:
                throw new IllegalArgumentException("a " + bundle.task() + " answers nothing");
        }
    }

    /** How the names of the signatures begin that answer; the number of tokens follows. */
    String signatures() {
        return translations == null ? "length_" : translations.signatures();
    }

    /** The rows of a query as its task reads it. */
    List<Row> encode(Features features, Query query) {
        int stride = Bundle.number(bundle.settings, "stride", 128);
        if (bundle.readsWindows) {
            return features.windows(query, stride);
        }
        if (bundle.settings.containsKey("windows")) {
            return features.textWindows(query, stride);
        }
        return Arrays.asList(features.encode(query));
    }

    /** The answer to a query from the outputs of its rows. */
    Prediction decode(Query query, List<Row> rows, List<Map<String, float[]>> outputs) {
        Prediction prediction = new Prediction();
        switch (bundle.task()) {
            case "tag":
            case "semantic_roles":
                tag(query, rows.get(0), outputs.get(0), prediction);
                break;
            case "answer":
                answer(query, rows, outputs, prediction);
                break;
            case "embed":
                Map<String, float[]> output = outputs.get(0);
                prediction.vector = output.containsKey("vector") ? output.get("vector") : output.get("pooled");
                break;
            case "translate":
                translations.decode(rows.get(0), outputs.get(0), prediction);
                break;
            default:
                label(query, pooled(outputs), prediction);
        }
        for (Row row : rows) {
            prediction.truncated |= row.truncated;
        }
        return prediction;
    }

    /** The scores of a text: probabilities or numbers, pooled over its windows. */
    private double[] pooled(List<Map<String, float[]>> outputs) {
        boolean max = "max".equals(bundle.settings.get("windows"));
        String task = bundle.task();
        boolean distribution = task.equals("classify") || task.equals("coreference");
        double[] pooled = null;
        for (Map<String, float[]> output : outputs) {
            float[] logits = output.get("logits");
            double[] scores = new double[logits.length];
            if (distribution) {
                scores = softmax(logits, 0, logits.length);
            } else {
                for (int i = 0; i < scores.length; i++) {
                    scores[i] = task.equals("regress") ? logits[i] : 0.5 * (1 + Math.tanh(0.5 * logits[i]));
                }
            }
            for (int i = 0; pooled != null && i < scores.length; i++) {
                scores[i] = max ? Math.max(pooled[i], scores[i]) : pooled[i] + scores[i];
            }
            pooled = scores;
        }
        double sum = 0;
        for (double score : pooled) {
            sum += score;
        }
        for (int i = 0; i < pooled.length; i++) { // the mean of distributions is one too
            pooled[i] /= distribution ? sum : max ? 1 : outputs.size();
        }
        return pooled;
    }

    private void label(Query query, double[] scores, Prediction prediction) {
        if (bundle.task().equals("regress")) {
            prediction.value = scores[0];
            return;
        }
        prediction.probabilities = new LinkedHashMap<>();
        List<String> chosen = new ArrayList<>();
        for (int i = 0; i < scores.length; i++) {
            prediction.probabilities.put(labels.get(i), scores[i]);
            if (scores[i] >= THRESHOLD) {
                chosen.add(labels.get(i));
            }
        }
        if (bundle.task().equals("multilabel")) {
            prediction.labels = chosen;
            return;
        }
        int best = argmax(scores);
        prediction.label = labels.get(best);
        prediction.score = scores[best];
        if (bundle.task().equals("coreference") && best < 2) { // of the spans pronoun, A and B
            prediction.name = query.text.substring(query.marks[1 + best][0], query.marks[1 + best][1]);
        }
    }

    private void tag(Query query, Row row, Map<String, float[]> output, Prediction prediction) {
        boolean split = query.text == null;
        String sentence = split ? joined(query.words) : query.text;
        float[] logits = output.get("logits");
        float[] tags = output.get("tags");
        prediction.words = new ArrayList<>();
        int next = 0;
        int number = 0; // of the words that have a token
        for (int i = 0; i < row.starts.length; i++) {
            int begin = split ? next : i < row.wordBegins.length ? row.wordBegins[i] : 0;
            int end = split ? begin + query.words.get(i).length() : i < row.wordEnds.length ? row.wordEnds[i] : 0;
            next = end + 1;
            if (row.starts[i] >= 0) {
                double[] scores = softmax(logits, number * labels.size(), labels.size());
                int best = tags == null ? argmax(scores) : (int) tags[number];
                prediction.words.add(new Prediction.Word(sentence, begin, end, labels.get(best), scores[best]));
                number++;
            } else if (split) { // cut off
                prediction.words.add(new Prediction.Word(sentence, begin, end, null, 0));
            }
        }
        boolean roles = bundle.task().equals("semantic_roles");
        if (marksSpans(labels)) {
            prediction.spans = spans(prediction.words, sentence, roles ? PREDICATE : null);
        } else if (roles) {
            prediction.spans = new ArrayList<>();
        }
    }

    /** Words joined by spaces. */
    private static String joined(List<String> words) {
        StringBuilder sentence = new StringBuilder();
        for (String word : words) {
            sentence.append(word).append(' ');
        }
        return sentence.substring(0, Math.max(0, sentence.length() - 1));
    }

    /** Whether labels mark spans: each is "O", "B", "I", or a type with the prefix B-, I-, E-, S-, L- or U-. */
    private static boolean marksSpans(Collection<String> labels) {
        boolean some = false;
        for (String label : labels) {
            some |= !label.equals("O");
            boolean bare = label.equals("O") || label.equals("B") || label.equals("I");
            boolean typed = label.length() > 2 && label.charAt(1) == '-' && "BIESLU".indexOf(label.charAt(0)) >= 0;
            if (!bare && !typed) {
                return false;
            }
        }
        return some;
    }

    /** The spans that tags mark: a tag that does not continue a span of its type begins a new one. */
    private static List<Prediction.Span> spans(List<Prediction.Word> words, String sentence, String ignored) {
        List<Prediction.Span> spans = new ArrayList<>();
        String current = null; // the type of the span that the next word may continue
        for (int i = 0; i < words.size(); ) {
            String tag = words.get(i).label == null ? "O" : words.get(i).label;
            int first = i++;
            if (tag.equals("O")) {
                continue;
            }
            String type = tag.substring(1);
            current = "BI".indexOf(tag.charAt(0)) >= 0 ? type : null;
            while (current != null && i < words.size() && continues(words.get(i).label, type)) {
                current = words.get(i++).label.charAt(0) == 'I' ? type : null;
            }
            String name = type.isEmpty() ? "" : type.substring(1);
            if (!name.equals(ignored)) {
                spans.add(new Prediction.Span(name, sentence, words.get(first).start, words.get(i - 1).end));
            }
        }
        return spans;
    }

    private static boolean continues(String tag, String type) {
        return tag != null && "IEL".indexOf(tag.charAt(0)) >= 0 && tag.substring(1).equals(type);
    }

    private void answer(Query query, List<Row> rows, List<Map<String, float[]>> outputs, Prediction prediction) {
        Answers answers = new Answers(Bundle.number(bundle.settings, "max_answer", 30));
        double none = Double.POSITIVE_INFINITY;
        for (int i = 0; i < rows.size(); i++) {
            float[] starts = outputs.get(i).get("start_logits");
            float[] ends = outputs.get(i).get("end_logits");
            none = Math.min(none, (double) starts[0] + ends[0]);
            answers.add(rows.get(i), starts, ends);
        }
        prediction.nullScore = none;
        prediction.best = answers.best(query.pair);
        Object threshold = bundle.settings.get("null_threshold");
        boolean answered = !prediction.best.isEmpty()
                && (threshold == null || none - prediction.best.get(0).score <= ((Number) threshold).doubleValue());
        prediction.answer =
                answered ? prediction.best.get(0) : new Prediction.Candidate("", 0, 0, none, Double.NaN);
    }

    /** The probabilities of some of the logits. */
    static double[] softmax(float[] logits, int from, int size) {
        double[] scores = new double[size];
        for (int i = 0; i < size; i++) {
            scores[i] = logits[from + i];
        }
        return softmax(scores);
    }

    /** Probabilities in place of scores. */
    static double[] softmax(double[] scores) {
        double max = Double.NEGATIVE_INFINITY;
        for (double score : scores) {
            max = Math.max(max, score);
        }
        double sum = 0;
        for (int i = 0; i < scores.length; i++) {
            sum += scores[i] = Math.exp(scores[i] - max);
        }
        for (int i = 0; i < scores.length; i++) {
            scores[i] /= sum;
        }
        return scores;
    }

    private static int argmax(double[] scores) {
        int best = 0;
        for (int i = 1; i < scores.length; i++) {
            best = scores[i] > scores[best] ? i : best;
        }
        return best;
    }
}
