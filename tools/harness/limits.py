"""What the machine can do at best (tools/bench_products.cpp)."""

from . import training
from .commands import output_of


def product_limits(bin_folder, model):
    """name -> (value, unit): memcpy, and oneDNN's products at the model's shapes in one thread: each
    shape's rate, the best of them ("fp32 best"), what a step's products take ("fp32 products of a
    step"); the same for bf16 where the processor has it, and for Troupe's own ("ours fp32 …")."""
    hidden, queries, keys, inner, gated, layers, vocabulary = training.shape(model)
    sizes = [training.ROWS * training.LENGTH, hidden, queries + 2 * keys, inner, int(gated), layers, vocabulary]
    told = output_of([f"{bin_folder}/bench_products", *map(str, sizes)], "bench_products", 120)
    rows = [line.split("\t") for line in told.splitlines()]
    return {name: (float(value), unit) for name, value, unit in rows}


def better(before, after):
    """The best of two measurements: the smaller time, the higher rate."""
    pick = {"ms": min}
    return {name: (pick.get(unit, max)(value, after[name][0]), unit) for name, (value, unit) in before.items()}
