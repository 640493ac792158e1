"""Which operations of a traced function may keep a row for a later one."""

from typing import Any

#: How the names of operations begin that write to a variable.
VARIABLE_WRITES = (
    "Assign",
    "ResourceApply",
    "ResourceCountUpTo",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)

#: Those that keep tensors elsewhere, or run code that TensorFlow can't see.
_OTHER_STATE = (
    # Python: what it does and remembers is in no graph.
    "EagerPyFunc",
    "PyFunc",
    # Tables, queues, stacks, stages and accumulators.
    "AccumulatorApply",
    "AddManySparseToTensorsMap",
    "AddSparseToTensorsMap",
    "Barrier",
    "BoostedTrees",
    "ConditionalAccumulator",
    "FIFOQueue",
    "GetSessionHandle",
    "InitializeTable",
    "LookupTableImport",
    "LookupTableInsert",
    "LookupTableRemove",
    "MapStage",
    "MapUnstage",
    "OrderedMap",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "Queue",
    "RandomShuffleQueue",
    "ResourceAccumulator",
    "ResourceConditionalAccumulator",
    "SparseAccumulator",
    "SparseConditionalAccumulator",
    "Stack",
    "Stage",
    "TakeManySparseFromTensorsMap",
    "TemporaryVariable",
    "Unstage",
    "VariableV2",
    # Files, and iterators, which stand elsewhere at the next call.
    "DatasetToTFRecord",
    "IteratorGetNext",
    "OneShotIterator",
    "Save",
    "WriteFile",
)


def operations(graph: Any) -> frozenset[str]:
    """Returns the names of all operations, those of inner functions too."""
    return frozenset(node.op for node in nodes(graph))


def nodes(graph: Any) -> list[Any]:
    """Returns the nodes of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    found = list(definition.node)
    for function in definition.library.function:
        found += function.node_def
    return found


def keeps_elsewhere(graph: Any) -> list[str]:
    """Returns the operations that keep tensors, but in no variable."""
    return sorted(n for n in operations(graph) if n.startswith(_OTHER_STATE))


def keeps_state(graph: Any) -> list[str]:
    """Returns the operations that may keep a row, sorted by name."""
    return sorted(
        n
        for n in operations(graph)
        if n.startswith(VARIABLE_WRITES + _OTHER_STATE)
    )
