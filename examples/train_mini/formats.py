"""Number formats of the checkpoint and of the KV cache: rounding for training, codes for export.

All rounding is exact (round half to even), scales are powers of two unless said otherwise, as in kernels/formats.
"""
import torch

E4M3_MAX = 448.0


def ceil_power(x):
    """The least power of two >= x, for positive normal float32 x, from its bits."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def round_e4m3(x):
    """float32 -> the nearest E4M3 value, saturating."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)


def round_e2m1(x):
    """float32 -> the nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 with sign, ties to the even code, saturating."""
    a = x.abs()
    low = torch.round(a * 2) * 0.5
    high = torch.clamp(torch.round(a * 0.5) * 2, max=6.0)
    return torch.where(a < 2, low, torch.where(a < 4, torch.round(a), high)) * torch.sign(x)


def _blocks(x, size):
    return x.float().unflatten(-1, (-1, size))


def window_kv(x):
    """Window KV: E4M3, one power-of-two scale per 32 channels. Returns float32 values after rounding."""
    b = _blocks(x, 32)
    scale = ceil_power(b.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1.0 / 448.0))
    return (round_e4m3(b / scale) * scale).flatten(-2)


def main_kv(x):
    """Compressed KV: E2M1, one E4M3 scale per 16 channels."""
    b = _blocks(x, 16)
    scale = round_e4m3(b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9) / 6.0)
    return (round_e2m1(b / scale) * scale).flatten(-2)


def index_key(x):
    """Index queries and keys: E2M1, one power-of-two scale per 32 channels."""
    b = _blocks(x, 32)
    scale = ceil_power(b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) * (1.0 / 6.0))
    return (round_e2m1(b / scale) * scale).flatten(-2)


def fp4_scale(w):
    """Scale [.., out, in/32, 1] of expert weights [.., out, in]."""
    return ceil_power(_blocks(w, 32).abs().amax(-1, keepdim=True).clamp(min=1e-20) * (1.0 / 6.0))


def fp4_weight(w):
    """Expert weights after MXFP4 rounding (E2M1, a power of two per 32 inputs)."""
    scale = fp4_scale(w)
    return (round_e2m1(_blocks(w, 32) / scale) * scale).flatten(-2)


def _tiles(w):
    return w.float().unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))  # [out/32, 32, in/32, 32]


def fp8_scale(w):
    """Scale [out/32, 1, in/32, 1] of a dense weight [out, in]; both sizes are multiples of 32."""
    return ceil_power(_tiles(w).abs().amax((-3, -1), keepdim=True).clamp(min=1e-20) * (1.0 / 448.0))


def fp8_weight(w):
    """A dense weight after rounding to E4M3 with a power of two per 32x32 block."""
    scale = fp8_scale(w)
    return (round_e4m3(_tiles(w) / scale) * scale).reshape(w.shape)


def row_scale(w):
    """Scale [rows, dim/32, 1] of an Engram table."""
    return ceil_power(_blocks(w, 32).abs().amax(-1, keepdim=True).clamp(min=1e-20) * (1.0 / 448.0))


def row_weight(w):
    """An Engram table after rounding to E4M3 with a power of two per row and 32 channels."""
    scale = row_scale(w)
    return (round_e4m3(_blocks(w, 32) / scale) * scale).flatten(-2)


def bf16_weight(w):
    """float32 values rounded to BF16."""
    return w.to(torch.bfloat16).to(torch.float32)


def through(x, rounded):
    """`rounded` in the forward pass, the gradient of x in the backward pass."""
    return x + (rounded - x).detach()


# --- codes ---------------------------------------------------------------------------------------------------------

def power_code(scale):
    """Powers of two -> E8M0 bytes (uint8)."""
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8)


def power_value(code):
    """E8M0 bytes -> float32."""
    return (code.to(torch.int32) << 23).view(torch.float32)


def e2m1_codes(x):
    """Values on the E2M1 grid -> 4-bit codes (sign in bit 3)."""
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=x.device)
    return torch.searchsorted(grid, x.abs().contiguous()).to(torch.uint8) | ((x < 0).to(torch.uint8) << 3)


def pack_fp4(w):
    """Expert weight [out, in] -> (int8 [out, in/2], low nibble = even input; E8M0 scale bytes [out, in/32])."""
    scale = fp4_scale(w)
    codes = e2m1_codes(round_e2m1(_blocks(w, 32) / scale)).flatten(-2)
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).view(torch.int8), power_code(scale.squeeze(-1))


def unpack_fp4(packed, scale):
    """The inverse of pack_fp4, in float32."""
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], device=packed.device)
    bytes_ = packed.view(torch.uint8)
    values = torch.stack([grid[(bytes_ & 15).long()], grid[(bytes_ >> 4).long()]], -1).flatten(-2)
    return (_blocks(values, 32) * power_value(scale).unsqueeze(-1)).flatten(-2)


def pack_fp8(w):
    """Dense weight [out, in] -> (E4M3 [out, in], E8M0 scale bytes [out/32, in/32])."""
    scale = fp8_scale(w)
    codes = (_tiles(w) / scale).clamp(-E4M3_MAX, E4M3_MAX).reshape(w.shape).to(torch.float8_e4m3fn)
    return codes, power_code(scale.squeeze(-1).squeeze(-2))


def unpack_fp8(codes, scale):
    """The inverse of pack_fp8, in float32."""
    return (_tiles(codes.float()) * power_value(scale)[..., :, None, :, None]).reshape(codes.shape)


def pack_rows(w):
    """Engram table [rows, dim] -> (E4M3 [rows, dim], E8M0 scale bytes [rows, dim/32])."""
    scale = row_scale(w)
    codes = (_blocks(w, 32) / scale).clamp(-E4M3_MAX, E4M3_MAX).flatten(-2).to(torch.float8_e4m3fn)
    return codes, power_code(scale.squeeze(-1))


def unpack_rows(codes, scale):
    """The inverse of pack_rows, in float32."""
    return (_blocks(codes.float(), 32) * power_value(scale).unsqueeze(-1)).flatten(-2)
