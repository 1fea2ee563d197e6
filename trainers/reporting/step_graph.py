"""The graph of the training loop, drawn in one piece for TensorBoard.

TensorFlow keeps the bodies of loops and branches as functions beside the graph, and
TensorBoard does not show functions: a run would be a box called `while` and its inputs.
This module puts their operations, the model's layers among them, into the graph.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

# Operations that call functions: the attributes that name the functions to draw, and
# the number of inputs before their arguments. The condition of a loop is left out.
_CALLS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "While": (("body",), 0),
    "StatelessWhile": (("body",), 0),
    "If": (("then_branch", "else_branch"), 1),
    "StatelessIf": (("then_branch", "else_branch"), 1),
    "PartitionedCall": (("f",), 0),
    "StatefulPartitionedCall": (("f",), 0),
}


def step_graph(graph: tf.Graph) -> tf.compat.v1.GraphDef:
    """Returns a graph to look at, not to run: loops and branches in place."""
    definition = graph.as_graph_def()
    functions = {f.signature.name: f for f in definition.library.function}
    inputs = {node.name: node.name for node in definition.node}
    drawing = _Drawing(functions, set(inputs))
    for node in definition.node:
        drawing.add(node, node.name, inputs)
    return drawing.finished(definition)


class _Drawing:
    """The nodes that were drawn so far."""

    def __init__(self, functions: Mapping[str, Any], names: set[str]):
        """Draws nothing yet; takes FunctionDefs by name, and the names of nodes."""
        self._functions = functions
        self._drawn = tf.compat.v1.GraphDef()
        self._names = names

    def add(self, node: Any, name: str, inputs: Mapping[str, str]) -> None:
        """Draws a node and the nodes in its functions.

        `inputs` has names in the drawing by names where the node comes from.
        """
        copy = self._drawn.node.add()
        copy.CopyFrom(node)
        copy.name = name
        copy.ClearField("input")
        sources = [_renamed(source, inputs) for source in node.input]
        copy.input.extend(sources)
        attributes, first = _CALLS.get(node.op, ((), 0))
        for attribute in attributes:
            function = self._functions[node.attr[attribute].func.name]
            if not _stays_one_operation(function):
                copy.input.extend(self._add_function(function, name, sources[first:]))

    def _add_function(
        self, function: Any, caller: str, arguments: list[str]
    ) -> list[str]:
        """Draws a function's nodes below its caller, and returns its results."""
        parameters = [argument.name for argument in function.signature.input_arg]
        inputs = dict(zip(parameters, arguments, strict=False))
        for node in function.node_def:
            inputs[node.name] = self._unused(_below(caller, node.name))
            self._names.add(inputs[node.name])
        for node in function.node_def:
            self.add(node, inputs[node.name], inputs)
        results = {_renamed(result, inputs) for result in function.ret.values()}
        return sorted(results - set(arguments))

    def _unused(self, name: str) -> str:
        """Returns the name, with a number if another node of the drawing has it."""
        count, unused = 0, name
        while unused in self._names:
            count += 1
            unused = f"{name}_{count}"
        return unused

    def finished(self, definition: Any) -> tf.compat.v1.GraphDef:
        """Returns the drawing, with the functions that are called in it."""
        calls = ("PartitionedCall", "StatefulPartitionedCall")
        names = {n.attr["f"].func.name for n in self._drawn.node if n.op in calls}
        called = [self._functions[name] for name in sorted(names)]
        self._drawn.library.function.extend(filter(_stays_one_operation, called))
        self._drawn.versions.CopyFrom(definition.versions)
        return self._drawn


def _stays_one_operation(function: Any) -> bool:
    return "_noinline" in function.attr and function.attr["_noinline"].b


def _below(caller: str, name: str) -> str:
    """Returns a name that begins with its caller's.

    Most names of operations do so already; a gradient's has the scope in its middle.
    """
    scope = f"{caller}/"
    return scope + name.replace(scope, "", 1)


def _renamed(source: str, inputs: Mapping[str, str]) -> str:
    """Returns an input, such as `^node`, `node:1` or `node:out:1`, by its new name."""
    control = "^" if source.startswith("^") else ""
    name, colon, output = source.removeprefix("^").partition(":")
    if name not in inputs:
        return source
    renamed = inputs[name]
    # The value of an argument names its output already.
    return f"{control}{renamed}" + ("" if ":" in renamed else f"{colon}{output}")
