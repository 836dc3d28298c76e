package org.keras_ctxrep;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.StringJoiner;
import java.util.stream.Collectors;

/** Compares text preparation and decoding with what the Python package gives, as tests/golden.py writes it. */
public final class Golden {
    private static final double TOLERANCE = 1e-9; // of probabilities, relative to 1
    private int compared;
    private final List<String> differences = new ArrayList<>();

    private Golden() {}

    /** Compares the models of a folder, or measures the time of a model's text preparation. */
    public static void main(String[] arguments) throws IOException {
        if (arguments[0].equals("time")) {
            time(files(Path.of(arguments[1])), Files.readString(Path.of(arguments[2])));
            return;
        }
        if (arguments[0].equals("serve")) {
            serve(Path.of(arguments[1]));
            return;
        }
        if (arguments[0].equals("write")) {
            write(Path.of(arguments[1]));
            return;
        }
        if (arguments[0].equals("subwords")) {
            subwords(Path.of(arguments[1]));
            return;
        }
        if (arguments[0].equals("litert")) {
            litert();
            return;
        }
        if (arguments[0].equals("roles")) {
            roles(new Bundle(files(Path.of(arguments[1]))), Arrays.asList(arguments).subList(2, arguments.length));
            return;
        }
        if (arguments[0].equals("bundle")) {
            bundle(Path.of(arguments[1]), arguments.length > 2 ? arguments[2] : "");
            return;
        }
        int failures = 0;
        try (DirectoryStream<Path> folders = Files.newDirectoryStream(Path.of(arguments[1]))) {
            for (Path folder : folders) {
                Golden golden = new Golden();
                golden.compare(folder);
                System.out.println(folder.getFileName() + ": " + golden.compared + " values, "
                        + golden.differences.size() + " differences");
                golden.differences.stream().limit(5).forEach(System.out::println);
                failures += golden.differences.size();
            }
        }
        System.exit(failures == 0 ? 0 : 1);
    }

    private static Map<String, byte[]> files(Path folder) throws IOException {
        Map<String, byte[]> files = new HashMap<>();
        for (String name : new String[] {"bundle.json", "vocab.txt", "tokenizer.json"}) {
            if (Files.exists(folder.resolve(name))) {
                files.put(name, Files.readAllBytes(folder.resolve(name)));
            }
        }
        return files;
    }

    private static void bundle(Path path, String model) throws IOException {
        try (FileChannel channel = FileChannel.open(path)) {
            ByteBuffer file = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            Bundle bundle = Bundle.of(file, model);
            String text = String.join(",", bundle.labels()) + " " + bundle.card() + " " + bundle.vocab;
            System.out.println(bundle.task() + " " + bundle.matches(file) + " " + text);
        } catch (IllegalArgumentException error) {
            System.out.println(error.getMessage());
        }
    }

    /** Compares the pieces of texts, and of words of texts that come split, by each tokenizer of a folder. */
    private static void subwords(Path folder) throws IOException {
        Map<String, Object> special = new HashMap<>();
        special.putAll(Map.of("pad", "<pad>", "unk", "<unk>", "cls", "<s>", "sep", "</s>", "mask", "<mask>"));
        try (DirectoryStream<Path> tokenizers = Files.newDirectoryStream(folder)) {
            for (Path path : tokenizers) {
                String content = Files.readString(path.resolve("tokenizer.json"));
                Subwords subwords = Subwords.of(Bundle.object(Json.parse(content)), special);
                int compared = 0;
                int different = 0;
                for (Map<?, ?> line : lines(path.resolve("pieces.jsonl"))) {
                    String text = (String) line.get("text");
                    if (line.get("place").equals("later")) {
                        continue;
                    }
                    Pieces pieces = line.get("place").equals("word") ? subwords.encodeWord(text) : subwords.encode(text);
                    List<Object> own = new ArrayList<>();
                    for (int i = 0; i < pieces.size; i++) {
                        List<Object> piece = new ArrayList<>(Arrays.asList((long) pieces.ids[i]));
                        piece.addAll((List<?>) points(text, pieces.begins[i], pieces.ends[i]));
                        piece.add((long) pieces.words[i]);
                        own.add(piece);
                    }
                    compared++;
                    if (!own.equals(line.get("pieces")) && different++ < 5) {
                        System.out.println(json(text) + ": " + own + ", not " + line.get("pieces"));
                    }
                }
                System.out.println(path.getFileName() + ": " + compared + " texts, " + different + " differences");
            }
        }
    }

    /** Prints the ids of texts of each role as vectors, and the cosine of the first text as a query and as a passage. */
    private static void roles(Bundle bundle, List<String> texts) {
        try (Model model = new Model(bundle, new Ids())) {
            for (String role : new String[] {"query", "passage", null}) {
                System.out.println(Arrays.deepToString(model.encode(texts, role)));
            }
            System.out.println(model.search(texts.get(0), texts.subList(0, 1), 1).get(0).score);
            model.encode(texts, "title");
        } catch (IllegalArgumentException error) {
            System.out.println(error.getMessage());
        }
    }

    /** A runner whose vector of a text is its ids. */
    private static final class Ids implements Runner {
        @Override
        public List<String> signatures() {
            return Collections.singletonList("length_8");
        }

        @Override
        public List<String> inputs(String signature) {
            return Collections.singletonList("token_ids");
        }

        @Override
        public List<String> outputs(String signature) {
            return Collections.singletonList("vector");
        }

        @Override
        public Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> outputs) {
            int[] ids = inputs.get("token_ids");
            float[] vector = new float[ids.length];
            for (int i = 0; i < ids.length; i++) {
                vector[i] = ids[i];
            }
            return Collections.singletonMap("vector", vector);
        }

        @Override
        public void close() {}
    }

    private static void litert() {
        try (Runner runner = new LiteRtRunner(ByteBuffer.allocateDirect(8), 2)) {
            String name = runner.signatures().get(0);
            Map<String, int[]> inputs = Collections.singletonMap("a", new int[] {1, -2, 9});
            Map<String, float[]> all = runner.run(name, inputs, runner.outputs(name));
            Map<String, float[]> one = runner.run(name, inputs, Collections.singletonList("double"));
            System.out.println(runner.inputs(name) + " " + Arrays.toString(all.get("double")) + " "
                    + Arrays.toString(all.get("rounded")) + " " + one.keySet());
            Map<String, float[]> first = runner.step(5, null);
            Map<String, float[]> second = runner.step(7, first.get("state"));
            System.out.println(Arrays.toString(first.get("logits")) + " " + Arrays.toString(second.get("logits")));
        }
        try (Runner part = new Echo().of("names")) {
            String name = part.signatures().get(0);
            Map<String, float[]> values = part.run(name, Collections.emptyMap(), Collections.emptyList());
            System.out.println(part.signatures() + " " + part.inputs(name) + part.outputs(name) + values.keySet());
        }
    }

    /** A runner of two models, whose answers are the names that it is asked with. */
    private static final class Echo implements Runner {
        @Override
        public List<String> signatures() {
            return Arrays.asList("names/length_8", "other/length_16");
        }

        @Override
        public List<String> inputs(String signature) {
            return Collections.singletonList(signature);
        }

        @Override
        public List<String> outputs(String signature) {
            return Collections.singletonList(signature);
        }

        @Override
        public Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> outputs) {
            return Collections.singletonMap(signature, new float[0]);
        }

        @Override
        public void close() {}
    }

    private static void time(Map<String, byte[]> files, String text) {
        Features features = Features.of(new Bundle(files));
        Query query = new Query(text, null, null, null);
        long best = Long.MAX_VALUE;
        for (int round = 0; round < 3000; round++) {
            long begin = System.nanoTime();
            features.encode(query);
            best = Math.min(best, System.nanoTime() - begin);
        }
        System.out.printf("%.3f ms%n", best / 1e6);
    }

    private void compare(Path folder) throws IOException {
        Bundle bundle = new Bundle(files(folder));
        Features features = Features.of(bundle);
        Decoder decoder = new Decoder(bundle);
        for (Map<?, ?> line : lines(folder.resolve("cases.jsonl"))) {
            List<Row> rows = decoder.encode(features, query(line));
            List<?> windows = (List<?>) line.get("windows");
            check(windows.size(), rows.size(), "windows", line);
            for (int i = 0; i < Math.min(windows.size(), rows.size()); i++) {
                row(features, rows.get(i), (Map<?, ?>) windows.get(i), line);
            }
        }
        for (Map<?, ?> line : lines(folder.resolve("answers.jsonl"))) {
            Outputs runner = new Outputs(bundle, (Map<?, ?>) line.get("outputs"));
            Model model = new Model(bundle, runner);
            Query query = query(line);
            Map<?, ?> expected = (Map<?, ?>) line.get("answer");
            if (expected.containsKey("error")) { // its other keys are methods that throw
                expected = Collections.singletonMap("error", expected.get("error"));
            }
            near(expected, answer(bundle, query, predict(model, query)), "answer", line);
        }
        if (Files.exists(folder.resolve("search.jsonl"))) {
            vectors(bundle, lines(folder.resolve("answers.jsonl")), lines(folder.resolve("search.jsonl")));
        }
    }

    /** The vectors of all texts at once, zeros of a text without words, and searches among given vectors. */
    private void vectors(Bundle bundle, List<Map<?, ?>> lines, List<Map<?, ?>> searches) {
        List<String> texts = new ArrayList<>();
        List<Object> outputs = new ArrayList<>();
        List<Map<?, ?>> empty = new ArrayList<>();
        for (Map<?, ?> line : lines) {
            if (line.get("outputs") == null) {
                empty.add(line);
                continue;
            }
            texts.add((String) line.get("text"));
            outputs.add(((List<?>) ((Map<?, ?>) line.get("outputs")).get("vector")).get(0));
        }
        for (Map<?, ?> line : empty) {
            String text = (String) line.get("text");
            Map<?, ?> first = Collections.singletonMap("vector", outputs.subList(0, 1));
            float[] zeros = new float[floats(outputs.get(0)).length];
            float[][] two = new Model(bundle, new Outputs(bundle, first)).encode(Arrays.asList(text, texts.get(0)));
            check(true, Arrays.equals(zeros, two[0]), "zeros beside others", line);
            check(true, Arrays.equals(floats(outputs.get(0)), two[1]), "a vector beside zeros", line);
            float[][] one = new Model(bundle, new Outputs(bundle, first)).encode(Collections.singletonList(text));
            check(true, Arrays.equals(zeros, one[0]), "zeros alone", line);
            try {
                new Model(bundle, new Outputs(bundle, first)).search(text, new Index(two), 1);
                check("an error", "none", "search", line);
            } catch (IllegalArgumentException error) {
                check(true, error.getMessage().endsWith(": no words in this text"), error.getMessage(), line);
            }
        }
        Model model = new Model(bundle, new Outputs(bundle, Collections.singletonMap("vector", outputs)));
        float[][] vectors = model.encode(texts);
        for (int i = 0; i < vectors.length; i++) {
            check(true, Arrays.equals(floats(outputs.get(i)), vectors[i]), "encode", lines.get(i));
        }
        model = new Model(bundle, new Outputs(bundle, Collections.singletonMap("vector", outputs)));
        List<Index.Match> matches = model.search(texts.get(0), texts.subList(1, texts.size()), 2);
        model = new Model(bundle, new Outputs(bundle, Collections.singletonMap("vector", outputs)));
        Index index = new Index(Arrays.copyOfRange(vectors, 1, vectors.length));
        check(matches(matches), matches(model.search(texts.get(0), index, 2)), "search", lines.get(0));
        for (Map<?, ?> line : searches) {
            Index given = new Index();
            ((List<?>) line.get("vectors")).forEach(vector -> given.add(floats(vector)));
            int top = ((Number) line.get("top")).intValue();
            near(line.get("matches"), matches(given.search(floats(line.get("query")), top)), "matches", line);
        }
    }

    private static List<Object> matches(List<Index.Match> matches) {
        List<Object> pairs = new ArrayList<>();
        matches.forEach(match -> pairs.add(Arrays.<Object>asList((long) match.row, match.score)));
        return pairs;
    }

    private static Prediction predict(Model model, Query query) {
        if (query.pair != null) {
            return model.predict(query.text, query.pair);
        }
        if (query.marks == null) {
            return query.text == null ? model.predict(query.words) : model.predict(query.text);
        }
        return query.text == null ? model.predict(query.words, query.marks) : model.predict(query.text, query.marks);
    }

    /** Answers to the queries of a model in the lines of the input, each of which ends with those of its outputs. */
    private static void serve(Path path) throws IOException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (FileChannel channel = FileChannel.open(path)) {
            Bundle bundle = Bundle.of(channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()));
            Model model = new Model(bundle, new Asked(input));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                Query query = query((Map<?, ?>) Json.parse(line));
                System.out.println(json(answer(bundle, query, predict(model, query))));
            }
        }
    }

    /** Continues the prompts in the lines of the input, each of which ends with those of its outputs. */
    private static void write(Path path) throws IOException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (FileChannel channel = FileChannel.open(path)) {
            Bundle bundle = Bundle.of(channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()));
            Generator generator = new Generator(bundle, new Asked(input));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                Map<?, ?> query = (Map<?, ?>) Json.parse(line);
                String text = generator.generate((String) query.get("prompt"), new Sampler((Long) query.get("seed")), 20);
                System.out.println(json(Map.of("text", text)));
            }
        }
    }

    private static String json(Object value) {
        StringJoiner values = new StringJoiner(", ");
        if (value instanceof Map) {
            ((Map<?, ?>) value).forEach((name, field) -> values.add(json(name) + ": " + json(field)));
            return "{" + values + "}";
        }
        if (value instanceof Iterable) {
            ((Iterable<?>) value).forEach(element -> values.add(json(element)));
            return "[" + values + "]";
        }
        if (!(value instanceof String)) {
            return String.valueOf(value);
        }
        StringBuilder string = new StringBuilder();
        for (char unit : ((String) value).toCharArray()) {
            string.append(String.format("\\u%04x", (int) unit));
        }
        return "\"" + string + "\"";
    }

    private void row(Features features, Row row, Map<?, ?> window, Map<?, ?> line) {
        Map<?, ?> expected = (Map<?, ?>) window.get("inputs");
        Map<String, int[]> inputs = features.inputs(row, Math.max(1, row.size));
        check(expected.keySet(), inputs.keySet(), "inputs", line);
        for (Object name : expected.keySet()) {
            List<Object> values = new ArrayList<>();
            flatten(expected.get(name), values);
            List<Object> own = new ArrayList<>();
            for (int value : inputs.get(name)) {
                own.add((long) value);
            }
            while (name.equals("starts") && own.size() > values.size()) { // padded with 0
                check(0L, own.remove(own.size() - 1), "padding of starts", line);
            }
            check(values, own, name, line);
        }
        if (window.get("offsets") != null) {
            check(window.get("offsets"), offsets(row, query(line)), "offsets", line);
        }
        if (window.get("spans") != null) {
            List<Object> spans = new ArrayList<>();
            for (int i = 0; i < row.wordBegins.length; i++) {
                spans.add(points(query(line).text, row.wordBegins[i], row.wordEnds[i]));
            }
            check(window.get("spans"), spans, "spans", line);
        }
        if (window.get("truncated") != null) {
            check(window.get("truncated"), row.truncated, "truncated", line);
        }
    }

    /** The offsets of a row's tokens in code points, each in its text or its word. */
    private static List<Object> offsets(Row row, Query query) {
        List<Object> offsets = new ArrayList<>();
        int word = 0;
        for (int i = 0; i < row.size; i++) {
            String text = row.ids == null || i < row.first ? query.text : query.pair;
            if (query.text == null) {
                for (int later = word; later < row.starts.length; later++) {
                    word = row.starts[later] >= 0 && row.starts[later] <= i ? later : word;
                }
                text = query.words.get(word);
            }
            offsets.add(points(text, row.begins[i], row.ends[i]));
        }
        return offsets;
    }

    /** A prediction as the Python package gives it, offsets in code points. */
    private static Map<String, Object> answer(Bundle bundle, Query query, Prediction prediction) {
        String text = query.text == null ? String.join(" ", query.words) : query.pair == null ? query.text : query.pair;
        Map<String, Object> own = new HashMap<>();
        if (prediction.truncated()) {
            own.put("truncated", true);
        }
        if (prediction.error() != null) {
            own.put("error", prediction.error());
            return own;
        }
        switch (bundle.task()) {
            case "embed":
                List<Object> vector = new ArrayList<>();
                for (float number : prediction.vector()) {
                    vector.add((double) number);
                }
                own.put("vector", vector);
                break;
            case "regress":
                own.put("value", prediction.value());
                break;
            case "tag":
            case "semantic_roles":
                own.put("words", words(text, prediction));
                if (bundle.labels().contains("O")) {
                    own.put(bundle.task().equals("tag") ? "entities" : "arguments", spans(text, prediction));
                }
                break;
            case "answer":
                own.putAll(candidate(text, prediction.answer()));
                own.remove("probability");
                own.put("null_score", prediction.nullScore());
                List<Object> best = new ArrayList<>();
                prediction.best().forEach(candidate -> best.add(candidate(text, candidate)));
                own.put("n_best", best);
                break;
            case "translate":
                own.putAll(translation(text, prediction));
                break;
            default:
                own.put("probabilities", prediction.probabilities());
                if (bundle.task().equals("multilabel")) {
                    own.put("labels", prediction.labels());
                } else {
                    own.put("label", prediction.label());
                    own.put("score", prediction.score());
                }
                if (bundle.task().equals("coreference")) {
                    own.put("name", prediction.name());
                }
        }
        return own;
    }

    private static Map<String, Object> translation(String text, Prediction prediction) {
        Map<String, Object> own = new HashMap<>();
        own.put("text", prediction.text());
        own.put("score", prediction.texts().get(0).score);
        if (prediction.texts().size() > 1) {
            List<Object> texts = new ArrayList<>();
            prediction.texts().forEach(each -> texts.add(Map.of("text", each.text, "score", each.score)));
            own.put("n_best", texts);
        }
        if (!prediction.finished()) {
            own.put("unfinished", true);
        }
        List<Object> alignment = new ArrayList<>();
        for (Prediction.Aligned aligned : prediction.alignment()) {
            Map<String, Object> fields = span(text, "token", aligned.token, aligned.start, aligned.end);
            fields.put("weight", aligned.weight);
            alignment.add(fields);
        }
        own.put("alignment", alignment);
        return own;
    }

    private static List<Object> words(String text, Prediction prediction) {
        List<Object> words = new ArrayList<>();
        for (Prediction.Word word : prediction.words()) {
            Map<String, Object> fields = span(text, "word", word.text, word.start, word.end);
            fields.put("label", word.label);
            fields.put("score", word.score);
            words.add(fields);
        }
        return words;
    }

    private static List<Object> spans(String text, Prediction prediction) {
        List<Object> spans = new ArrayList<>();
        for (Prediction.Span span : prediction.spans()) {
            Map<String, Object> fields = span(text, "text", span.text, span.start, span.end);
            fields.put("type", span.type);
            spans.add(fields);
        }
        return spans;
    }

    private static Map<String, Object> candidate(String text, Prediction.Candidate candidate) {
        Map<String, Object> fields = span(text, "answer", candidate.text, candidate.start, candidate.end);
        fields.put("score", candidate.score);
        fields.put("probability", candidate.probability);
        return fields;
    }

    private static Map<String, Object> span(String text, String name, String value, int start, int end) {
        Map<String, Object> fields = new HashMap<>();
        fields.put(name, value);
        List<?> points = (List<?>) points(text, start, end);
        fields.put("start", points.get(0));
        fields.put("end", points.get(1));
        return fields;
    }

    private static Object points(String text, int begin, int end) {
        List<Object> points = new ArrayList<>();
        points.add((long) text.codePointCount(0, begin));
        points.add((long) text.codePointCount(0, end));
        return points;
    }

    private void near(Object expected, Object own, String what, Map<?, ?> line) {
        if (expected instanceof Map && own instanceof Map) {
            Map<?, ?> fields = (Map<?, ?>) own;
            check(((Map<?, ?>) expected).keySet(), fields.keySet(), what, line);
            ((Map<?, ?>) expected).forEach((name, value) -> near(value, fields.get(name), what + "." + name, line));
        } else if (expected instanceof List && own instanceof List) {
            List<?> values = (List<?>) own;
            check(((List<?>) expected).size(), values.size(), what, line);
            for (int i = 0; i < Math.min(values.size(), ((List<?>) expected).size()); i++) {
                near(((List<?>) expected).get(i), values.get(i), what, line);
            }
        } else if (expected instanceof Number && own instanceof Double) {
            double difference = Math.abs(((Number) expected).doubleValue() - (Double) own);
            compared++;
            if (!(difference <= TOLERANCE * Math.max(1, Math.abs((Double) own)))) {
                check(expected, own, what, line);
            }
        } else {
            check(expected, own, what, line);
        }
    }

    private void check(Object expected, Object own, Object what, Map<?, ?> line) {
        compared++;
        if (!Objects.equals(expected, own)) {
            differences.add(what + ": expected " + expected + ", is " + own + " of " + line.get("text") + " | "
                    + line.get("pair") + " | " + line.get("words"));
        }
    }

    private static List<Map<?, ?>> lines(Path path) throws IOException {
        List<Map<?, ?>> lines = new ArrayList<>();
        for (String line : Files.readAllLines(path, StandardCharsets.UTF_8)) {
            lines.add((Map<?, ?>) Json.parse(line));
        }
        return lines;
    }

    private static Query query(Map<?, ?> line) {
        String text = line.get("words") == null ? (String) line.get("text") : null;
        List<String> words = text == null ? new ArrayList<>() : null;
        if (text == null) {
            ((List<?>) line.get("words")).forEach(word -> words.add((String) word));
        }
        int[][] marks = null;
        if (line.get("marks") != null) {
            List<?> spans = (List<?>) line.get("marks");
            marks = new int[spans.size()][2];
            for (int i = 0; i < 2 * marks.length; i++) {
                int edge = ((Number) ((List<?>) spans.get(i / 2)).get(i % 2)).intValue();
                marks[i / 2][i % 2] = text == null ? edge : text.offsetByCodePoints(0, edge);
            }
        }
        return new Query(text, words, (String) line.get("pair"), marks);
    }

    private static void flatten(Object values, List<Object> flat) {
        if (values instanceof List) {
            ((List<?>) values).forEach(value -> flatten(value, flat));
        } else {
            flat.add(values);
        }
    }

    private static float[] floats(Object nested) {
        List<Object> values = new ArrayList<>();
        flatten(nested, values);
        float[] numbers = new float[values.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = ((Number) values.get(i)).floatValue();
        }
        return numbers;
    }

    /** Gives the outputs of a line, those of one window after the other. */
    private static final class Outputs implements Runner {
        private final Bundle bundle;
        private final Map<?, ?> outputs;
        private int window;

        Outputs(Bundle bundle, Map<?, ?> outputs) {
            this.bundle = bundle;
            this.outputs = outputs;
        }

        @Override
        public List<String> signatures() {
            return Collections.singletonList(new Decoder(bundle).signatures() + bundle.maxLength);
        }

        @Override
        public List<String> inputs(String signature) {
            return Collections.singletonList("mask");
        }

        @Override
        public List<String> outputs(String signature) {
            List<String> names = new ArrayList<>();
            outputs.keySet().forEach(name -> names.add((String) name));
            return names;
        }

        @Override
        public Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> names) {
            Map<String, float[]> results = new HashMap<>();
            for (String name : names) {
                results.put(name, floats(((List<?>) outputs.get(name)).get(window)));
            }
            window++;
            return results;
        }

        @Override
        public void close() {}
    }

    /** Asks for outputs: prints a signature and its inputs, and reads a line of the outputs. */
    private static final class Asked implements Runner {
        private final BufferedReader input;

        Asked(BufferedReader input) {
            this.input = input;
        }

        @Override
        public Map<String, float[]> step(int token, float[] state) {
            Map<String, Object> given = new HashMap<>();
            given.put("token_ids", Collections.singletonList(token));
            given.put("mask", Collections.singletonList(1));
            List<Object> numbers = new ArrayList<>();
            for (int i = 0; state != null && i < state.length; i++) {
                numbers.add(state[i]);
            }
            given.put("state", numbers); // none: zeros
            Map<?, ?> outputs = (Map<?, ?>) ask(Map.of("signature", "step", "inputs", given));
            return Map.of("logits", floats(outputs.get("logits")), "state", floats(outputs.get("state")));
        }

        private List<String> names(String kind, String signature) {
            List<String> names = new ArrayList<>();
            ((List<?>) ask(Map.of("names", kind, "signature", signature))).forEach(name -> names.add((String) name));
            return names;
        }

        private Object ask(Map<String, Object> question) {
            try {
                System.out.println(json(question));
                return Json.parse(input.readLine());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public List<String> signatures() {
            return names("signatures", "");
        }

        @Override
        public List<String> inputs(String signature) {
            return names("inputs", signature);
        }

        @Override
        public List<String> outputs(String signature) {
            return names("outputs", signature);
        }

        @Override
        public Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> names) {
            Map<String, Object> given = new HashMap<>();
            for (Map.Entry<String, int[]> input : inputs.entrySet()) {
                given.put(input.getKey(), Arrays.stream(input.getValue()).boxed().collect(Collectors.toList()));
            }
            Map<?, ?> outputs = (Map<?, ?>) ask(Map.of("signature", signature, "inputs", given));
            Map<String, float[]> results = new HashMap<>();
            for (String name : names) {
                results.put(name, floats(outputs.get(name)));
            }
            return results;
        }

        @Override
        public void close() {}
    }
}
