package org.tensorflow.lite;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Map;

/**
 * The part of LiteRT's class of this name that LiteRtRunner uses, to compile it with.
 *
 * <p>It has one signature: "a" of three numbers to "double", twice each, and "rounded", whole numbers of a fourth of each.
 * As in LiteRT inputs are read from where their buffers are, and outputs are put into theirs.
 */
public final class Interpreter implements AutoCloseable {
    public static class Options {
        private int threads;

        public Options setNumThreads(int numThreads) {
            threads = numThreads;
            return this;
        }
    }

    private boolean closed;

    public Interpreter(ByteBuffer byteBuffer, Options options) {
        if (!byteBuffer.isDirect() || options.threads < 1) {
            throw new IllegalArgumentException();
        }
    }

    public String[] getSignatureKeys() {
        return new String[] {"length_3"};
    }

    public String[] getSignatureInputs(String signatureKey) {
        return new String[] {"a"};
    }

    public String[] getSignatureOutputs(String signatureKey) {
        return new String[] {"double", "rounded"};
    }

    public Tensor getOutputTensorFromSignature(String outputName, String signatureKey) {
        return new Tensor() {
            @Override
            public DataType dataType() {
                return outputName.equals("double") ? DataType.FLOAT32 : DataType.INT32;
            }

            @Override
            public int numElements() {
                return 3;
            }
        };
    }

    public void runSignature(Map<String, Object> inputs, Map<String, Object> outputs, String signatureKey) {
        if (closed || !signatureKey.equals("length_3") || inputs.size() != 1) {
            throw new IllegalStateException();
        }
        IntBuffer input = (IntBuffer) inputs.get("a");
        FloatBuffer twice = (FloatBuffer) outputs.get("double");
        IntBuffer rounded = (IntBuffer) outputs.get("rounded");
        while (input.hasRemaining()) {
            int number = input.get();
            twice.put(2f * number);
            if (rounded != null) {
                rounded.put(number / 4);
            }
        }
    }

    @Override
    public void close() {
        closed = true;
    }
}
