package org.keras_ctxrep;

import java.util.List;
import java.util.Map;

/**
 * A model's answer to a text; which methods have a value follows from the task of the model.
 *
 * <p>A method of another task, or of a text that has no answer (see {@link #error}), throws an IllegalStateException.
 * All offsets count UTF-16 units, as those of {@link String#substring(int, int)}, and ends are exclusive.
 */
public final class Prediction {
    static final String NO_WORDS = "no words in this text";

    String error;
    boolean truncated;
    String label;
    Double score;
    Map<String, Double> probabilities;
    List<String> labels;
    Double value;
    List<Word> words;
    List<Span> spans;
    String name;
    Candidate answer;
    Double nullScore;
    List<Candidate> best;
    float[] vector;
    List<Text> texts;
    boolean finished;
    List<Aligned> alignment;

    Prediction() {}

    /**
     * Why there is no answer: "no words in this text", of a pair in both of its texts; null if there is one. The methods
     * below then throw an IllegalStateException.
     */
    public String error() {
        return error;
    }

    /** Whether the text was longer than the model reads, and cut off. */
    public boolean truncated() {
        return truncated;
    }

    /** The most probable label; of "classify" and "coreference". */
    public String label() {
        return there(label, "label");
    }

    /** The probability of the label; of "classify" and "coreference". */
    public double score() {
        return there(score, "score");
    }

    /** The probability of every label, in the order of the logits; of "classify", "multilabel" and "coreference". */
    public Map<String, Double> probabilities() {
        return there(probabilities, "probabilities");
    }

    /** The labels whose probability is 0.5 or more; of "multilabel". */
    public List<String> labels() {
        return there(labels, "labels");
    }

    /** The predicted number; of "regress". */
    public double value() {
        return there(value, "value");
    }

    /** The words with their labels; of "tag" and "semantic_roles". */
    public List<Word> words() {
        return there(words, "words");
    }

    /**
     * The spans that the labels mark: the entities of "tag", the arguments of "semantic_roles". A tagger whose labels
     * mark no spans, of parts of speech for example, has none.
     */
    public List<Span> spans() {
        return there(spans, "spans");
    }

    /** The name that the pronoun means, null if it is neither; of "coreference". */
    public String name() {
        there(label, "name");
        return name;
    }

    /** The answer to the question; its text is empty if the context has none; of "answer". */
    public Candidate answer() {
        return there(answer, "answer");
    }

    /** The score of no answer; of "answer". */
    public double nullScore() {
        return there(nullScore, "nullScore");
    }

    /** Up to 20 answers, the best first; of "answer". */
    public List<Candidate> best() {
        return there(best, "best");
    }

    /** The vector of the text; of "embed". */
    public float[] vector() {
        return there(vector, "vector");
    }

    /** The text that was written for the text; of "translate". */
    public String text() {
        return there(texts, "text").get(0).text;
    }

    /** All texts of the beam search, the best first; of "translate". */
    public List<Text> texts() {
        return there(texts, "texts");
    }

    /** Whether the best text ended by itself, before the largest number of tokens; of "translate". */
    public boolean finished() {
        there(texts, "finished");
        return finished;
    }

    /** The tokens of the best text, each with where in the text the model looked most; of "translate". */
    public List<Aligned> alignment() {
        return there(alignment, "alignment");
    }

    private <T> T there(T value, String what) {
        if (value == null) {
            throw new IllegalStateException(error == null ? "this model gives no " + what : error);
        }
        return value;
    }

    /** A word of a text and its label. */
    public static final class Word {
        /** The word as it stands in the text. */
        public final String text;
        /** Where it begins in the text; of a sentence that came split, in its words joined by spaces. */
        public final int start;
        /** Where it ends. */
        public final int end;
        /** Its label; null for a word that was cut off from a sentence that came split. */
        public final String label;
        /** The probability of its label. */
        public final double score;

        Word(String sentence, int start, int end, String label, double score) {
            this.text = sentence.substring(start, end);
            this.start = start;
            this.end = end;
            this.label = label;
            this.score = score;
        }
    }

    /** A span of a text and its type. */
    public static final class Span {
        /** Its type, "PER" for example. */
        public final String type;
        /** The span as it stands in the text. */
        public final String text;
        /** Where it begins in the text; of a sentence that came split, in its words joined by spaces. */
        public final int start;
        /** Where it ends. */
        public final int end;

        Span(String type, String sentence, int start, int end) {
            this.type = type;
            this.text = sentence.substring(start, end);
            this.start = start;
            this.end = end;
        }
    }

    /** A possible answer to a question. */
    public static final class Candidate {
        /** The answer as it stands in the context; empty for no answer. */
        public final String text;
        /** Where it begins in the context. */
        public final int start;
        /** Where it ends. */
        public final int end;
        /** The sum of its start logit and its end logit. */
        public final double score;
        /** The softmax over the scores of the candidates; NaN for no answer. */
        public final double probability;

        Candidate(String text, int start, int end, double score, double probability) {
            this.text = text;
            this.start = start;
            this.end = end;
            this.score = score;
            this.probability = probability;
        }
    }

    /** A text that was written for a text. */
    public static final class Text {
        /** The text. */
        public final String text;
        /** The log-probability of its tokens over the length penalty. */
        public final double score;

        Text(String text, double score) {
            this.text = text;
            this.score = score;
        }
    }

    /** A token that was written, and where in the text the model looked most. */
    public static final class Aligned {
        /** The token, without spaces around it. */
        public final String token;
        /** Where the token of the text begins that has the largest weight. */
        public final int start;
        /** Where it ends. */
        public final int end;
        /** Its weight, of a sum of 1 over the text. */
        public final double weight;

        Aligned(String token, int start, int end, double weight) {
            this.token = token;
            this.start = start;
            this.end = end;
            this.weight = weight;
        }
    }
}
