package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The signatures of a file whose names begin with that of a model. */
final class Part implements Runner {
    private final Runner file;
    private final String prefix;

    Part(Runner file, String prefix) {
        this.file = file;
        this.prefix = prefix;
    }

    @Override
    public List<String> signatures() {
        List<String> names = new ArrayList<>();
        for (String name : file.signatures()) {
            if (name.startsWith(prefix)) {
                names.add(name.substring(prefix.length()));
            }
        }
        return names;
    }

    @Override
    public List<String> inputs(String signature) {
        return file.inputs(prefix + signature);
    }

    @Override
    public List<String> outputs(String signature) {
        return file.outputs(prefix + signature);
    }

    @Override
    public Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> outputs) {
        return file.run(prefix + signature, inputs, outputs);
    }

    @Override
    public void close() {
        file.close();
    }
}
