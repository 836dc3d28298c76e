package org.tensorflow.lite;

/** The part of LiteRT's interface of this name that LiteRtRunner uses. */
public interface Tensor {
    DataType dataType();

    int numElements();
}
