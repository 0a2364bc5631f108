#include "kernels/ep/checks.hpp"

namespace troupe::kernels::ep {

result<void> check_shape(const group_shape& shape) {
  if (shape.ranks < 1 || shape.ranks > 1024)
    return fail(errc::invalid_argument, "group shape: ranks is {}, it must be in 1..1024", shape.ranks);
  if (shape.hidden < 1 || shape.top_k < 1 || shape.max_rows < 1)
    return fail(errc::invalid_argument, "group shape: hidden {}, top_k {} and max_rows {} must all be at least 1",
                shape.hidden, shape.top_k, shape.max_rows);
  if (shape.micro_batches < 1 || shape.micro_batches > 2)
    return fail(errc::invalid_argument, "group shape: {} micro-batches, it must be 1 or 2", shape.micro_batches);
  if (shape.notes > 1u << 20)
    return fail(errc::invalid_argument, "group shape: {} notes are more than any model has experts", shape.notes);
  const auto bytes = static_cast<unsigned __int128>(shape.max_rows) * shape.hidden * sizeof(float) *
                     (static_cast<unsigned __int128>(shape.top_k) + shape.ranks) * shape.micro_batches;
  if (bytes > (static_cast<unsigned __int128>(64) << 30))
    return fail(errc::invalid_argument, "group shape: {} rows of {} floats, top {}, {} ranks need more than 64 GiB",
                shape.max_rows, shape.hidden, shape.top_k, shape.ranks);
  return {};
}

result<void> check_micro(const group_shape& shape, uint32_t micro) {
  if (micro < shape.micro_batches) return {};
  return fail(errc::invalid_argument, "micro-batch {} of a group that was made for {}", micro, shape.micro_batches);
}

result<uint32_t> check_dispatch(const group_shape& shape, uint32_t micro, std::span<const float> x,
                                std::span<const route> routes, uint32_t k) {
  if (auto ok = check_micro(shape, micro); !ok) return fail(ok.error());
  if (k < 1 || k > shape.top_k)
    return fail(errc::invalid_argument, "dispatch: k is {}, the group allows 1..{}", k, shape.top_k);
  if (x.size() % shape.hidden != 0)
    return fail(errc::invalid_argument, "dispatch: x holds {} floats, no multiple of hidden {}", x.size(),
                shape.hidden);
  const size_t rows = x.size() / shape.hidden;
  if (rows > shape.rows_of(micro))
    return fail(errc::invalid_argument, "dispatch: {} rows, the group allows {}", rows, shape.rows_of(micro));
  if (routes.size() != rows * k)
    return fail(errc::invalid_argument, "dispatch: {} routes for {} rows of {}", routes.size(), rows, k);
  for (const route& r : routes)
    if (r.rank >= shape.ranks)
      return fail(errc::invalid_argument, "dispatch: a route names rank {} of {}", r.rank, shape.ranks);
  return static_cast<uint32_t>(rows);
}

result<void> check_combine(const group_shape& shape, std::span<const float> y, size_t items, std::span<const float> out,
                           size_t rows, uint32_t k, size_t notes) {
  if (y.size() != items * shape.hidden)
    return fail(errc::invalid_argument, "combine: y holds {} floats for {} items of {}", y.size(), items, shape.hidden);
  if (out.size() != rows * k * shape.hidden)
    return fail(errc::invalid_argument, "combine: out holds {} floats for {} rows, top {}, hidden {}", out.size(), rows,
                k, shape.hidden);
  if (notes > shape.notes)
    return fail(errc::invalid_argument, "combine: {} notes, the group allows {}", notes, shape.notes);
  return {};
}

}  // namespace troupe::kernels::ep
