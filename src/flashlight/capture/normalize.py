"""Before and after: which graphs are looked at, in which types, and what is done for softmaxes that stay."""

from __future__ import annotations

import torch
import torch.fx

from flashlight.errors import ProgramError, Refusal

aten = torch.ops.aten
prims = torch.ops.prims


def why_not_graph(graph: torch.fx.Graph) -> Refusal | None:
    """Why a whole graph is left alone. Joint graphs of training come with their backward, which is not compiled yet."""
    for node in graph.nodes:
        if node.op != "placeholder":
            break
        if str(node.target).startswith("tangents"):
            return Refusal(
                "training",
                "The graph computes gradients, which are not fused yet.",
                "",
                "Call the function under torch.no_grad() where gradients are not needed.",
            )
    return None


_OPERANDS = {
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.addmm.default: 1,
    aten.baddbmm.default: 1,
}


def reject_mixed_products(graph: torch.fx.Graph) -> None:
    """Raise what eager raises for a product of matrices of two types.

    Inductor of torch 2.11 compiles one for CUDA without a word, which hides the user's mistake.
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _OPERANDS:
            continue
        first = _OPERANDS[node.target]
        a, b = (x.meta["val"].dtype for x in node.args[first : first + 2])
        if a != b:
            where = str(node.meta.get("stack_trace") or "").strip()
            message = f"expected mat1 and mat2 to have the same dtype, but got: {a} != {b}"
            raise ProgramError(message + (f"\n{where}" if where else ""))


_MOVES = (aten.unsqueeze.default, aten.view.default, aten.reshape.default, aten.expand.default)
_COMPARISONS = (aten.eq.Tensor, aten.ne.Tensor)


def widen_positions(graph: torch.fx.Graph) -> int:
    """Give positions that are only compared with each other a type that is computed in, where PyTorch chose one of 16 bits.

    `eye` of more than 256 rows has such. Returns how many tensors were changed.
    """
    narrow: dict[torch.fx.Node, None] = {}  # in order
    for node in graph.nodes:
        is_made = node.target is prims.iota.default and node.kwargs["dtype"] is torch.uint16
        if is_made or (node.target in _MOVES and node.args[0] in narrow):
            narrow[node] = None
    users = {user for node in narrow for user in node.users if user not in narrow}
    if not all(u.target in _COMPARISONS and all(a in narrow for a in u.args) for u in users):
        return 0
    for node in narrow:
        if node.target is prims.iota.default:
            node.update_kwarg("dtype", torch.int32)
        node.meta["val"] = node.meta["val"].to(torch.int32)
    return len(narrow)


def shield_softmax(graph: torch.fx.Graph) -> int:
    """Keep Inductor's attention matcher off softmaxes over an axis other than the last, which it takes for attention.

    exp / sum becomes exp * (1 / sum). Returns how many were rewritten.
    """
    count = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten.div.Tensor:
            continue
        weight, total = node.args
        if not _is_softmax(weight, total):
            continue
        with graph.inserting_before(node):
            inverse = graph.call_function(aten.reciprocal.default, (total,))
            inverse.meta["val"] = total.meta["val"]
            product = graph.call_function(aten.mul.Tensor, (weight, inverse))
            product.meta = dict(node.meta)
        node.replace_all_uses_with(product)
        graph.erase_node(node)
        count += 1
    return count


def _is_softmax(weight: object, total: object) -> bool:
    """Whether two operands of a division are exp(x) and its sum over one axis that is not the last."""
    if not isinstance(weight, torch.fx.Node) or not isinstance(total, torch.fx.Node):
        return False
    if weight.target is not aten.exp.default or total.target is not aten.sum.dim_IntList:
        return False
    if total.args[0] is not weight or len(total.args) < 3:
        return False
    rank, dims = len(weight.meta["val"].shape), total.args[1]
    return isinstance(dims, list | tuple) and any(
        isinstance(d, int) and d % rank != rank - 1 for d in dims
    )
