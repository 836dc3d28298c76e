"""The LSTM of ELMo: projected and clipped, in either direction."""

from functools import cache
from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers import cpu
from keras_ctxrep.layers.initializers import RandomWeights
from keras_ctxrep.layers.streams import StreamLayer

__all__ = ["ProjectedLSTM"]

LOOP, BLOCK = 256, 64  # steps of the longest loop that is not one over blocks of steps, and of such a block
LARGE = 1 << 20  # numbers of a bfloat16 kernel that is multiplied with a single row by XLA


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class ProjectedLSTM(StreamLayer):
    """LSTM whose state is projected to fewer dimensions, with both cell and projection clipped.

    Sak et al. 2014, https://arxiv.org/abs/1402.1128, section 3.1, without peepholes; clips, gate order (input, new
    input, forget, output) and the forget bias of 1, which is not part of the weights, as in Peters et al. 2018 and
    https://github.com/allenai/bilm-tf:

        z = x W + h R + b;   c = clip(sigmoid(f + 1) c + sigmoid(i) tanh(j));   h = clip((sigmoid(o) tanh(c)) P)

    The input projection of all steps is one matrix product outside the loop. Masked positions give zeros and do not
    change the state, so that a backward layer starts at the last real token. On TensorFlow the loop ends at the batch's
    last real token, and training uses a custom gradient: the backward loop carries only the gradients of the two
    states, and each weight gradient is one matrix product after the loop. In half precision, mixed or not, the products
    are in the compute dtype, gates and states in float32.

    Args:
        units: width of the cell.
        projection: width of the output; None: no projection, the output is as wide as the cell.
        cell_clip: clip the cell to +-`cell_clip`; None: no clip (3 in every published model).
        projection_clip: clip the output to +-`projection_clip`; None: no clip (3 in every published model).
        go_backwards: read from the last token to the first; the output stays in the order of the input.
        streams: number of streams whose state is carried from call to call, without its gradient (truncated
            back-propagation through time): row k of a batch continues row k of the previous batch, over all replicas of
            a `tf.distribute.Strategy`. On one replica a smaller batch continues the first rows; the others keep their
            states.

    Call:
        x: float32 (B, T, D).
        mask: int32 (B, T), the real tokens first.
        state: float32 (B, P + units), initial projected state and cell; None: zeros, or the states of the streams.

    Returns: float32 (B, T, P), P = `projection` or `units`; with `state` also the state after the last real token.

    >>> layer = ProjectedLSTM(8, projection=4, cell_clip=3.0, projection_clip=3.0)
    >>> layer(ops.ones((2, 5, 6)), mask=ops.ones((2, 5), "int32")).shape
    TensorShape([2, 5, 4])
    """

    def __init__(
        self,
        units: int,
        projection: int | None = None,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
        go_backwards: bool = False,
        streams: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units, self.projection = units, projection
        self.cell_clip, self.projection_clip, self.go_backwards = cell_clip, projection_clip, go_backwards
        self.streams = streams

    @property
    def width(self) -> int:
        return self.projection or self.units

    def build(self, input_shape) -> None:
        gates = 4 * self.units
        self.kernel = self._random("kernel", (input_shape[-1], gates))
        self.recurrent_kernel = self._random("recurrent_kernel", (self.width, gates))
        self.bias = self.add_weight(name="bias", shape=(gates,), initializer="zeros")
        if self.projection is not None:
            self.projection_kernel = self._random("projection_kernel", (self.units, self.projection))
        # of gates and states: weights may be in half precision
        self.state_dtype = "float64" if self.variable_dtype == "float64" else "float32"
        if self.streams:
            self.add_state(self.width + self.units, self.state_dtype)

    def _random(self, name, shape):
        return self.add_weight(name=name, shape=shape, initializer=RandomWeights("glorot_uniform"))

    def call(self, x, mask, state=None, training=None) -> Any:
        mask = ops.cast(ops.transpose(mask)[:, :, None], self.state_dtype)  # (T, B, 1)
        if keras.backend.backend() != "tensorflow":
            run = self._scan
        elif training:
            run = self._train_on_tensorflow
        else:
            run = self._run_on_tensorflow
        begin = state
        if self.streams and state is None:
            begin = ops.stop_gradient(self.continued(ops.shape(x)[0]))
        if begin is not None:
            begin = ops.split(ops.cast(begin, self.state_dtype), [self.width], axis=-1)
        out, *end = run(x, mask, begin)
        out = ops.cast(out, self.compute_dtype)
        end = ops.concatenate(end, axis=-1)
        if self.streams and state is None:
            self.keep(ops.stop_gradient(end), ops.shape(x)[0])
        return out if state is None else (out, ops.cast(end, self.compute_dtype))

    def _input_gates(self, x):
        z = ops.matmul(ops.transpose(x, (1, 0, 2)), self.kernel)  # time-major (T, B, 4 units)
        return z + self.bias

    def _products(self):
        """The product of a state with the recurrent kernel, and with the projection kernel, if any.

        In the compute dtype, of and to gates and states. Kernels are cast, and transposed for oneDNN, once, not in
        every step.
        """
        kernels = [self.recurrent_kernel, *([] if self.projection is None else [self.projection_kernel])]
        kernels = [ops.cast(kernel, self.compute_dtype) for kernel in kernels]
        product = ops.matmul
        if self.compute_dtype == "bfloat16" and cpu.one_dnn():
            product, kernels = _transposed_product, [ops.transpose(kernel) for kernel in kernels]
        return [
            lambda x, kernel=kernel: self._wide(product(ops.cast(x, self.compute_dtype), kernel)) for kernel in kernels
        ]

    def _step(self, products, z, mask, h, c):
        """One step: input gates (B, 4 units), mask (B, 1), states -> new states; batch-major."""
        i, j, f, o = ops.split(self._wide(z) + products[0](h), 4, axis=-1)
        new_c = ops.sigmoid(f + 1.0) * c + ops.sigmoid(i) * ops.tanh(j)
        if self.cell_clip is not None:
            new_c = ops.clip(new_c, -self.cell_clip, self.cell_clip)
        new_h = ops.sigmoid(o) * ops.tanh(new_c)
        if self.projection is not None:
            new_h = products[1](new_h)
        if self.projection_clip is not None:
            new_h = ops.clip(new_h, -self.projection_clip, self.projection_clip)
        return mask * new_h + (1 - mask) * h, mask * new_c + (1 - mask) * c

    def _wide(self, x):
        return ops.cast(x, self.state_dtype)

    def _zeros(self, x):
        """The initial state if none is given, with static sizes where they are known, as TFLite needs."""
        batch = ops.shape(x)[0] if x.shape[0] is None else x.shape[0]
        return ops.zeros((batch, self.width), self.state_dtype), ops.zeros((batch, self.units), self.state_dtype)

    def _scan(self, x, mask, begin=None):
        """For any backend, differentiated by the backend."""
        z = self._input_gates(x)
        start, products = tuple(self._zeros(x) if begin is None else begin), self._products()

        def step(states, inputs):
            states = self._step(products, *inputs, *states)
            return states, states

        end, (out, _) = ops.scan(step, start, (z, mask), reverse=self.go_backwards)
        return ops.transpose(out * mask, (1, 0, 2)), *end

    def _run_on_tensorflow(self, x, mask, begin=None):
        """A while loop that ends at the batch's last real token; it converts to TFLite with built-in operators.

        In each step of a loop LiteRT copies the outputs of all steps, so that the cost is quadratic in their number.
        Where that is known and large, as in a .tflite file for long texts, the loop is one over blocks of steps, each a
        loop of its own.
        """
        import tensorflow as tf

        z, products = self._input_gates(x), self._products()
        real = tf.cast(tf.reduce_max(mask, axis=(1, 2)), tf.int32) * tf.range(1, tf.shape(z)[0] + 1)
        steps = tf.maximum(tf.reduce_max(real), 1)
        start = self._zeros(x) if begin is None else begin

        def loop(z, mask, steps, h, c):
            def step(t, h, c):
                m = mask[t]
                h, c = self._step(products, z[t], m, h, c)
                return h * m, h, c

            size = tf.shape(z)[0] if z.shape[0] is None else z.shape[0]
            return self._loop(step, steps, size, (z.shape[1], self.width), h, c)

        if None in z.shape or z.shape[0] <= LOOP:
            out, h, c = loop(z, mask, steps, *start)
            return tf.transpose(out, (1, 0, 2)), h, c
        length, batch, _ = z.shape
        count = -(-length // BLOCK)
        padding = [[0, count * BLOCK - length], [0, 0], [0, 0]]
        z, mask = (tf.reshape(tf.pad(part, padding), (count, BLOCK, batch, -1)) for part in (z, mask))

        def block(t, h, c):
            return loop(z[t], mask[t], tf.minimum(steps - t * BLOCK, BLOCK), h, c)

        shape = (BLOCK, batch, self.width)
        out, h, c = self._loop(block, (steps + BLOCK - 1) // BLOCK, count, shape, *start)
        out = tf.reshape(out, (count * BLOCK, batch, self.width))[:length]
        return tf.transpose(out, (1, 0, 2)), h, c

    def _loop(self, step, steps, size, shape, h, c):
        """The first `steps` of `size` steps, in the layer's direction.

        Args:
            step: from its number, the state and the cell to an output of this shape, a state and a cell.

        Returns: the outputs of all steps, zeros of those that were not run, and the last state and cell.
        """
        import tensorflow as tf

        def body(index, h, c, out):
            t = steps - 1 - index if self.go_backwards else index
            y, h, c = step(t, h, c)
            return index + 1, h, c, out.write(t, y)

        out = tf.TensorArray(self.state_dtype, size=size, element_shape=shape)
        _, h, c, out = tf.while_loop(lambda index, *_: index < steps, body, (tf.constant(0), h, c, out))
        return out.stack(), h, c

    def _train_on_tensorflow(self, x, mask, begin=None):
        """With a custom gradient; states are feature-major, (width, B), so that products have the wide axis first."""
        import tensorflow as tf

        start = [tf.transpose(part) for part in (self._zeros(x) if begin is None else begin)]
        x = tf.transpose(x, (2, 1, 0))
        x = tf.concat([x, tf.ones_like(x[:1])], 0)  # (D + 1, T, B): the last row of the kernel is the bias
        kernel = tf.concat([self.kernel, tf.cast(self.bias, x.dtype)[None]], 0)
        mask = tf.transpose(mask, (0, 2, 1))  # (T, 1, B)
        if self.go_backwards:
            x, mask = tf.reverse(x, [1]), tf.reverse(mask, [0])
        size = tf.shape(x)
        z = tf.matmul(kernel, tf.reshape(x, (x.shape[0], -1)), transpose_a=True)  # (4 units, T*B)
        z = tf.transpose(tf.reshape(z, (4 * self.units, size[1], size[2])), (1, 0, 2))  # (T, 4 units, B)
        recurrent = tf.cast(self.recurrent_kernel, z.dtype)
        projection = [] if self.projection is None else [tf.cast(self.projection_kernel, z.dtype)]
        outputs: Any = _lstm(self.cell_clip, self.projection_clip)(z, mask, recurrent, *start, *projection)
        out, h, c = outputs
        if self.go_backwards:
            out = tf.reverse(out, [0])
        return ops.transpose(out, (2, 0, 1)), tf.transpose(h), tf.transpose(c)

    def compute_output_spec(self, x, mask, state=None, training=None) -> Any:
        out = keras.KerasTensor((*x.shape[:2], self.width), self.compute_dtype)
        return out if state is None else (out, keras.KerasTensor(state.shape, self.compute_dtype))


def _transposed_product(x, kernel):
    """(B, K) and a transposed kernel (N, K), both bfloat16 -> (B, N), on a CPU.

    oneDNN packs a kernel in every product, a transposed one in half the time. XLA multiplies it with a single row as it
    is, which takes as long as to read it from memory, but starts too slowly for a small one.
    """
    import tensorflow as tf

    def rows():
        return tf.matmul(x, kernel, transpose_b=True)

    width, length = kernel.shape
    if width < length or width * length < LARGE or not tf.test.is_built_with_xla():
        return rows()
    return tf.cond(tf.shape(x)[0] == 1, lambda: _xla_product()(kernel, x[0])[None], rows)


@cache
def _xla_product():
    import tensorflow as tf

    return tf.function(lambda matrix, vector: tf.linalg.matvec(matrix, vector), jit_compile=True, autograph=False)


def _lstm(cell_clip, projection_clip):
    """The loop over time, with a custom gradient.

    (T, 4 units, B) input gates, (T, 1, B) mask, recurrent kernel, initial state (P, B) and cell (units, B),
    projection kernel if any -> (T, P, B) and the last state and cell. Products are in the dtype of the kernels, all
    else is in that of the initial state.
    """
    import tensorflow as tf

    clips = cell_clip, projection_clip

    @tf.custom_gradient
    def run(z, mask, recurrent, start_h, start_c, *projection):
        inputs = mask, recurrent, start_h, start_c, projection
        (end_h, end_c), saved = _forward_loop(z, *inputs, clips)

        def gradient(d_out, d_end_h, d_end_c):
            d_z, d_recurrent, d_start_h, d_start_c, d_projection = _backward_loop(
                (d_out, d_end_h, d_end_c), saved, *inputs, clips
            )
            return (d_z, None, d_recurrent, d_start_h, d_start_c, *d_projection)

        return (tf.cast(saved[2], mask.dtype) * mask, end_h, end_c), gradient

    return run


def _forward_loop(z, mask, recurrent, start_h, start_c, projection, clips):
    """The last (state, cell), and the gates, (T, 4 units, B), cells and states of all steps."""
    import tensorflow as tf

    def clip(x, limit):
        return x if limit is None else tf.clip_by_value(x, -limit, limit)

    cell_clip, projection_clip = clips
    steps = tf.shape(z)[0]
    units, width = z.shape[1] // 4, recurrent.shape[0]
    across = tf.transpose(recurrent)  # (4 units, P), once
    down = [tf.transpose(kernel) for kernel in projection]  # (P, units)

    def body(t, h, c, saved_gates, saved_c, saved_h):
        m = mask[t]
        i, j, f, o = tf.split(tf.cast(z[t], h.dtype) + _product(across, h), 4, axis=0)
        i, j, f, o = tf.sigmoid(i), tf.tanh(j), tf.sigmoid(f + 1.0), tf.sigmoid(o)
        new_c = clip(f * c + i * j, cell_clip)
        new_h = o * tf.tanh(new_c)
        for kernel in down:
            new_h = _product(kernel, new_h)
        h, c = m * clip(new_h, projection_clip) + (1 - m) * h, m * new_c + (1 - m) * c
        saved_gates = saved_gates.write(t, tf.cast(tf.concat([i, j, f, o], axis=0), z.dtype))
        return t + 1, h, c, saved_gates, saved_c.write(t, c), saved_h.write(t, tf.cast(h, z.dtype))

    loop = (tf.constant(0), start_h, start_c, _array(z, steps), _array(start_c, steps), _array(z, steps))
    _, end_h, end_c, *saved = tf.while_loop(lambda t, *_: t < steps, body, loop)
    sizes = (z.shape[1], units, width)
    saved = [
        tf.ensure_shape(array.stack(), (z.shape[0], size, z.shape[2])) for array, size in zip(saved, sizes, strict=True)
    ]
    return (end_h, end_c), saved


def _backward_loop(d_ends, saved, mask, recurrent, start_h, start_c, projection, clips):
    """Gradients of the input gates, recurrent kernel, initial state and cell, and of the projection kernel, if any."""
    import tensorflow as tf

    def unclipped(gradient, x, limit):
        return gradient if limit is None else tf.where(tf.abs(x) < limit, gradient, tf.zeros_like(gradient))

    (d_out, d_end_h, d_end_c), (all_gates, all_c, all_h) = d_ends, saved
    cell_clip, projection_clip = clips
    steps = tf.shape(all_gates)[0]
    before_c = tf.concat([start_c[None], all_c[:-1]], axis=0)
    before_h = tf.concat([tf.cast(start_h[None], all_h.dtype), all_h[:-1]], axis=0)

    def back(t, d_h, d_c, saved_z, saved_p):
        m = mask[t]
        i, j, f, o = tf.split(tf.cast(all_gates[t], d_c.dtype), 4, axis=0)
        tanh_c = tf.tanh(all_c[t])
        d_new_h = unclipped(m * (d_out[t] + d_h), tf.cast(all_h[t], d_h.dtype), projection_clip)  # (P, B)
        d_m = d_new_h
        for kernel in projection:
            d_m = _product(kernel, d_new_h)  # (units, B)
        d_new_c = unclipped(m * d_c + d_m * o * (1 - tanh_c * tanh_c), all_c[t], cell_clip)
        d_gates = (
            d_new_c * j * i * (1 - i),
            d_new_c * i * (1 - j * j),
            d_new_c * before_c[t] * f * (1 - f),
            d_m * tanh_c * o * (1 - o),
        )
        d_z = tf.concat(d_gates, axis=0)
        d_h = _product(recurrent, d_z) + (1 - m) * d_h
        d_c = d_new_c * f + (1 - m) * d_c
        saved_z, saved_p = saved_z.write(t, tf.cast(d_z, kind)), saved_p.write(t, tf.cast(d_new_h, kind))
        return t - 1, d_h, d_c, saved_z, saved_p

    kind = recurrent.dtype
    loop = (steps - 1, d_end_h, d_end_c, _array(before_h, steps), _array(before_h, steps))
    _, d_start_h, d_start_c, saved_z, saved_p = tf.while_loop(lambda t, *_: t >= 0, back, loop)
    d_z, d_p = tf.ensure_shape(saved_z.stack(), all_gates.shape), tf.ensure_shape(saved_p.stack(), all_h.shape)
    d_recurrent = _sum_of_products(before_h, d_z)  # (P, 4 units)
    o = tf.split(all_gates, 4, axis=1)[3]
    d_projection = [_sum_of_products(o * tf.cast(tf.tanh(all_c), kind), d_p) for _ in projection]
    return d_z, d_recurrent, d_start_h, d_start_c, d_projection


def _array(like, size):
    import tensorflow as tf

    return tf.TensorArray(like.dtype, size=size, element_shape=(None, like.shape[-1]))


def _product(kernel, x):
    """In the dtype of the kernel, of and to that of `x`."""
    import tensorflow as tf

    return tf.cast(tf.matmul(kernel, tf.cast(x, kernel.dtype)), x.dtype)


def _sum_of_products(a, b):
    """(T, M, B), (T, N, B) -> (M, N): the sum over t of a[t] b[t]^T, as one matrix product with the wide axis first."""
    import tensorflow as tf

    flat = [tf.reshape(tf.transpose(x, (1, 0, 2)), (x.shape[1], -1)) for x in (a, b)]  # (M, T*B), (N, T*B)
    return tf.transpose(tf.matmul(flat[1], flat[0], transpose_b=True))
