package org.tensorflow.lite;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Map;

/**
 * The part of LiteRT's class of this name that LiteRtRunner uses, to compile it with.
 *
 * <p>It has one signature: "a" of three numbers to "double", twice each, and "rounded", whole numbers of a fourth of each;
 * and "step", whose "logits" are the token and the sum of the state, and which adds the token to the two numbers of it.
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
        return new String[] {"length_3", "step"};
    }

    public String[] getSignatureInputs(String signatureKey) {
        return new String[] {"a"};
    }

    public String[] getSignatureOutputs(String signatureKey) {
        return new String[] {"double", "rounded"};
    }

    public Tensor getInputTensorFromSignature(String inputName, String signatureKey) {
        return getOutputTensorFromSignature(inputName, signatureKey);
    }

    public Tensor getOutputTensorFromSignature(String outputName, String signatureKey) {
        return new Tensor() {
            @Override
            public DataType dataType() {
                return outputName.equals("rounded") ? DataType.INT32 : DataType.FLOAT32;
            }

            @Override
            public int numElements() {
                return signatureKey.equals("step") ? 2 : 3;
            }
        };
    }

    public void runSignature(Map<String, Object> inputs, Map<String, Object> outputs, String signatureKey) {
        if (!closed && signatureKey.equals("step") && inputs.size() == 3) {
            int token = ((IntBuffer) inputs.get("token_ids")).get();
            FloatBuffer state = (FloatBuffer) inputs.get("state");
            float[] before = {state.get(), state.get()};
            int mask = ((IntBuffer) inputs.get("mask")).get();
            ((FloatBuffer) outputs.get("logits")).put(new float[] {token, before[0] + before[1]});
            ((FloatBuffer) outputs.get("state")).put(new float[] {before[0] + token * mask, before[1] + token * mask});
            return;
        }
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
