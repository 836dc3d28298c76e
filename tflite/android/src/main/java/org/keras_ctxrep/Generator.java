package org.keras_ctxrep;

import java.util.Iterator;
import java.util.Map;
import java.util.NoSuchElementException;

/**
 * Continues texts with a .tflite file of a language model in one direction, token by token.
 *
 * <p>A generator may be used from several threads; the texts take turns token by token.
 */
public final class Generator implements AutoCloseable {
    /** What Python takes for white space. */
    static final String SPACES = "\t\n\u000b\f\r\u001c\u001d\u001e\u001f \u0085\u00a0\u1680\u2000\u2001\u2002"
            + "\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000";

    private final Runner runner;
    private final TokenFeatures features;

    /**
     * Makes a generator of the parts of a .tflite file.
     *
     * @param bundle of the file
     * @param runner of the same file; it is closed with the generator
     * @throws IllegalArgumentException the model is not a language model in one direction, or its bundle is damaged
     */
    public Generator(Bundle bundle, Runner runner) {
        if (!bundle.task().equals("causal_language_model")) {
            throw new IllegalArgumentException(
                    "this model's task is " + bundle.task() + ", not that of a language model in one direction");
        }
        this.runner = runner;
        features = new TokenFeatures(bundle);
        if (!runner.signatures().contains("step")) {
            throw new IllegalArgumentException("signatures " + runner.signatures() + ": step is needed");
        }
    }

    /**
     * The continuation of a text, without it.
     *
     * @param prompt the text; "" is the beginning of one
     * @param sampler draws the tokens
     * @param length tokens to generate
     */
    public String generate(String prompt, Sampler sampler, int length) {
        StringBuilder text = new StringBuilder();
        for (Iterator<String> parts = stream(prompt, sampler, length, 0); parts.hasNext(); ) {
            text.append(parts.next());
        }
        return text.toString();
    }

    /**
     * The continuation of a text, a string for each token: {@code next()} runs the model once, the first time once for
     * each token of the prompt.
     *
     * @param prompt the text; "" is the beginning of one
     * @param sampler draws the tokens
     * @param length tokens to generate
     * @param lines the end after so many lines; 0: none
     * @throws IllegalArgumentException {@code length} is below 1, or {@code lines} below 0
     */
    public Iterator<String> stream(String prompt, Sampler sampler, int length, int lines) {
        if (length < 1 || lines < 0) {
            throw new IllegalArgumentException("length " + length + ", lines " + lines + ": at least 1, at least 0");
        }
        return new Stream(prompt, sampler, length, lines);
    }

    private final class Stream implements Iterator<String> {
        private final Sampler sampler;
        private final int length;
        private final boolean spaced; // the prompt ends with white space
        private final TokenFeatures.Writer writer;
        private int linesLeft;
        private int[] unread; // tokens that the model is to read
        private float[] state;
        private int step;

        Stream(String prompt, Sampler sampler, int length, int lines) {
            this.sampler = sampler;
            this.length = length;
            linesLeft = lines == 0 ? -1 : lines;
            unread = features.prompt(prompt);
            boolean space = !prompt.isEmpty() && SPACES.indexOf(prompt.charAt(prompt.length() - 1)) >= 0;
            spaced = space && features.spaced();
            writer = features.new Writer(unread[unread.length - 1]);
        }

        @Override
        public boolean hasNext() {
            return step < length && linesLeft != 0;
        }

        @Override
        public String next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            float[] logits = null;
            for (int token : unread) {
                Map<String, float[]> outputs = run(token, state);
                logits = outputs.get("logits").clone();
                state = outputs.get("state");
            }
            for (int id : features.never) {
                logits[id] = Float.NEGATIVE_INFINITY;
            }
            int token = sampler.sample(logits, step);
            String text = writer.next(token);
            boolean cut = step == 0 && spaced && text.startsWith(" ");
            unread = new int[] {token};
            linesLeft -= token == features.end ? 1 : 0;
            step++;
            return cut ? text.substring(1) : text;
        }

        @Override
        public void remove() { // no default method before API 24
            throw new UnsupportedOperationException();
        }
    }

    private synchronized Map<String, float[]> run(int token, float[] state) {
        return runner.step(token, state);
    }

    /** Frees the memory of the model. */
    @Override
    public synchronized void close() {
        runner.close();
    }
}
