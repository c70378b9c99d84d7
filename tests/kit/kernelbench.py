"""Problem files of the kind that KernelBench has, after the titles and kinds of its three levels.

``python -m tests.kit.kernelbench DIR`` writes all of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Final

_TEXT = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

{sizes}


class Model(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
{setup}

    def forward(self, {names}):
{forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{init}]
"""


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        title: What its file is called.
        inputs: Names of tensors with their extents, as in "A: M K; B: K N". A name behind an equals sign is written as
            it is, as in "y = torch.rand(N)".
        forward: What the module returns; lines before the last one are statements.
        sizes: Numbers of the file, as in "M=1024; K=2 * 1024".
        init: Names of them that the constructor takes.
        setup: What the constructor does.
        refused: An operator that no program has; empty if all can be imported.
    """

    title: str
    inputs: str
    forward: str
    sizes: str
    init: str = ""
    setup: str = "pass"
    refused: str = ""

    def text(self) -> str:
        """The file."""
        made = {}
        for part in self.inputs.split(";"):
            if "=" in part:
                name, made[name.strip()] = (side.strip() for side in part.split("=", 1))
            else:
                name, extents = (side.strip() for side in part.split(":"))
                made[name] = f"torch.rand({', '.join(extents.split())})"
        *lines, last = dedent(self.forward).strip().split("\n")
        return _TEXT.format(
            sizes="\n".join(part.strip() for part in self.sizes.split(";")),
            parameters=f", {self.init}" if self.init else "",
            setup=indent("\n".join(part.strip() for part in self.setup.split(";")), " " * 8),
            names=", ".join(made),
            forward=indent("\n".join([*lines, f"return {last}"]), " " * 8),
            inputs=", ".join(made.values()),
            init=self.init,
        )


def write(problems: tuple[Problem, ...], place: Path) -> None:
    """The files of a level, numbered from 1."""
    place.mkdir(parents=True)
    for number, problem in enumerate(problems, 1):
        (place / f"{number}_{problem.title}.py").write_text(problem.text(), encoding="utf-8")


_X = "x: batch_size dim"
_VECTORS = "batch_size=4096; dim=8192"
_IMAGE = "x: batch_size features height width"
_IMAGES = "batch_size=16; features=64; height=256; width=256"
_CUBE = "x: batch_size dim1 dim2"
_CUBES = "batch_size=128; dim1=4096; dim2=4096"


def _product(title: str, inputs: str, forward: str, sizes: str) -> Problem:
    return Problem(f"{title}_matrix_multiplication", inputs, forward, sizes)


def _function(title: str, forward: str) -> Problem:
    return Problem(title, _X, forward, _VECTORS)


def _layer(
    title: str, setup: str, init: str = "", inputs: str = _X, sizes: str = _VECTORS, refused: str = ""
) -> Problem:
    return Problem(title, inputs, "self.layer(x)", sizes, init, f"self.layer = {setup}", refused)


def _along(title: str, forward: str, refused: str = "") -> Problem:
    return Problem(title, _CUBE, forward, f"{_CUBES}; dim=1", "dim", "self.dim = dim", refused)


_PRODUCTS = (
    _product("Square", "A: N N; B: N N", "torch.matmul(A, B)", "N=2048 * 2"),
    _product("Standard", "A: M K; B: K N", "torch.matmul(A, B)", "M=1024; K=4096; N=2048"),
    _product(
        "Batched", "A: batch_size m k; B: batch_size k n", "torch.bmm(A, B)", "batch_size=128; m=512; k=1024; n=2048"
    ),
    _product("Vector", "A: M K; B: K 1", "torch.matmul(A, B)", "M=2048; K=131072"),
    Problem("Matrix_scalar_multiplication", "A: M N", "A * s", "M=16384; N=4096; s=3", ""),
    _product("Large_K", "A: M K; B: K N", "torch.matmul(A, B)", "M=256; N=256; K=524288"),
    _product("Small_K", "A: M K; B: K N", "torch.matmul(A, B)", "M=32768; N=32768; K=64"),
    _product("Irregular", "A: M K; B: K N", "torch.matmul(A, B)", "M=8205; K=2949; N=5921"),
    _product("Tall_skinny", "A: M N; B: N M", "torch.matmul(A, B)", "M=32768; N=32"),
    _product("Three_dims", "A: N M K; B: K L", "torch.matmul(A, B)", "N=16; M=1024; K=2048; L=768"),
    _product(
        "Four_dims", "A: b i j l; B: l k", 'torch.einsum("bijl,lk->bijk", A, B)', "b=8; i=256; j=512; l=256; k=768"
    ),
    _product("Diagonal", "A: N; B: N M", "torch.diag(A) @ B", "N=4096; M=4096"),
    _product("Upper_triangular", "A: N N; B: N N", "torch.triu(torch.matmul(A.triu(), B.triu()))", "N=4096"),
    _product("Lower_triangular", "A: N N; B: N N", "torch.tril(torch.matmul(A.tril(), B.tril()))", "N=4096"),
    _product("Transposed_A", "A: K M; B: K N", "torch.matmul(A.T, B)", "M=1024; K=4096; N=2048"),
    _product("Transposed_B", "A: M K; B: N K", "torch.matmul(A, B.T)", "M=1024; K=4096; N=2048"),
    _product("Transposed_both", "A: K M; B: N K", "torch.matmul(A.T, B.T)", "M=1024; K=4096; N=2048"),
)

_FUNCTIONS = (
    _function("ReLU", "torch.relu(x)"),
    _function("LeakyReLU", "F.leaky_relu(x, negative_slope=0.01)"),
    _function("Sigmoid", "torch.sigmoid(x)"),
    _function("Tanh", "torch.tanh(x)"),
    _function("Softmax", "torch.softmax(x, dim=1)"),
    _function("LogSoftmax", "torch.log_softmax(x, dim=1)"),
    _function("Swish", "x * torch.sigmoid(x)"),
    _function("GELU", "F.gelu(x)"),
    _function("SELU", "torch.selu(x)"),
    _function("HardSigmoid", "F.hardsigmoid(x)"),
    _function("Softplus", "F.softplus(x)"),
    _function("Softsign", "x / (1 + torch.abs(x))"),
    _function("ELU", "F.elu(x, alpha=1.0)"),
    _function("CELU", "F.celu(x, alpha=1.5)"),
    _function("HardTanh", "F.hardtanh(x, min_val=-1.0, max_val=1.0)"),
    _function("HardSwish", "F.hardswish(x)"),
    _function("Mish", "F.mish(x)"),
    _function("SoftsignFunction", "F.softsign(x)"),
    _function("TanhShrink", "F.tanhshrink(x)"),
    _function("NewGELU", "0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))"),
)

_NORMS = (
    _layer("BatchNorm", "nn.BatchNorm2d(features)", "features", _IMAGE, _IMAGES),
    _layer("InstanceNorm", "nn.InstanceNorm2d(features)", "features", _IMAGE, _IMAGES),
    _layer("GroupNorm", "nn.GroupNorm(groups, features)", "groups, features", _IMAGE, f"{_IMAGES}; groups=8"),
    Problem("RMSNorm", _IMAGE, "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)", _IMAGES),
    Problem("FrobeniusNorm", _IMAGE, "x / torch.norm(x, p='fro')", _IMAGES),
    Problem("L1Norm", _X, "x / torch.mean(torch.abs(x), dim=1, keepdim=True)", _VECTORS),
    Problem("L2Norm", _X, "x / torch.norm(x, p=2, dim=1, keepdim=True)", _VECTORS),
    _layer(
        "LayerNorm",
        "nn.LayerNorm((features, height, width))",
        "features, height, width",
        _IMAGE,
        _IMAGES,
    ),
)

_REDUCTIONS = (
    _along("Sum_reduction", "torch.sum(x, dim=self.dim, keepdim=True)"),
    _along("Mean_reduction", "torch.mean(x, dim=self.dim)"),
    _along("Max_reduction", "torch.max(x, dim=self.dim)[0]"),
    _along("Min_reduction", "torch.min(x, dim=self.dim)[0]"),
    _along("LogSumExp_reduction", "torch.logsumexp(x, dim=self.dim)"),
    _along("Argmax", "torch.argmax(x, dim=self.dim)", "aten.argmax.default"),
    _along("Argmin", "torch.argmin(x, dim=self.dim)", "aten.argmin.default"),
    _along("Product_reduction", "torch.prod(x, dim=self.dim)", "aten.prod.dim_int"),
    _along("cumsum", "torch.cumsum(x, dim=self.dim)", "aten.cumsum.default"),
    _along("cumprod", "torch.cumprod(x, dim=self.dim)", "aten.cumprod.default"),
    _along("cumsum_reverse", "torch.cumsum(x.flip(self.dim), dim=self.dim).flip(self.dim)", "aten.cumsum.default"),
    _layer("Average_pooling_2D", "nn.AvgPool2d(4)", "", _IMAGE, _IMAGES),
    _layer("Global_average_pooling", "nn.AdaptiveAvgPool2d((1, 1))", "", _IMAGE, _IMAGES),
    _layer("Max_pooling_2D", "nn.MaxPool2d(4)", "", _IMAGE, _IMAGES, "aten.max_pool2d.default"),
)

_Y = "batch_size=32768; dim=4096"
_PAIR = "predictions: batch_size dim; targets: batch_size dim"
_ROWS = "predictions = torch.rand(batch_size, dim).softmax(-1); targets = torch.rand(batch_size, dim).softmax(-1)"

_LOSSES = (
    Problem("MSELoss", _PAIR, "torch.mean((predictions - targets) ** 2)", _Y),
    Problem("HuberLoss", _PAIR, "F.smooth_l1_loss(predictions, targets)", _Y),
    Problem("L1Loss", _PAIR, "F.l1_loss(predictions, targets)", _Y),
    Problem("KLDivLoss", _ROWS, "F.kl_div(torch.log(predictions), targets, reduction='batchmean')", _Y),
    Problem("HingeLoss", _PAIR, "torch.mean(torch.clamp(1 - predictions * targets, min=0))", _Y),
    Problem("CosineSimilarityLoss", _PAIR, "torch.mean(1 - F.cosine_similarity(predictions, targets, dim=1))", _Y),
    Problem("BinaryCrossEntropy", _PAIR, "F.binary_cross_entropy(predictions, targets)", _Y),
    Problem(
        "TripletMarginLoss",
        "anchor: batch_size dim; positive: batch_size dim; negative: batch_size dim",
        "self.loss(anchor, positive, negative)",
        f"{_Y}; margin=1.0",
        "margin",
        "self.loss = nn.TripletMarginLoss(margin=margin)",
    ),
    Problem(
        "CrossEntropyLoss",
        "predictions: batch_size dim; targets = torch.randint(0, dim, (batch_size,))",
        "F.cross_entropy(predictions, targets)",
        _Y,
        refused="aten.nll_loss_nd.default",
    ),
)

_OTHERS = (
    Problem(
        "ScaledDotProductAttention",
        "Q: batch_size heads length dim; K: batch_size heads length dim; V: batch_size heads length dim",
        "F.scaled_dot_product_attention(Q, K, V)",
        "batch_size=32; heads=8; length=512; dim=1024",
    ),
    _layer(
        "Pointwise_convolution",
        "nn.Conv2d(features, channels, 1)",
        "features, channels",
        _IMAGE,
        f"{_IMAGES}; channels=128",
    ),
    _layer(
        "Convolution_2D",
        "nn.Conv2d(features, channels, 3)",
        "features, channels",
        _IMAGE,
        f"{_IMAGES}; channels=128",
        "aten.conv2d.default",
    ),
)

LEVEL1 = (*_PRODUCTS, *_FUNCTIONS, *_NORMS, *_REDUCTIONS, *_LOSSES, *_OTHERS)


_SIZES = "batch_size=1024; in_features=8192; out_features=8192"
_BATCH_NORM = "self.norm = nn.BatchNorm1d(out_features)"


def _gemm(
    title: str, chain: str, setup: str = "", init: str = "", sizes: str = "", more: str = "", refused: str = ""
) -> Problem:
    """A product, and what is done with its result x."""
    return Problem(
        f"Gemm_{title}",
        f"x: batch_size in_features{more}",
        f"x = self.linear(x)\n{chain}",
        f"{_SIZES}; {sizes}" if sizes else _SIZES,
        "in_features, out_features" + (f", {init}" if init else ""),
        "self.linear = nn.Linear(in_features, out_features)" + (f"; {setup}" if setup else ""),
        refused,
    )


_GROUPS = "self.norm = nn.GroupNorm(groups, out_features)"

LEVEL2 = (
    _gemm("Subtract_Multiply_ReLU", "torch.relu((x - 2.0) * 1.5)"),
    _gemm("Multiply_LeakyReLU", "F.leaky_relu(x * 2.0, 0.1)"),
    _gemm("Divide_Sum_Scaling", "(x / 2).sum(dim=1, keepdim=True) * 1.5"),
    _gemm(
        "Sum_Max_Mean_LogSumExp",
        "x = torch.sum(x, dim=1, keepdim=True)\nx = torch.max(x, dim=1, keepdim=True)[0]\n"
        "x = torch.mean(x, dim=1, keepdim=True)\ntorch.logsumexp(x, dim=1, keepdim=True)",
    ),
    _gemm(
        "Scale_ResidualAdd_Clamp_LogSumExp_Mish",
        "x = x * 2.0\nx = x + x\nx = torch.clamp(x, -10.0, 10.0)\n"
        "x = torch.logsumexp(x, dim=1, keepdim=True)\nx * F.mish(x)",
    ),
    Problem(
        "BMM_InstanceNorm_Sum_ResidualAdd_Multiply",
        "x: batch_size in_features; y: batch_size out_features",
        "x = self.bmm(x)\nx = self.norm(x.unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)\n(x + y) * y",
        _SIZES,
        "in_features, out_features",
        "self.bmm = nn.Linear(in_features, out_features); self.norm = nn.InstanceNorm2d(out_features)",
    ),
    _gemm("Mish_Mish", "F.mish(F.mish(x))"),
    _gemm("GroupNorm_Hardtanh", "F.hardtanh(self.norm(x), -2.0, 2.0)", _GROUPS, "groups", "groups=16"),
    _gemm(
        "Scale_BatchNorm",
        "self.norm(x * self.scale)",
        f"self.scale = nn.Parameter(torch.randn(out_features)); {_BATCH_NORM}",
    ),
    _gemm(
        "Swish_Sum_GroupNorm",
        "self.norm(torch.sigmoid(x) * x + self.bias)",
        f"self.bias = nn.Parameter(torch.randn(out_features)); {_GROUPS}",
        "groups",
        "groups=64",
    ),
    _gemm("Scaling_ResidualAdd", "y = x.clone().detach()\nx * 0.5 + y"),
    _gemm("BatchNorm_GELU_ReLU", "torch.relu(F.gelu(self.norm(x)))", _BATCH_NORM),
    _gemm(
        "Sigmoid_LogSumExp",
        "torch.logsumexp(self.second(torch.sigmoid(x)), dim=1)",
        "self.second = nn.Linear(out_features, last)",
        "last",
        "last=1024",
    ),
    _gemm(
        "Subtract_GlobalAvgPool_LogSumExp_GELU_ResidualAdd",
        "y = x.clone()\nx = torch.mean(x - self.subtract, dim=1, keepdim=True)\n"
        "x = F.gelu(torch.logsumexp(x, dim=1, keepdim=True))\nx + y",
        "self.subtract = nn.Parameter(torch.randn(out_features))",
    ),
    _gemm("Scaling_Hardtanh_GELU", "F.gelu(F.hardtanh(x * 0.5, -2, 2))"),
    _gemm(
        "MaxPool_Sum_Scale",
        "x = self.pool(x.unsqueeze(1)).squeeze(1)\ntorch.sum(x, dim=1) * 0.5",
        "self.pool = nn.MaxPool1d(2)",
        refused="aten.max_pool1d_with_indices.default",
    ),
    _gemm("Sigmoid_Sum", "torch.sum(torch.sigmoid(x), dim=1, keepdim=True)"),
    _gemm("Swish_Scaling", "x * torch.sigmoid(x) * 2.0"),
    _gemm("GroupNorm_LeakyReLU_Sum", "x = F.leaky_relu(self.norm(x), 0.01)\nx + x", _GROUPS, "groups", "groups=512"),
    _gemm("ReLU_Divide", "torch.relu(x) / 2.0"),
    _gemm(
        "LogSumExp_LeakyReLU_LeakyReLU_GELU_GELU",
        "x = torch.logsumexp(x, dim=1, keepdim=True)\nx = F.leaky_relu(F.leaky_relu(x, 0.01), 0.01)\nF.gelu(F.gelu(x))",
    ),
    _gemm(
        "Dropout_Softmax",
        "torch.softmax(self.dropout(x), dim=1)",
        "self.dropout = nn.Dropout(0.2)",
        refused="aten.dropout.default",
    ),
    _gemm(
        "Min_Subtract", "torch.min(x, self.constant) - self.constant", "self.constant = nn.Parameter(torch.tensor(2.0))"
    ),
    _gemm("Sigmoid_Scaling_ResidualAdd", "y = x\ntorch.sigmoid(x) * 2.0 + y"),
    _gemm(
        "GroupNorm_Min_BiasAdd",
        "torch.min(self.norm(x), dim=1, keepdim=True)[0] + self.bias",
        f"self.bias = nn.Parameter(torch.randn(1, out_features)); {_GROUPS}",
        "groups",
        "groups=512",
    ),
    _gemm("Add_ReLU", "torch.relu(x + self.bias)", "self.bias = nn.Parameter(torch.randn(out_features))"),
    _gemm("Max_Subtract_GELU", "x = torch.max(x, dim=1, keepdim=True).values\nF.gelu(x - x.mean(dim=1, keepdim=True))"),
    _gemm(
        "Swish_Divide_Clamp_Tanh_Clamp",
        "x = x * torch.sigmoid(x) / 2.0\nx = torch.tanh(torch.clamp(x, min=-1.0, max=1.0))\n"
        "torch.clamp(x, min=-1.0, max=1.0)",
    ),
    _gemm(
        "BatchNorm_Scaling_Softmax",
        "torch.softmax(self.scale * self.norm(x), dim=1)",
        f"{_BATCH_NORM}; self.scale = nn.Parameter(torch.ones(1))",
    ),
    _gemm("Divide_GELU", "F.gelu(x / 10.0)"),
    _gemm(
        "GroupNorm_Swish_Multiply_Swish",
        "x = self.norm(x)\nx = x * torch.sigmoid(x) * self.weight\nx * torch.sigmoid(x)",
        f"self.weight = nn.Parameter(torch.randn(out_features)); {_GROUPS}",
        "groups",
        "groups=256",
    ),
    _gemm(
        "BiasAdd_Hardtanh_Mish_GroupNorm",
        "self.norm(F.mish(F.hardtanh(x + self.bias)))",
        f"self.bias = nn.Parameter(torch.randn(out_features)); {_GROUPS}",
        "groups",
        "groups=256",
    ),
    _gemm(
        "Add_Swish_Tanh_GELU_Hardtanh",
        "x = x + self.add\nx = torch.sigmoid(x) * x\nF.hardtanh(F.gelu(torch.tanh(x)), -1, 1)",
        "self.add = nn.Parameter(torch.randn(out_features))",
    ),
    _gemm(
        "BatchNorm_BiasAdd_Divide_Swish",
        "x = (self.norm(x) + self.bias) / 1.5\nx * torch.sigmoid(x)",
        f"{_BATCH_NORM}; self.bias = nn.Parameter(torch.randn(1))",
    ),
    _gemm(
        "AvgPool_GELU_Scale_Max",
        "x = self.pool(x.unsqueeze(1)).squeeze(1)\ntorch.max(F.gelu(x) * 2.0, dim=1).values",
        "self.pool = nn.AvgPool1d(16)",
    ),
    _gemm("GELU_Softmax", "torch.softmax(F.gelu(x), dim=1)"),
    _gemm("Softmax_LayerNorm", "self.norm(torch.softmax(x, dim=-1))", "self.norm = nn.LayerNorm(out_features)"),
    _gemm(
        "ResidualAdd_RMSNorm",
        "self.norm(x + y)",
        "self.norm = nn.RMSNorm(out_features)",
        more="; y: batch_size out_features",
    ),
    Problem(
        "Convolution_ReLU_BiasAdd",
        "x: batch_size features height width",
        "torch.relu(self.convolution(x)) + self.bias",
        "batch_size=128; features=64; height=128; width=128; channels=128",
        "features, channels",
        "self.convolution = nn.Conv2d(features, channels, 3); self.bias = nn.Parameter(torch.randn(channels, 1, 1))",
        refused="aten.conv2d.default",
    ),
    Problem(
        "ConvTranspose_Softmax_Sigmoid",
        "x: batch_size features depth height width",
        "torch.sigmoid(torch.softmax(self.convolution(x), dim=1))",
        "batch_size=16; features=32; depth=16; height=32; width=32; channels=64",
        "features, channels",
        "self.convolution = nn.ConvTranspose3d(features, channels, 3)",
        refused="aten.convolution.default",
    ),
)


_TOKENS = "batch_size=8; length=512; dim=768; heads=8"
_SEQUENCES = "x: batch_size length dim"
_INIT = "dim, heads"
_PROJECTED = "q, k, v = self.qkv(x).chunk(3, dim=-1)\n"
_APART = "q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))\n"
_SCORES = "w = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5)\n"
_JOINED = "y = (torch.softmax(w, dim=-1) @ v).transpose(1, 2).flatten(2)\n"
_ATTENTION = "self.heads = heads; self.qkv = nn.Linear(dim, 3 * dim); self.out = nn.Linear(dim, dim)"
_CAUSAL = "w = w.masked_fill(self.mask[:, :, : x.shape[1], : x.shape[1]] == 0, float('-inf'))\n"

LEVEL3 = (
    Problem(
        "MLP",
        "x: batch_size inputs",
        "self.net(x)",
        "batch_size=128; inputs=16384; hidden=16384; outputs=8192",
        "inputs, hidden, outputs",
        "self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), "
        "nn.Linear(hidden, outputs))",
    ),
    Problem(
        "ShallowWideMLP",
        "x: batch_size inputs",
        "self.net(x)",
        "batch_size=128; inputs=16384; hidden=32768; outputs=16384",
        "inputs, hidden, outputs",
        "self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))",
    ),
    Problem(
        "DeepNarrowMLP",
        "x: batch_size width",
        "self.net(x)",
        "batch_size=1024; width=1024; depth=6",
        "width, depth",
        "self.net = nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))",
    ),
    Problem(
        "GatedMLP",
        _SEQUENCES,
        "x + self.down(F.silu(self.gate(x)) * self.up(x))",
        f"{_TOKENS}; inner=2048",
        "dim, inner",
        "self.gate = nn.Linear(dim, inner); self.up = nn.Linear(dim, inner); self.down = nn.Linear(inner, dim)",
    ),
    Problem(
        "SelfAttention",
        _SEQUENCES,
        f"{_PROJECTED}{_APART}{_SCORES}{_JOINED}self.out(y)",
        _TOKENS,
        _INIT,
        _ATTENTION,
    ),
    Problem(
        "ReLUSelfAttention",
        _SEQUENCES,
        f"{_PROJECTED}{_APART}{_SCORES}y = (F.relu(w) @ v).transpose(1, 2).flatten(2)\nself.out(y)",
        _TOKENS,
        _INIT,
        _ATTENTION,
    ),
    Problem(
        "CrossAttention",
        "x: batch_size length dim; y: batch_size others dim",
        "q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)\n"
        "k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.pairs(y).chunk(2, dim=-1))\n"
        "z = F.scaled_dot_product_attention(q, k, v)\nself.out(z.transpose(1, 2).flatten(2))",
        f"{_TOKENS}; others=128",
        _INIT,
        "self.heads = heads; self.query = nn.Linear(dim, dim); self.pairs = nn.Linear(dim, 2 * dim); "
        "self.out = nn.Linear(dim, dim)",
    ),
    Problem(
        "TransformerBlock",
        _SEQUENCES,
        f"h = x\nx = self.first(x)\n{_PROJECTED}{_APART}"
        "y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)\n"
        "h = h + self.out(y)\nh + self.mlp(self.second(h))",
        _TOKENS,
        _INIT,
        f"{_ATTENTION}; self.first = nn.LayerNorm(dim); self.second = nn.LayerNorm(dim); "
        "self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))",
    ),
    Problem(
        "MixerBlock",
        _SEQUENCES,
        "x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)\nx + self.channels(self.second(x))",
        _TOKENS,
        "length, dim",
        "self.first = nn.LayerNorm(dim); self.second = nn.LayerNorm(dim); "
        "self.tokens = nn.Sequential(nn.Linear(length, length), nn.GELU(), nn.Linear(length, length)); "
        "self.channels = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))",
    ),
    Problem(
        "LinearAttention",
        _SEQUENCES,
        f"{_PROJECTED}{_APART}q, k = F.elu(q) + 1, F.elu(k) + 1\n"
        "y = q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(dim=-2, keepdim=True).transpose(-2, -1))\n"
        "self.out(y.transpose(1, 2).flatten(2))",
        _TOKENS,
        _INIT,
        _ATTENTION,
    ),
    Problem(
        "CausalAttentionByMask",
        _SEQUENCES,
        f"{_PROJECTED}{_APART}{_SCORES}{_CAUSAL}{_JOINED}self.out(y)",
        _TOKENS,
        "dim, heads, length",
        f"{_ATTENTION}; self.register_buffer('mask', torch.ones(length, length).tril().view(1, 1, length, length))",
    ),
    Problem(
        "ConvolutionalNet",
        "x: batch_size channels side side",
        "self.net(x)",
        "batch_size=64; channels=3; side=32; classes=10",
        "channels, classes",
        "self.net = nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), "
        "nn.Linear(16 * 15 * 15, classes))",
        refused="aten.conv2d.default",
    ),
)
#: Problems by the number of their level.
LEVELS: Final = {1: LEVEL1, 2: LEVEL2, 3: LEVEL3}


def main() -> None:
    """Write all problems into the directory that the command line names."""
    for number, problems in LEVELS.items():
        write(problems, Path(sys.argv[1]) / f"level{number}")


if __name__ == "__main__":
    main()
