"""The models: functions from a config to a plain `keras.Model`.

Encoders take {"char_ids", "mask"} or {"token_ids", "segment_ids", "mask"} and give {"layers", "sequence", "pooled"};
a head from `heads` fits every encoder.
"""
