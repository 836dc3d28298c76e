package org.keras_ctxrep;

import java.util.List;
import java.util.Map;

/**
 * What runs the signatures of a .tflite file; {@link LiteRtRunner} does with LiteRT.
 *
 * <p>A {@link Model} and a {@link Generator} call it from one thread at a time.
 */
public interface Runner extends AutoCloseable {
    /**
     * The names of the signatures: "length_16", "length_32", ..., of a decoder also "beam_16", ..., or of a language model
     * in one direction "step".
     */
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

    /**
     * Runs the signature "step" of a language model in one direction.
     *
     * @param token the next token of the text
     * @param state that of the step before; null: zeros, at the beginning of a text
     * @return "logits" of the token after it, and "state"
     */
    default Map<String, float[]> step(int token, float[] state) {
        throw new UnsupportedOperationException("this runner runs no language models");
    }

    /**
     * One of the models of a file with several.
     *
     * @param model its name
     * @return what runs the signatures of this model alone; closing it closes the file
     */
    default Runner of(String model) {
        return new Part(this, model + "/");
    }

    /** Frees the memory of the model. */
    @Override
    void close();
}
