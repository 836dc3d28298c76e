package org.keras_ctxrep;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.tensorflow.lite.DataType;
import org.tensorflow.lite.Interpreter;
import org.tensorflow.lite.Tensor;

/** Runs the signatures of a .tflite file with LiteRT's Interpreter; the only class that needs LiteRT. */
public final class LiteRtRunner implements Runner {
    private final Interpreter interpreter;

    /**
     * Makes an interpreter of a file.
     *
     * @param file the file, mapped into memory, or a direct buffer in native byte order; it must not be changed
     * @param threads of LiteRT
     */
    public LiteRtRunner(ByteBuffer file, int threads) {
        interpreter = new Interpreter(file, new Interpreter.Options().setNumThreads(threads));
    }

    @Override
    public List<String> signatures() {
        return Arrays.asList(interpreter.getSignatureKeys());
    }

    @Override
    public List<String> inputs(String signature) {
        return Arrays.asList(interpreter.getSignatureInputs(signature));
    }

    @Override
    public List<String> outputs(String signature) {
        return Arrays.asList(interpreter.getSignatureOutputs(signature));
    }

    @Override
    public Map<String, float[]> run(String signature, Map<String, int[]> inputs, List<String> outputs) {
        Map<String, Object> given = new HashMap<>();
        for (Map.Entry<String, int[]> input : inputs.entrySet()) {
            given.put(input.getKey(), buffer(input.getValue()));
        }
        return runBuffers(signature, given, outputs);
    }

    @Override
    public Map<String, float[]> step(int token, float[] state) {
        Map<String, Object> given = new HashMap<>();
        given.put("token_ids", buffer(new int[] {token}));
        given.put("mask", buffer(new int[] {1}));
        int size = state == null
                ? interpreter.getInputTensorFromSignature("state", "step").numElements()
                : state.length;
        FloatBuffer buffer = ByteBuffer.allocateDirect(4 * size).order(ByteOrder.nativeOrder()).asFloatBuffer();
        if (state != null) {
            buffer.put(state);
            buffer.rewind();
        }
        given.put("state", buffer);
        return runBuffers("step", given, Arrays.asList("logits", "state"));
    }

    private static IntBuffer buffer(int[] values) {
        IntBuffer buffer = ByteBuffer.allocateDirect(4 * values.length).order(ByteOrder.nativeOrder()).asIntBuffer();
        buffer.put(values);
        buffer.rewind();
        return buffer;
    }

    private Map<String, float[]> runBuffers(String signature, Map<String, Object> given, List<String> outputs) {
        Map<String, Object> buffers = new HashMap<>();
        for (String name : outputs) {
            Tensor tensor = interpreter.getOutputTensorFromSignature(name, signature);
            int size = tensor.numElements();
            boolean whole = tensor.dataType() == DataType.INT32;
            buffers.put(name, whole ? IntBuffer.allocate(size) : FloatBuffer.allocate(size));
        }
        interpreter.runSignature(given, buffers, signature);
        Map<String, float[]> values = new HashMap<>();
        for (Map.Entry<String, Object> output : buffers.entrySet()) {
            values.put(output.getKey(), floats(output.getValue()));
        }
        return values;
    }

    private static float[] floats(Object buffer) {
        if (buffer instanceof FloatBuffer) {
            return ((FloatBuffer) buffer).array();
        }
        int[] whole = ((IntBuffer) buffer).array();
        float[] values = new float[whole.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = whole[i];
        }
        return values;
    }

    @Override
    public void close() {
        interpreter.close();
    }
}
