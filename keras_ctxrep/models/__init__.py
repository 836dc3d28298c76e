"""The models: functions from a config to a plain `keras.Model`.

Encoders take {"char_ids", "mask"} or {"token_ids", "segment_ids", "mask"} and return {"layers", "sequence", "pooled"};
the heads in `heads` work with every encoder.
"""
