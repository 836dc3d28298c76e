package org.keras_ctxrep;

import java.util.List;
import java.util.Map;

/**
 * What runs the signatures of a .tflite file; {@link LiteRtRunner} does with LiteRT.
 *
 * <p>A {@link Model} calls it from one thread at a time.
 */
public interface Runner extends AutoCloseable {
    /** The names of the signatures: "length_16", "length_32", ... */
    List<String> signatures();

    /**
     * The names of a signature's inputs.
     *
     * @param signature its name
     */
    List<String> inputs(String signature);

    /**
     * The names of a signature's outputs.
     *
     * @param signature its name
     */
    List<String> outputs(String signature);

    /**
     * Runs a signature.
     *
     * @param signature its name
     * @param inputs the values of all of its inputs by name, several axes one row behind the other
     * @param outputs the names of the outputs to return
     * @return their values, likewise; whole numbers as floats
     */
    Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> outputs);

    /** Frees the memory of the model. */
    @Override
    void close();
}
