package org.tensorflow.lite;

/** The part of LiteRT's enumeration of this name that LiteRtRunner uses. */
public enum DataType {
    FLOAT32,
    INT32
}
