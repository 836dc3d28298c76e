package org.keras_ctxrep;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * What a model is and how its text is prepared: the files bundle.json, vocab.txt or tokenizer.json, and card.md.
 *
 * <p>A .tflite file holds them in a zip archive at its end, stored without compression, which LiteRT ignores.
 */
public final class Bundle {
    private static final String MODEL = "model.tflite";
    private static final int ENTRY = 0x02014b50; // signatures of the records of a zip archive
    private static final int END = 0x06054b50;
    private static final int END_SIZE = 22;

    final String family;
    final int maxLength;
    final boolean lowercase;
    final boolean stripAccents;
    final boolean splitCjk;
    final boolean readsWords;
    final boolean readsPair;
    final boolean readsWindows;
    final boolean indicate;
    final int marks;
    final List<String> vocab;
    final Map<String, Object> config;
    final Map<String, Object> extraEmbeddings;
    final Map<String, Object> settings;
    final Map<String, Object> specialTokens; // of word pieces, where they are not BERT's
    final Subwords subwords; // the tokenizer of tokenizer.json, or null
    final Map<String, Object> roles; // name -> what is put before a text; "" before one without a role
    final String network; // over the encoder, or empty
    private final String task;
    private final List<String> labels;
    private final String card;
    private final String hash; // of the model in the file, or null
    private final int modelSize; // bytes before the archive

    /**
     * Reads a bundle from its files.
     *
     * @param files the contents of bundle.json, vocab.txt, tokenizer.json and card.md by name; all but the first where
     *     there are any
     * @throws IllegalArgumentException one of them is missing, damaged or of another version
     */
    public Bundle(Map<String, byte[]> files) {
        this(files, 0);
    }

    private Bundle(Map<String, byte[]> files, int modelSize) {
        this.modelSize = modelSize;
        try {
            Map<String, Object> fields = object(Json.parse(text(files, "bundle.json")));
            if (((Number) fields.get("format")).intValue() != 2) {
                throw new IllegalArgumentException("its format is not 2; convert the model again");
            }
            family = (String) fields.get("family");
            task = (String) fields.get("task");
            maxLength = ((Number) fields.get("max_length")).intValue();
            labels = Collections.unmodifiableList(strings(fields.get("labels")));
            lowercase = flag(fields, "lowercase", true);
            stripAccents = flag(fields, "strip_accents", lowercase);
            splitCjk = flag(fields, "split_cjk", true);
            Map<String, Object> reads = object(fields.get("reads"));
            readsWords = flag(reads, "words", false);
            readsPair = flag(reads, "pair", false);
            readsWindows = flag(reads, "windows", false);
            indicate = flag(reads, "indicate", false);
            marks = number(reads, "marks", 0);
            config = object(fields.get("config"));
            extraEmbeddings = object(fields.get("extra_embeddings"));
            settings = object(fields.get("settings"));
            specialTokens = object(fields.get("special_tokens"));
            roles = object(fields.get("roles"));
            Object kind = object(fields.get("stack")).get("kind");
            network = kind == null ? "" : (String) kind;
            Map<String, Object> hashes = object(fields.get("files"));
            hash = (String) hashes.get(MODEL);
            boolean read = hashes.containsKey("tokenizer.json");
            subwords = read ? Subwords.of(object(Json.parse(text(files, "tokenizer.json"))), specialTokens) : null;
            boolean words = hashes.containsKey("vocab.txt");
            vocab = read ? subwords.pieces : words ? lines(text(files, "vocab.txt")) : Collections.emptyList();
            card = files.containsKey("card.md") ? text(files, "card.md") : "";
        } catch (ClassCastException | NullPointerException | IllegalArgumentException error) {
            throw new IllegalArgumentException("bundle.json is damaged or of another version: " + error.getMessage());
        }
        if (family == null || task == null || maxLength < 1) {
            throw new IllegalArgumentException("bundle.json is damaged: family, task or max_length is missing");
        }
    }

    /**
     * Reads the bundle at the end of a .tflite file.
     *
     * @param file the whole file, for example mapped into memory; its position and limit do not matter
     * @throws IllegalArgumentException there is no bundle in it, or it is damaged
     */
    public static Bundle of(ByteBuffer file) {
        return of(file, "");
    }

    /**
     * Reads the bundle of one of the models of a .tflite file with several.
     *
     * @param file as above
     * @param model its name; "" of the one model of a file
     * @throws IllegalArgumentException there is no bundle of this name in it, or it is damaged
     */
    public static Bundle of(ByteBuffer file, String model) {
        ByteBuffer data = file.duplicate().order(ByteOrder.LITTLE_ENDIAN);
        data.clear();
        int end = data.limit() - END_SIZE;
        for (int last = Math.max(0, end - 0xFFFF); end >= last && data.getInt(end) != END; end--) {}
        if (end < 0 || data.getInt(end) != END) {
            throw new IllegalArgumentException("no bundle in this file; write it with `ctxrep tflite`");
        }
        try {
            int directory = end - data.getInt(end + 12);
            int behind = directory - data.getInt(end + 16); // bytes before those that the archive counts
            int size = data.limit();
            Map<String, byte[]> files = new HashMap<>();
            for (int entry = directory; entry < end; ) {
                int header = data.getInt(entry + 42) + behind;
                if (data.getInt(entry) != ENTRY || data.getShort(entry + 10) != 0) {
                    throw new IllegalArgumentException("its archive is damaged or compressed");
                }
                int name = data.getShort(entry + 28) & 0xFFFF;
                int more = (data.getShort(entry + 30) & 0xFFFF) + (data.getShort(entry + 32) & 0xFFFF);
                int begin = header + 30 + (data.getShort(header + 26) & 0xFFFF) + (data.getShort(header + 28) & 0xFFFF);
                files.put(text(bytes(data, entry + 46, name)), bytes(data, begin, data.getInt(entry + 24)));
                size = Math.min(size, header);
                entry += 46 + name + more;
            }
            String prefix = model.isEmpty() ? "" : model + "/";
            Map<String, byte[]> own = new HashMap<>();
            for (String name : new String[] {"bundle.json", "vocab.txt", "tokenizer.json", "card.md"}) {
                boolean shared = name.equals("vocab.txt") || name.equals("tokenizer.json");
                byte[] content = files.get(prefix + name);
                if (content == null && shared) {
                    content = files.get(name);
                }
                if (content != null) {
                    own.put(name, content);
                }
            }
            if (!own.containsKey("bundle.json")) {
                throw new IllegalArgumentException("no bundle " + prefix + " in this file, which has " + files.keySet());
            }
            return new Bundle(own, size);
        } catch (IndexOutOfBoundsException error) {
            throw new IllegalArgumentException("the archive at the end of this file is damaged");
        }
    }

    /** The task that the model was trained for, "classify" for example. */
    public String task() {
        return task;
    }

    /** The names of the classes in the order of the logits; empty if the task has none. */
    public List<String> labels() {
        return labels;
    }

    /** The model card in Markdown: data, licence, figures, limits; empty if there is none. */
    public String card() {
        return card;
    }

    /**
     * Whether the model in a file is the one that the bundle was written with; it reads the whole file.
     *
     * @param file the file, as given to {@link #of}
     */
    public boolean matches(ByteBuffer file) {
        ByteBuffer data = file.duplicate();
        data.clear();
        data.limit(modelSize);
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update(data);
            StringBuilder hexadecimal = new StringBuilder();
            for (byte value : digest.digest()) {
                hexadecimal.append(Character.forDigit(value >> 4 & 15, 16)).append(Character.forDigit(value & 15, 16));
            }
            return hexadecimal.toString().equals(hash);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    /** What an encoder reads before a text of a role, null of none. */
    String prefix(String role) {
        boolean known = task.equals("embed") && roles.containsKey(role);
        if (role != null && !known) {
            List<String> names = new ArrayList<>(roles.keySet());
            names.remove("");
            String has = names.isEmpty() ? "no roles" : String.join(", ", names);
            throw new IllegalArgumentException("role=" + role + ": this model has " + has);
        }
        Object prefix = task.equals("embed") ? roles.get(role == null ? "" : role) : null;
        return prefix == null ? "" : (String) prefix;
    }

    /** A number of a part of the bundle. */
    static int number(Map<String, Object> fields, String name, int otherwise) {
        Object value = fields.get(name);
        return value == null ? otherwise : ((Number) value).intValue();
    }

    /** A truth value of a part of the bundle. */
    static boolean flag(Map<String, Object> fields, String name, boolean otherwise) {
        Object value = fields.get(name);
        return value == null ? otherwise : (Boolean) value;
    }

    /** A part of the bundle that is an object; of null without fields. */
    static Map<String, Object> object(Object value) {
        Map<String, Object> object = new HashMap<>();
        if (value != null) {
            for (Map.Entry<?, ?> field : ((Map<?, ?>) value).entrySet()) {
                object.put((String) field.getKey(), field.getValue());
            }
        }
        return object;
    }

    private static List<String> strings(Object value) {
        List<String> strings = new ArrayList<>();
        for (Object string : (List<?>) value) {
            strings.add((String) string);
        }
        return strings;
    }

    private static String text(Map<String, byte[]> files, String name) {
        byte[] data = files.get(name);
        if (data == null) {
            throw new IllegalArgumentException(name + " is missing");
        }
        return text(data);
    }

    private static String text(byte[] data) {
        return new String(data, StandardCharsets.UTF_8);
    }

    private static List<String> lines(String text) {
        String whole = text.endsWith("\n") ? text.substring(0, text.length() - 1) : text;
        return Arrays.asList(whole.split("\n", -1));
    }

    private static byte[] bytes(ByteBuffer data, int begin, int size) {
        if (begin < 0 || size < 0 || size > data.limit() - begin) {
            throw new IndexOutOfBoundsException();
        }
        byte[] bytes = new byte[size];
        ByteBuffer part = data.duplicate();
        part.position(begin);
        part.get(bytes);
        return bytes;
    }
}
