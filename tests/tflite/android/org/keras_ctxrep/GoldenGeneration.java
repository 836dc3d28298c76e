package org.keras_ctxrep;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** Compares sampling and language models with what the Python package gives, as tests/golden_generation.py writes it. */
public final class GoldenGeneration {
    private int compared;
    private int differences;

    private GoldenGeneration() {}

    /** Compares the files of a folder; the status is 1 if a value differs. */
    public static void main(String[] arguments) throws IOException {
        GoldenGeneration golden = new GoldenGeneration();
        for (Map<?, ?> line : lines(Path.of(arguments[0], "sampling.jsonl"))) {
            golden.draws(line);
        }
        try (DirectoryStream<Path> folders = Files.newDirectoryStream(Path.of(arguments[0]))) {
            for (Path folder : folders) {
                if (Files.exists(folder.resolve("texts.jsonl"))) {
                    golden.texts(folder);
                }
            }
        }
        System.out.println(golden.compared + " values, " + golden.differences + " differences");
        System.exit(golden.differences == 0 ? 0 : 1);
    }

    private static List<Map<?, ?>> lines(Path path) throws IOException {
        List<Map<?, ?>> lines = new ArrayList<>();
        for (String line : Files.readAllLines(path, StandardCharsets.UTF_8)) {
            lines.add((Map<?, ?>) Json.parse(line));
        }
        return lines;
    }

    private void check(Object expected, Object own, Object source) {
        compared++;
        if (!expected.equals(own) && ++differences <= 20) {
            System.out.println(source + ": expected " + expected + ", is " + own);
        }
    }

    private static Sampler sampler(Map<?, ?> options, Object seed) {
        Map<String, Number> values = new HashMap<>();
        for (String name : Arrays.asList("temperature", "top_k", "top_p", "min_p")) {
            boolean off = name.startsWith("t") && !name.equals("top_k"); // 1 leaves the filter out
            values.put(name, options.get(name) == null ? (Number) (off ? 1 : 0) : (Number) options.get(name));
        }
        return new Sampler(
                Long.parseLong((String) seed),
                values.get("temperature").doubleValue(),
                values.get("top_k").intValue(),
                values.get("top_p").doubleValue(),
                values.get("min_p").doubleValue());
    }

    private void draws(Map<?, ?> line) {
        List<?> given = (List<?>) line.get("logits");
        float[] logits = new float[given.size()];
        for (int id = 0; id < logits.length; id++) {
            logits[id] = given.get(id) == null ? Float.NEGATIVE_INFINITY : ((Number) given.get(id)).floatValue();
        }
        Sampler sampler = sampler((Map<?, ?>) line.get("options"), line.get("seed"));
        List<Object> left = new ArrayList<>();
        double[] scores = sampler.filtered(logits);
        for (int id = 0; id < scores.length; id++) {
            if (scores[id] > Double.NEGATIVE_INFINITY) {
                left.add((long) id);
            }
        }
        check(line.get("left"), left, line.get("options"));
        List<?> noise = (List<?>) line.get("noise");
        for (int id = 0; id < noise.size(); id++) {
            double expected = ((Number) noise.get(id)).doubleValue();
            check(true, Math.abs(expected - sampler.noise(0, id)) <= 1e-12 * Math.max(1, Math.abs(expected)), "noise");
        }
        List<Object> ids = new ArrayList<>();
        for (int step = 0; step < ((List<?>) line.get("ids")).size(); step++) {
            ids.add((long) sampler.sample(logits, step));
        }
        check(line.get("ids"), ids, line.get("options"));
    }

    private void texts(Path folder) throws IOException {
        Map<String, byte[]> files = new HashMap<>();
        for (String name : new String[] {"bundle.json", "vocab.txt", "tokenizer.json"}) {
            if (Files.exists(folder.resolve(name))) {
                files.put(name, Files.readAllBytes(folder.resolve(name)));
            }
        }
        Bundle bundle = new Bundle(files);
        TokenFeatures features = new TokenFeatures(bundle);
        Generator generator = new Generator(bundle, new Hashes(bundle.vocab.size()));
        for (Map<?, ?> line : lines(folder.resolve("texts.jsonl"))) {
            String prompt = (String) line.get("prompt");
            List<Object> ids = new ArrayList<>();
            for (int id : features.prompt(prompt)) {
                ids.add((long) id);
            }
            check(line.get("ids"), ids, prompt);
            Map<?, ?> options = (Map<?, ?>) line.get("options");
            int length = ((Number) options.get("length")).intValue();
            int ends = options.get("lines") == null ? 0 : ((Number) options.get("lines")).intValue();
            StringBuilder text = new StringBuilder();
            Iterator<String> parts = generator.stream(prompt, sampler(options, options.get("seed")), length, ends);
            parts.forEachRemaining(text::append);
            check(line.get("text"), text.toString(), prompt);
        }
    }

    /** As `step` of golden_generation.py. */
    private static final class Hashes implements Runner {
        private final int vocabulary;

        Hashes(int vocabulary) {
            this.vocabulary = vocabulary;
        }

        @Override
        public List<String> signatures() {
            return Collections.singletonList("step");
        }

        @Override
        public List<String> inputs(String signature) {
            return Arrays.asList("token_ids", "mask", "state");
        }

        @Override
        public List<String> outputs(String signature) {
            return Arrays.asList("logits", "state");
        }

        @Override
        public Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> outputs) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Map<String, float[]> step(int token, float[] state) {
            long first = (31 * (state == null ? 0 : (long) state[0]) + 17L * token + 7) % 9973;
            long count = 1 + (state == null ? 0 : (long) state[1]);
            float[] logits = new float[vocabulary];
            for (int i = 0; i < vocabulary; i++) {
                logits[i] = ((first * (i + 3) + count * i * i) % 101) / 16f;
            }
            return Map.of("logits", logits, "state", new float[] {first, count});
        }

        @Override
        public void close() {}
    }
}
