"""The weights of a .tflite model: their names, and their storage in 8 or 16 bits.

A model is the bytes of a flatbuffer, whose schema is
https://github.com/google-ai-edge/LiteRT/blob/main/tflite/converter/schema/schema.fbs. All functions take and
give these bytes; they know nothing of Keras or TensorFlow.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from keras_ctxrep.version import install_hint

__all__ = ["joined", "quantized", "sizes"]

SMALLEST = 1024  # elements: smaller weights stay float32, as in TensorFlow's quantizer
_OPERANDS = {"FULLY_CONNECTED": 1, "CONV_2D": 1, "BATCH_MATMUL": 1, "GATHER": 0}  # operator -> input that is a weight


class Ranges(NamedTuple):
    """Smallest and largest value of what a dense layer reads and of what it writes."""

    input: tuple[float, float]
    output: tuple[float, float]


class Weight(NamedTuple):
    """A large float32 constant that an operator multiplies by or looks up rows in."""

    name: str
    graph: Any  # SubGraphT
    operator: Any  # OperatorT
    kind: str  # of the operator
    number: int  # of the tensor in the graph


def named(data: bytes, weights: Mapping[str, np.ndarray]) -> bytes:
    """The model with the constants that hold one of `weights`, in any order of axes, under its name.

    Converters name a constant after some operator; these names are those of the layers. What they store as a constant
    for a loop to begin with is computed where it is large.
    """
    model = read(data)
    names = {_fingerprint(array): name for name, array in weights.items() if array.size >= SMALLEST}
    model.buffers = _merge(model)
    known: dict[int, bytes] = {}
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            array = _constant(model, tensor)
            if array is not None and array.size >= SMALLEST:
                if tensor.buffer not in known:
                    known[tensor.buffer] = (names.get(_fingerprint(array)) or tensor.name.decode()).encode()
                tensor.name = known[tensor.buffer]
    _fill(model)
    return packed(model)


def floats(data: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The floating-point constants of a model and the scales of its quantized ones, by name, each read once.

    Args:
        data: the model, bytes or a memory-mapped file, of which nothing is copied.
    """
    model, types = schema().Model.GetRootAs(data, 0), schema().TensorType
    kinds, seen = {types.FLOAT32: "<f4", types.FLOAT16: "<f2", types.INT8: "", types.INT4: ""}, set()
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            number = tensor.Buffer()
            if number in seen or tensor.Type() not in kinds:
                continue
            seen.add(number)
            values, name = model.Buffers(number).DataAsNumpy(), tensor.Name().decode("utf-8", "replace")
            if isinstance(values, np.ndarray) and kinds[tensor.Type()]:
                yield name, values.view(kinds[tensor.Type()])
            elif isinstance(values, np.ndarray) and tensor.Quantization() and tensor.Quantization().ScaleLength():
                yield f"{name} scale", tensor.Quantization().ScaleAsNumpy()


def operators(data: bytes) -> Counter[str]:
    """The names of the operators of a model -> how many of them there are."""
    model = read(data)
    return Counter(_kind(model, operator) for graph in model.subgraphs for operator in graph.operators or ())


def _fingerprint(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.sort(array, axis=None).astype("<f4").tobytes()).digest()


def sizes(data: bytes) -> dict[str, int]:
    """The names of the weights that can be quantized -> their elements, in the order in which they are computed."""
    model = read(data)
    return {weight.name: int(np.prod(weight.graph.tensors[weight.number].shape)) for weight in _weights(model)}


def within(name: str, layers: Collection[str]) -> bool:
    """Whether a weight is one of `layers` or of a layer among them."""
    return any(name == layer or name.startswith(f"{layer}/") for layer in layers)


def except_layers(names: Iterable[str], layers: Sequence[str]) -> list[str]:
    """The weights that are not within some layers; a ValueError names a layer that is none of the model's."""
    names = list(names)
    for layer in layers:
        if not any(within(name, [layer]) for name in names):
            raise ValueError(f"keep_float={layer!r}: this model has no such layer; they are {', '.join(names)}")
    return [name for name in names if not within(name, layers)]


def quantized(
    data: bytes, form: str, only: Collection[str] | None = None, ranges: Mapping[str, Ranges] | None = None
) -> bytes:
    """The model with its weights in another form; the activations stay float32 between the operators.

    "float16": weights are stored in 16 bits and computed with in float32. "dynamic": matrix products and convolutions
    compute with 8-bit weights, one scale per output channel, and with inputs that are quantized to 8 bits at run time,
    one scale per row. Embeddings are 8-bit integers with one scale per row of the table, since one for the table, as in
    TensorFlow's quantizer, leaves rows of small values only a few steps. "int8": as "dynamic", but the dense layers
    whose ranges are known read and write 8-bit integers of these fixed ranges. All signatures share the weights.

    Args:
        data: a float32 model.
        form: "none", which changes nothing, "float16", "dynamic" or "int8".
        only: names of the weights that change; None: all.
        ranges: name of a weight -> those of its layer, for "int8"; without them it is as "dynamic".
    """
    if form == "none":
        return data
    model = read(data)
    writer = Writer(model, form, ranges or {})
    for weight in [*_weights(model)]:
        if only is None or weight.name in only:
            writer.rewrite(weight)
    return packed(model)


def joined(models: Mapping[str, bytes]) -> bytes:
    """One model of several, with the signatures of each as NAME/SIGNATURE; what is equal in them is stored once.

    Args:
        models: name -> the bytes of a model.
    """
    together, *others = [(name, read(data)) for name, data in models.items()]
    _rename(*together)
    whole = together[1]
    whole.metadataBuffer = None
    codes = {_code(code): number for number, code in enumerate(whole.operatorCodes)}
    for name, model in others:
        _rename(name, model)
        graphs, buffers = len(whole.subgraphs), len(whole.buffers)
        for code in model.operatorCodes:
            if codes.setdefault(_code(code), len(whole.operatorCodes)) == len(whole.operatorCodes):
                whole.operatorCodes.append(code)
        for graph in model.subgraphs:
            for tensor in graph.tensors:
                tensor.buffer += buffers
            for operator in graph.operators:
                operator.opcodeIndex = codes[_code(model.operatorCodes[operator.opcodeIndex])]
                for key in vars(operator.builtinOptions) if operator.builtinOptions is not None else ():
                    if key.endswith("ubgraphIndex") or key == "subgraph":  # of a loop, a condition or a call
                        setattr(operator.builtinOptions, key, getattr(operator.builtinOptions, key) + graphs)
        for signature in model.signatureDefs:
            signature.subgraphIndex += graphs
        whole.subgraphs, whole.buffers = [*whole.subgraphs, *model.subgraphs], [*whole.buffers, *model.buffers]
        whole.signatureDefs = [*whole.signatureDefs, *model.signatureDefs]
    return packed(whole)


def _rename(name: str, model: Any) -> None:
    for signature in model.signatureDefs:
        signature.signatureKey = f"{name}/".encode() + signature.signatureKey


def _code(code: Any) -> tuple:
    return max(code.builtinCode, code.deprecatedBuiltinCode), code.customCode, code.version


def watched(data: bytes) -> bytes:
    """The model with the inputs and outputs of its dense layers, but those within loops, as outputs of each signature.

    They are called "NAME input" and "NAME output", by the weight.
    """
    model = read(data)
    types = schema()
    signatures = {each.subgraphIndex: each for each in model.signatureDefs}
    numbers = {id(graph): number for number, graph in enumerate(model.subgraphs)}
    for weight in [*_weights(model)]:
        signature = signatures.get(numbers[id(weight.graph)])
        if signature is None or weight.kind != "FULLY_CONNECTED":
            continue
        for end, index in (("input", weight.operator.inputs[0]), ("output", weight.operator.outputs[0])):
            entry = types.TensorMapT()
            entry.name, entry.tensorIndex = f"{weight.name} {end}".encode(), index
            if entry.name not in [each.name for each in signature.outputs]:
                signature.outputs.append(entry)
                weight.graph.outputs = list(dict.fromkeys([*map(int, weight.graph.outputs), int(index)]))
    return packed(model)


def _fill(model: Any) -> None:
    """Large constants of one value that loops begin with, as converters write them, become the outputs of a FILL."""
    writer = Writer(model)
    for graph in model.subgraphs:
        loops = [operator for operator in graph.operators if _kind(model, operator) == "WHILE"]
        others = {int(i) for operator in graph.operators if operator not in loops for i in operator.inputs}
        for number in dict.fromkeys(int(i) for operator in loops for i in operator.inputs):
            tensor = graph.tensors[number]
            array = None if number in others else _constant(model, tensor)
            if array is not None and array.size >= SMALLEST and (array == array.flat[0]).all():
                ends = [np.array(array.shape, np.int32), array.flat[0]]
                inputs = [
                    writer.add(graph, tensor.name + suffix, each.shape, kind, writer.buffer(each))
                    for each, suffix, kind in zip(ends, (b"/shape", b"/value"), ("INT32", "FLOAT32"), strict=True)
                ]
                writer.insert(graph, 0, "FILL", inputs, [number], "FillOptions", schema().FillOptionsT())
                tensor.buffer = 0


def _weights(model: Any) -> Iterator[Weight]:
    for graph in model.subgraphs:
        for operator in graph.operators:
            kind = _kind(model, operator)
            if kind in _OPERANDS:
                index = int(operator.inputs[_OPERANDS[kind]])
                array = _constant(model, graph.tensors[index])
                if array is not None and array.size >= SMALLEST:
                    yield Weight(graph.tensors[index].name.decode(), graph, operator, kind, index)


class Writer:
    """Writes weights of a model in a smaller form; each buffer once, for all operators and signatures."""

    def __init__(self, model: Any, form: str = "none", ranges: Mapping[str, Ranges] = MappingProxyType({})):
        self.model, self.form, self.ranges = model, form, ranges
        self.buffers: dict[tuple[int, str], tuple] = {}  # (float32 buffer, form) -> its 8 or 16-bit buffer and scales
        self.tensors: dict[tuple[int, int, str], int] = {}  # (graph, float32 tensor, form) -> tensor

    def rewrite(self, weight: Weight) -> None:
        if self.form == "float16":
            self._float16(weight)
        elif weight.kind == "GATHER":
            self._rows(weight)
        else:
            scales = self._product(weight)
            if self.form == "int8" and weight.kind == "FULLY_CONNECTED" and weight.name in self.ranges:
                self._fix(weight, scales)

    def _float16(self, weight: Weight) -> None:
        """The operator reads a DEQUANTIZE of the weight, which the runtime computes once."""
        graph, operator = weight.graph, weight.operator
        key = (id(graph), weight.number, "float16")
        if key not in self.tensors:
            tensor = graph.tensors[weight.number]
            buffer = self._converted(tensor, "float16", lambda array: (array.astype(np.float16),))[0]
            half = self.add(graph, tensor.name, tensor.shape, "FLOAT16", buffer)
            wide = self.add(graph, tensor.name + b"/float32", tensor.shape, "FLOAT32")
            self.insert(graph, 0, "DEQUANTIZE", [half], [wide])
            self.tensors[key] = wide
        operator.inputs[_OPERANDS[weight.kind]] = self.tensors[key]

    def _product(self, weight: Weight) -> np.ndarray:
        """The operator reads the weight in 8 bits. Gives its scales."""
        graph, operator = weight.graph, weight.operator
        tensor = graph.tensors[weight.number]
        by_channel = weight.kind != "BATCH_MATMUL"  # whose kernels take one scale
        buffer, scales = self._converted(tensor, str(by_channel), lambda array: _round(array, by_channel))
        key = (id(graph), weight.number, "channels")
        if key not in self.tensors:
            self.tensors[key] = self.add(graph, tensor.name, tensor.shape, "INT8", buffer, (scales, 0))
        operator.inputs[_OPERANDS[weight.kind]] = self.tensors[key]
        if operator.builtinOptions is not None and hasattr(operator.builtinOptions, "asymmetricQuantizeInputs"):
            operator.builtinOptions.asymmetricQuantizeInputs = True
        return scales

    def _fix(self, weight: Weight, scales: np.ndarray) -> None:
        """A QUANTIZE before the dense layer and a DEQUANTIZE after it, and its bias as 32-bit integers."""
        graph, operator = weight.graph, weight.operator
        known = self.ranges[weight.name]
        source, out = operator.inputs[0], operator.outputs[0]
        steps, narrow = [_steps(*known.input), _steps(*known.output)], []
        bias, bias_scales = None, scales * np.float32(steps[0][0])
        if len(operator.inputs) > 2 and operator.inputs[2] != -1:
            bias = graph.tensors[operator.inputs[2]]
            values = _constant(self.model, bias)
            if values is None or np.abs(values / bias_scales).max() >= 1 << 30:
                return  # its bias does not fit into 32 bits beside such small inputs; it stays dynamic
        for index, (scale, zero) in zip((source, out), steps, strict=True):
            tensor = graph.tensors[index]
            narrow.append(self.add(graph, tensor.name + b"/int8", tensor.shape, "INT8", 0, (np.array([scale]), zero)))
        operator.inputs[0], operator.outputs[0] = narrow
        operator.builtinOptions.asymmetricQuantizeInputs = False
        if bias is not None:
            key = f"bias of {weight.name}"
            buffer = self._converted(bias, key, lambda array: (np.rint(array / bias_scales).astype("<i4"),))[0]
            operator.inputs[2] = self.add(graph, bias.name, bias.shape, "INT32", buffer, (bias_scales, 0))
        at = next(i for i, each in enumerate(graph.operators) if each is operator)
        self.insert(graph, at, "QUANTIZE", [source], narrow[:1])
        self.insert(graph, at + 2, "DEQUANTIZE", narrow[1:], [out])

    def _rows(self, weight: Weight) -> None:
        """Rows of the table times their scales: of each only the rows that are looked up are read."""
        graph, operator = weight.graph, weight.operator
        key = (id(graph), weight.number, "rows")
        tensor, ids, out = graph.tensors[weight.number], operator.inputs[1], operator.outputs[0]
        buffer, scales = self._converted(tensor, "True", lambda array: _round(array, True))
        scales_key = (*key[:2], "scales")
        if key not in self.tensors:
            self.tensors[key] = self.add(graph, tensor.name, tensor.shape, "INT8", buffer)
            shape, column = [len(scales)] + [1] * (len(tensor.shape) - 1), self.buffer(scales)
            self.tensors[scales_key] = self.add(graph, tensor.name + b"/scales", shape, "FLOAT32", column)
        table, column = self.tensors[key], self.tensors[scales_key]
        shape = [int(size) for size in graph.tensors[out].shape]
        thin = shape[: len(shape) - len(tensor.shape) + 1] + [1] * (len(tensor.shape) - 1)
        name = graph.tensors[out].name
        integers = self.add(graph, name + b"/int8", shape, "INT8")
        floats = self.add(graph, name + b"/float32", shape, "FLOAT32")
        factors = self.add(graph, name + b"/scales", thin, "FLOAT32")
        at = next(i for i, each in enumerate(graph.operators) if each is operator)
        operator.inputs, operator.outputs = [table, ids], [integers]
        types, cast = schema(), schema().CastOptionsT()
        cast.inDataType, cast.outDataType = types.TensorType.INT8, types.TensorType.FLOAT32
        self.insert(graph, at + 1, "CAST", [integers], [floats], "CastOptions", cast)
        again = self.insert(graph, at + 2, "GATHER", [column, ids], [factors])
        again.builtinOptions, again.builtinOptionsType = operator.builtinOptions, operator.builtinOptionsType
        self.insert(graph, at + 3, "MUL", [floats, factors], [out], "MulOptions", types.MulOptionsT())

    def _converted(self, tensor: Any, form: str, convert) -> tuple:
        """(buffer, further results of `convert`) of a weight."""
        key = (tensor.buffer, form)
        if key not in self.buffers:
            array, *rest = convert(_constant(self.model, tensor))
            self.buffers[key] = (self.buffer(array), *rest)
        return self.buffers[key]

    def buffer(self, array: np.ndarray) -> int:
        buffer = schema().BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    def add(
        self, graph: Any, name: bytes, shape: Iterable, kind: str, buffer: int = 0, steps: tuple | None = None
    ) -> int:
        """The number of a new tensor; `steps`: its scales, along the first axis, and its zero point."""
        tensor = schema().TensorT()
        if steps is not None:
            tensor.quantization = schema().QuantizationParametersT()
            tensor.quantization.scale = np.asarray(steps[0], np.float32)
            tensor.quantization.zeroPoint = np.full(len(steps[0]), steps[1], np.int64)
            tensor.quantization.quantizedDimension = 0
        tensor.name, tensor.shape, tensor.buffer = name, np.array([*shape], np.int32), buffer
        tensor.type = getattr(schema().TensorType, kind)
        tensor.hasRank = True
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    def insert(self, graph: Any, at: int, kind: str, inputs: list, outputs: list, *options: Any) -> Any:
        types = schema()
        operator = types.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = operator_code(self.model, kind), inputs, outputs
        if options:
            operator.builtinOptionsType = getattr(types.BuiltinOptions, options[0])
            operator.builtinOptions = options[1]
        graph.operators.insert(at, operator)
        return operator


def _round(array: np.ndarray, by_row: bool) -> tuple[np.ndarray, np.ndarray]:
    """int8 of the same shape and float32 scales, of each index of the first axis or of all.

    >>> [part.tolist() for part in _round(np.array([[1.0, -2.0], [0.5, 0.25]]), True)]
    [[[64, -127], [127, 64]], [0.015748031437397003, 0.003937007859349251]]
    """
    rows = array.reshape(len(array) if by_row else 1, -1)
    scales = np.abs(rows).max(axis=1).astype(np.float32) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(rows / scales[:, None]).astype(np.int8).reshape(array.shape), scales


def _steps(least: float, most: float) -> tuple[float, int]:
    """Scale and zero point of 256 steps from the least to the most, with an exact zero.

    >>> _steps(-1.0, 1.55)
    (0.01, -28)
    """
    least, most = min(least, 0.0), max(most, 0.0)
    scale = round(max((most - least) / 255, 1e-9), 12)
    return scale, int(np.clip(round(-128 - least / scale), -128, 127))


def _kind(model: Any, operator: Any) -> str:
    code = model.operatorCodes[operator.opcodeIndex]
    name = _names()[max(code.builtinCode, code.deprecatedBuiltinCode)]
    return code.customCode.decode() if name == "CUSTOM" else name


def operator_code(model: Any, kind: str) -> int:
    """The index of an operator in the model's list, to which it is added if it is not there."""
    for number, code in enumerate(model.operatorCodes):
        if _names()[max(code.builtinCode, code.deprecatedBuiltinCode)] == kind:
            return number
    code = schema().OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = getattr(schema().BuiltinOperator, kind)
    code.version = 2 if kind == "DEQUANTIZE" else 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _names() -> dict[int, str]:
    return {number: name for name, number in vars(schema().BuiltinOperator).items() if isinstance(number, int)}


def _constant(model: Any, tensor: Any) -> np.ndarray | None:
    """The value of a float32 constant; None for any other tensor."""
    data = model.buffers[tensor.buffer].data
    if data is None or len(data) == 0 or tensor.type != schema().TensorType.FLOAT32:
        return None
    return np.frombuffer(data, "<f4").reshape([int(size) for size in tensor.shape])


def schema() -> Any:
    """The generated classes of the flatbuffer; an ImportError says what to install."""
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError:
        raise ImportError(f"writing .tflite files needs LiteRT: {install_hint('edge')}") from None
    return schema_py_generated


def read(data: bytes) -> Any:
    """The ModelT of a flatbuffer, with lists that can be changed."""
    model = schema().ModelT.InitFromPackedBuf(data, 0)
    for graph in model.subgraphs:
        for operator in graph.operators:
            operator.inputs, operator.outputs = list(operator.inputs), list(operator.outputs)
    return model


def packed(model: Any) -> bytes:
    """The flatbuffer of a ModelT, without constants that nothing reads; what is equal in it is stored once."""
    model.buffers = _merge(model)
    for tensor in (tensor for graph in model.subgraphs for tensor in graph.tensors):
        if tensor.quantization is not None and tensor.quantization.scale is None:
            tensor.quantization = None
    size = sum(0 if buffer.data is None else len(buffer.data) for buffer in model.buffers)
    builder = _builder(size + 4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _builder(size: int) -> Any:
    """Writes equal vectors once: the scales of a weight, 12 bytes for each channel, are those of every signature.

    The data of a buffer begin at a multiple of 16, as the schema asks and its Python classes do not do.
    """
    import flatbuffers

    class Builder(flatbuffers.Builder):
        def __init__(self):
            super().__init__(size)
            self.written: dict[tuple, int] = {}

        def CreateNumpyVector(self, x):
            if x.dtype == np.uint8:  # of a buffer
                self.Prep(16, len(x))
                return super().CreateNumpyVector(x)
            return self._once((x.dtype.str, x.tobytes()), super().CreateNumpyVector, x)

        def CreateString(self, s, *args):
            return self._once(("", s), super().CreateString, s, *args)

        def _once(self, key, create, *args):
            if key not in self.written:
                self.written[key] = create(*args)
            return self.written[key]

    return Builder()


def _merge(model: Any) -> list[Any]:
    """The buffers, numbered anew: the first one is empty, equal ones become one, unread ones are left out."""
    for number, graph in enumerate(model.subgraphs):
        _drop_unread(graph, [each for each in model.signatureDefs or [] if each.subgraphIndex == number])
    buffers, numbers, by_hash = [schema().BufferT()], {0: 0}, {}
    for owner in [tensor for graph in model.subgraphs for tensor in graph.tensors] + list(model.metadata or []):
        if owner.buffer not in numbers:
            data = model.buffers[owner.buffer].data
            digest = None if data is None or len(data) == 0 else hashlib.sha256(bytes(data)).digest()
            if digest is not None and digest not in by_hash:
                by_hash[digest] = len(buffers)
                buffers.append(model.buffers[owner.buffer])
            numbers[owner.buffer] = by_hash.get(digest, 0)
        owner.buffer = numbers[owner.buffer]
    return buffers


def _drop_unread(graph: Any, signatures: list[Any]) -> None:
    """Removes the tensors of a graph that no operator reads or writes and that are not among its ends."""
    used = {int(i) for operator in graph.operators for i in [*operator.inputs, *operator.outputs]}
    used |= {int(i) for i in [*graph.inputs, *graph.outputs]}
    numbers = {-1: -1} | {old: new for new, old in enumerate(sorted(used - {-1}))}
    graph.tensors = [graph.tensors[old] for old in sorted(used - {-1})]
    graph.inputs, graph.outputs = ([numbers[int(i)] for i in ends] for ends in (graph.inputs, graph.outputs))
    for operator in graph.operators:
        operator.inputs = [numbers[int(i)] for i in operator.inputs]
        operator.outputs = [numbers[int(i)] for i in operator.outputs]
    for end in [end for signature in signatures for end in [*signature.inputs, *signature.outputs]]:
        end.tensorIndex = numbers[int(end.tensorIndex)]
