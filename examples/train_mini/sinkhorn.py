"""Sinkhorn normalisation of the residual mixing matrices: a Triton kernel pair, and plain PyTorch as its reference.

C = softmax(logits, last) + eps, then columns are normalised, then (iterations - 1) times rows and columns, always with
eps added to the denominator. The backward kernel walks back from the result with the stored sums, so nothing else is
kept. Everything is float32: in BF16 the result is off by up to 8e-3.
"""
import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without Triton runs the plain version
    triton = None

BLOCK = 64


def plain(logits, iterations, eps):
    """logits [..., 4, 4] float32 -> mixing matrices of the same shape, by autograd-able operations."""
    c = torch.softmax(logits, -1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


if triton is not None:

    @triton.jit
    def _forward(logits, out, sums, n, eps, iterations: tl.constexpr, block: tl.constexpr):
        row = tl.program_id(0) * block + tl.arange(0, block)[:, None, None]
        i = tl.arange(0, 4)[None, :, None]
        j = tl.arange(0, 4)[None, None, :]
        live = row < n
        x = tl.load(logits + row * 16 + i * 4 + j, mask=live & (i < 4) & (j < 4), other=0.0)
        x = tl.exp(x - tl.max(x, axis=2, keep_dims=True))
        x = x / tl.sum(x, axis=2, keep_dims=True) + eps
        at = sums + row * ((2 * iterations - 1) * 4)
        s = tl.sum(x, axis=1, keep_dims=True) + eps
        tl.store(at + j, s, mask=live & (j < 4))
        x = x / s
        for t in range(1, iterations):
            s = tl.sum(x, axis=2, keep_dims=True) + eps
            tl.store(at + (2 * t - 1) * 4 + i, s, mask=live & (i < 4))
            x = x / s
            s = tl.sum(x, axis=1, keep_dims=True) + eps
            tl.store(at + 2 * t * 4 + j, s, mask=live & (j < 4))
            x = x / s
        tl.store(out + row * 16 + i * 4 + j, x, mask=live & (i < 4) & (j < 4))

    @triton.jit
    def _backward(out, sums, grad, result, n, eps, iterations: tl.constexpr, block: tl.constexpr):
        row = tl.program_id(0) * block + tl.arange(0, block)[:, None, None]
        i = tl.arange(0, 4)[None, :, None]
        j = tl.arange(0, 4)[None, None, :]
        live = (row < n) & (i < 4) & (j < 4)
        x = tl.load(out + row * 16 + i * 4 + j, mask=live, other=0.25)
        g = tl.load(grad + row * 16 + i * 4 + j, mask=live, other=0.0)
        at = sums + row * ((2 * iterations - 1) * 4)
        for u in range(1, iterations):
            t = iterations - u
            s = tl.load(at + 2 * t * 4 + j, mask=(row < n) & (j < 4), other=1.0)
            g = (g - tl.sum(g * x, axis=1, keep_dims=True)) / s
            x = x * s
            s = tl.load(at + (2 * t - 1) * 4 + i, mask=(row < n) & (i < 4), other=1.0)
            g = (g - tl.sum(g * x, axis=2, keep_dims=True)) / s
            x = x * s
        s = tl.load(at + j, mask=(row < n) & (j < 4), other=1.0)
        g = (g - tl.sum(g * x, axis=1, keep_dims=True)) / s
        y = x * s - eps
        g = (g - tl.sum(g * y, axis=2, keep_dims=True)) * y
        tl.store(result + row * 16 + i * 4 + j, g, mask=live)


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, iterations, eps):
        logits = logits.contiguous()
        n = logits.numel() // 16
        out = torch.empty_like(logits)
        sums = torch.empty(n, 2 * iterations - 1, 4, dtype=torch.float32, device=logits.device)
        _forward[(triton.cdiv(n, BLOCK),)](logits, out, sums, n, eps, iterations=iterations, block=BLOCK)
        ctx.save_for_backward(out, sums)
        ctx.iterations, ctx.eps = iterations, eps
        return out

    @staticmethod
    def backward(ctx, grad):
        out, sums = ctx.saved_tensors
        grad = grad.contiguous()
        result = torch.empty_like(grad)
        n = grad.numel() // 16
        _backward[(triton.cdiv(n, BLOCK),)](out, sums, grad, result, n, ctx.eps, iterations=ctx.iterations,
                                            block=BLOCK)
        return result, None, None


def kernel(logits, iterations, eps):
    """The same as plain(), by the Triton kernels."""
    return _Kernel.apply(logits, iterations, eps)


def best(device):
    """kernel() where it works and agrees with plain() in value and gradient, otherwise plain()."""
    if triton is None or device.type != "cuda":
        return plain
    try:
        x = (torch.randn(1000, 4, 4, device=device) * 2).requires_grad_()
        y = x.detach().clone().requires_grad_()
        weight = torch.randn(1000, 4, 4, device=device)
        a, b = plain(x, 20, 1e-6), kernel(y, 20, 1e-6)
        (a * weight).sum().backward()
        (b * weight).sum().backward()
        if (a - b).abs().max() < 1e-4 and (x.grad - y.grad).abs().max() < 1e-3:
            return kernel
        print("sinkhorn: the kernel disagrees with the plain version, which is used instead", flush=True)
    except Exception as problem:  # any failure to compile or run leaves the plain version
        print(f"sinkhorn: kernel not usable ({problem}), plain version used", flush=True)
    return plain
