package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Predicts answers to texts with a .tflite file of {@code ctxrep tflite}.
 *
 * <p>Each text runs through the signature of the smallest length that holds it. A model may be used from several
 * threads: text is prepared at the same time, the network runs for one text after the other.
 */
public final class Model implements AutoCloseable {
    private static final String PROBABILITIES = "probabilities"; // the output of a file for MediaPipe, for "logits"

    private final Bundle bundle;
    private final Runner runner;
    private final Features features;
    private final Decoder decoder;
    private final TreeMap<Integer, String> signatures = new TreeMap<>();

    /**
     * Makes a model of the parts of a .tflite file.
     *
     * @param bundle of the file
     * @param runner of the same file; it is closed with the model
     * @throws IllegalArgumentException the model has no answers to give, its bundle is damaged, a signature's name is
     *     not one of {@code ctxrep tflite}, or none is the search of a decoder
     */
    public Model(Bundle bundle, Runner runner) {
        this.bundle = bundle;
        this.runner = runner;
        features = Features.of(bundle);
        decoder = new Decoder(bundle);
        String kind = decoder.signatures(); // "length_": those that answer read up to N tokens and are named length_N
        for (String name : runner.signatures()) {
            if (name.matches(kind + "[0-9]{1,9}")) {
                signatures.put(Integer.parseInt(name.substring(kind.length())), name);
            } else if (kind.equals("length_")) {
                throw new IllegalArgumentException("signature " + name + ": length_N is needed");
            }
        }
        if (signatures.isEmpty()) {
            throw new IllegalArgumentException(
                    "signatures " + runner.signatures() + ": " + kind + "N is needed; convert the model again");
        }
    }

    /** What the model is. */
    public Bundle bundle() {
        return bundle;
    }

    /**
     * The answer to a text.
     *
     * @param text the text
     * @throws IllegalArgumentException the model reads pairs of texts, or marked spans
     */
    public Prediction predict(String text) {
        return predict(text, null, null, null, null);
    }

    /**
     * The answer to a pair of texts.
     *
     * @param text the first text; of a model of the task "answer" the question
     * @param pair the second text; of a model of the task "answer" the context
     * @throws IllegalArgumentException the model reads single texts
     */
    public Prediction predict(String text, String pair) {
        return predict(text, null, pair == null ? "" : pair, null, null);
    }

    /**
     * The answer to a text with marked spans.
     *
     * @param text the text
     * @param marks {begin, end} of each span in UTF-16 units, the end exclusive: of the predicate, or of the pronoun
     *     and the two names; {0, 0} for none
     * @throws IllegalArgumentException the model reads another number of spans, or one of them is not in the text
     */
    public Prediction predict(String text, int[][] marks) {
        return predict(text, null, null, marks, null);
    }

    /**
     * The answer to a sentence that is split into words already.
     *
     * @param words the words
     * @throws IllegalArgumentException the model reads pairs of texts, or marked spans
     */
    public Prediction predict(List<String> words) {
        return predict(null, words, null, null, null);
    }

    /**
     * The answer to a sentence that is split into words already, with marked spans.
     *
     * @param words the words
     * @param marks {first word, the one after the last} of each span
     * @throws IllegalArgumentException the model reads another number of spans, or one of them is not in the sentence
     */
    public Prediction predict(List<String> words, int[][] marks) {
        return predict(null, words, null, marks, null);
    }

    /**
     * One vector per text, pooled and scaled as the bundle says; those of Python's {@code Model.encode}.
     *
     * @param texts the texts
     * @return of a text without words zeros
     * @throws IllegalArgumentException the model's task is not "embed"
     */
    public float[][] encode(List<String> texts) {
        return encode(texts, null);
    }

    /**
     * One vector per text of a role, as of {@link #encode(List)}.
     *
     * @param texts the texts
     * @param role "query" or "passage", of a model that was trained with a prefix for each; null: none
     * @return of a text without words zeros
     * @throws IllegalArgumentException the model's task is not "embed", or it has no such role
     */
    public float[][] encode(List<String> texts, String role) {
        float[][] vectors = vectors(texts, role);
        int width = -1;
        for (float[] vector : vectors) {
            width = vector == null ? width : vector.length;
        }
        for (int i = 0; i < vectors.length; i++) {
            if (vectors[i] == null) {
                width = width < 0 ? predict("a").vector().length : width;
                vectors[i] = new float[width];
            }
        }
        return vectors;
    }

    /** Vectors to search by: an IllegalArgumentException names the first text that has no words. */
    private float[][] directed(List<String> texts, String role) {
        float[][] vectors = vectors(texts, bundle.roles.containsKey(role) ? role : null);
        for (int i = 0; i < vectors.length; i++) {
            if (vectors[i] == null) {
                String start = texts.get(i).substring(0, Math.min(60, texts.get(i).length()));
                throw new IllegalArgumentException("text " + i + ", \"" + start + "\": " + Prediction.NO_WORDS);
            }
        }
        return vectors;
    }

    /** One vector per text, null of a text without words. */
    private float[][] vectors(List<String> texts, String role) {
        if (!bundle.task().equals("embed")) {
            throw new IllegalArgumentException("this model's task is " + bundle.task() + ", not embed");
        }
        float[][] vectors = new float[texts.size()][];
        for (int i = 0; i < vectors.length; i++) {
            vectors[i] = predict(texts.get(i), null, null, null, role).vector;
        }
        return vectors;
    }

    /**
     * The documents whose vectors have the highest cosines with that of a text, the best first. A model with roles reads
     * the text as a "query".
     *
     * @param query the text
     * @param documents an index of vectors of {@link #encode}
     * @param top at most so many
     * @return of equal cosines the lower row first
     * @throws IllegalArgumentException as in {@link #encode}: the text has no words, or {@code top} is below 1
     */
    public List<Index.Match> search(String query, Index documents, int top) {
        Index.checkTop(top);
        return documents.search(directed(Collections.singletonList(query), "query")[0], top);
    }

    /**
     * The texts whose vectors have the highest cosines with that of a text, as of an index of them; they are encoded in
     * every call, by a model with roles as "passage".
     *
     * @param query the text
     * @param documents the texts
     * @param top at most so many
     * @throws IllegalArgumentException as in {@link #encode}: a text has no words, or {@code top} is below 1
     */
    public List<Index.Match> search(String query, List<String> documents, int top) {
        Index.checkTop(top);
        float[] vector = directed(Collections.singletonList(query), "query")[0];
        return new Index(directed(documents, "passage")).search(vector, top);
    }

    private Prediction predict(String text, List<String> words, String pair, int[][] marks, String role) {
        if (bundle.readsPair != (pair != null)) {
            throw new IllegalArgumentException(
                    "this model reads " + (bundle.readsPair ? "pairs of texts" : "one text at a time"));
        }
        check(text, words, marks);
        String prefix = text == null ? "" : bundle.prefix(role);
        List<String> split = words == null ? null : new ArrayList<>();
        for (int i = 0; split != null && i < words.size(); i++) {
            split.add(Characters.wellFormed(words.get(i)));
        }
        Query query = new Query(
                text == null ? null : prefix + Characters.wellFormed(text),
                split,
                pair == null ? null : Characters.wellFormed(pair),
                bundle.marks == 0 ? null : marks);
        List<Row> rows = decoder.encode(features, query);
        List<Map<String, float[]>> outputs = new ArrayList<>();
        Row nothing = null; // a prefix without a text
        if (!prefix.isEmpty()) {
            nothing = decoder.encode(features, new Query(prefix, null, null, null)).get(0);
        }
        for (Row row : rows) {
            if (row.size > features.empty() && !row.equalTokens(nothing)) {
                outputs.add(run(row));
            }
        }
        if (outputs.isEmpty()) {
            Prediction prediction = new Prediction();
            prediction.error = Prediction.NO_WORDS;
            return prediction;
        }
        return decoder.decode(query, rows, outputs);
    }

    private void check(String text, List<String> words, int[][] marks) {
        int given = marks == null ? 0 : marks.length;
        if (given != bundle.marks) {
            throw new IllegalArgumentException(
                    given + " marked spans: this model reads " + bundle.marks + " of each text");
        }
        if (text == null && bundle.task().equals("coreference")) {
            throw new IllegalArgumentException("this model reads a text as one string");
        }
        int size = text == null ? words.size() : text.length();
        for (int i = 0; i < given; i++) {
            int[] span = marks[i];
            boolean none = Arrays.equals(span, new int[] {0, 0});
            if (span.length != 2 || !none && !(0 <= span[0] && span[0] < span[1] && span[1] <= size)) {
                throw new IllegalArgumentException("marked span " + Arrays.toString(span) + " is not in the text");
            }
        }
    }

    private synchronized Map<String, float[]> run(Row row) {
        Map.Entry<Integer, String> signature = signatures.ceilingEntry(row.size);
        if (signature == null) {
            throw new IllegalStateException("no signature for " + row.size + " tokens in this file");
        }
        String name = signature.getValue();
        Map<String, int[]> all = features.inputs(row, signature.getKey());
        Map<String, int[]> inputs = new LinkedHashMap<>();
        for (String input : runner.inputs(name)) {
            if (!all.containsKey(input)) {
                throw new IllegalStateException("the model has an input " + input + ", which is not known");
            }
            inputs.put(input, all.get(input));
        }
        List<String> outputs = new ArrayList<>(decoder.outputs());
        outputs.retainAll(runner.outputs(name));
        if (!outputs.contains("logits") && runner.outputs(name).contains(PROBABILITIES)) {
            outputs.add(PROBABILITIES);
        }
        Map<String, float[]> values = runner.run(name, inputs, outputs);
        if (outputs.contains(PROBABILITIES)) {
            values = new LinkedHashMap<>(values);
            values.put("logits", logits(values.remove(PROBABILITIES)));
        }
        return values;
    }

    /** The logits that have these probabilities, as keras_ctxrep_tflite/mediapipe.py. */
    private float[] logits(float[] probabilities) {
        float[] logits = new float[probabilities.length];
        for (int i = 0; i < logits.length; i++) {
            double value = Math.min(Math.max(probabilities[i], 1e-38), 1);
            double other = bundle.task().equals("classify") ? 0 : Math.log(Math.max(1 - value, 1e-8));
            logits[i] = (float) (Math.log(value) - other);
        }
        return logits;
    }

    /** Frees the memory of the model. */
    @Override
    public synchronized void close() {
        runner.close();
    }
}
